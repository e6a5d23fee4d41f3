import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.torsos import CNN, MLP, activation_function


def test_mlp_matches_the_formula_by_hand():
    params = {
        "Dense_0": {"kernel": jnp.array([[1.0, -1.0], [2.0, 0.0]]), "bias": jnp.array([0.5, 0.0])},
        "Dense_1": {"kernel": jnp.array([[1.0], [3.0]]), "bias": jnp.array([-1.0])},
    }
    features = MLP((2, 1), activation="relu").apply({"params": params}, jnp.array([[1.0, 2.0], [-1.0, 1.0]]))
    # Row 0: relu([5.5, -1]) = [5.5, 0] -> 4.5. Row 1: relu([1.5, 1]) -> 1.5 + 3 - 1.
    np.testing.assert_allclose(features, [[4.5], [3.5]])


def test_a_last_linear_layer_has_no_bounds():
    module = MLP((3,), activation="tanh", output_size=2)
    first, last = module.init(jax.random.key(0), jnp.zeros((1, 2)))["params"].values()
    seen, kernel = jnp.array([[30.0, -40.0]]), last["kernel"]
    before = MLP((3,), activation="tanh").apply({"params": {"Dense_0": first}}, seen)
    stretched = {"params": {"Dense_0": first, "Dense_1": {**last, "kernel": 3.0 * kernel}}}
    np.testing.assert_allclose(module.apply(stretched, seen), before @ (3.0 * kernel), rtol=1e-5)


def test_mlp_layer_norm_is_before_the_activation():
    module = MLP((64,), activation="relu", layer_norm=True)
    observation = jnp.array([[3.0, -1.0, 2.0]])
    params = jax.jit(module.init)(jax.random.key(0), observation)
    positive = module.apply(params, observation)
    # relu(x) - relu(-x) = x, which is normalised.
    norm = params["params"]["LayerNorm_0"]
    negated = {**params["params"], "LayerNorm_0": {**norm, "scale": -norm["scale"]}}
    normalized = positive - module.apply({"params": negated}, observation)
    np.testing.assert_allclose([normalized.mean(), normalized.var()], [0.0, 1.0], atol=1e-4)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3, 1)])
@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.uint8, jnp.int32, jnp.bfloat16, jnp.float32])
def test_mlp_flattens_and_casts(leading, dtype):
    module = MLP((8,), observation_ndim=2)
    observation = jnp.ones((*leading, 4, 5), dtype)
    features, params = jax.eval_shape(module.init_with_output, jax.random.key(0), observation)
    assert params["params"]["Dense_0"]["kernel"].shape == (20, 8)
    assert features.shape == (*leading, 8) and features.dtype == jnp.float32


def test_mlp_is_the_same_for_any_leading_axes_and_integers():
    module = MLP((8,), observation_ndim=2)
    observation = jax.random.randint(jax.random.key(0), (2, 3, 4, 5), 0, 256, jnp.uint8)
    params = jax.jit(module.init)(jax.random.key(1), observation)
    apply = jax.jit(module.apply)
    expected = jax.vmap(jax.vmap(apply, (None, 0)), (None, 0))(params, observation.astype(jnp.float32))
    np.testing.assert_allclose(apply(params, observation), expected, rtol=1e-5, atol=1e-5)


def test_mlp_of_scalars_and_of_no_layers():
    features = MLP((), observation_ndim=0).apply({}, jnp.array([2, 3]))
    assert features.dtype == jnp.float32 and features.tolist() == [[2.0], [3.0]]


def test_mlp_is_orthogonal_with_gain_sqrt_two():
    kernel = MLP((4,)).init(jax.random.key(1), jnp.zeros(7))["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(4), atol=1e-5)


def test_lists_are_accepted_and_modules_hash():
    assert hash(MLP([8, 8])) == hash(MLP((8, 8)))
    assert hash(CNN([4], kernel_size=[3], strides=[1], hidden_sizes=[8])) == hash(CNN((4,), 3, 1, (8,)))


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_cnn_shapes(leading):
    observation = jnp.zeros((*leading, 10, 10, 4), bool)
    features, params = jax.eval_shape(CNN((16,), hidden_sizes=(32,)).init_with_output, jax.random.key(0), observation)
    assert params["params"]["MLP_0"]["Dense_0"]["kernel"].shape == (8 * 8 * 16, 32)
    assert features.shape == (*leading, 32)


def test_cnn_is_the_same_for_any_leading_axes():
    module = CNN((2,), hidden_sizes=(3,))
    observation = jax.random.bernoulli(jax.random.key(0), shape=(2, 3, 5, 5, 4))
    params = jax.jit(module.init)(jax.random.key(1), observation)
    apply = jax.jit(module.apply)
    expected = jax.vmap(jax.vmap(apply, (None, 0)), (None, 0))(params, observation)
    np.testing.assert_allclose(apply(params, observation), expected, rtol=1e-5, atol=1e-6)


def test_cnn_convolves_by_hand_and_strides():
    module = CNN((1,), kernel_size=2, strides=2, hidden_sizes=(), activation="relu")
    params = {"Conv_0": {"kernel": jnp.ones((2, 2, 1, 1)), "bias": jnp.array([-10.0])}}
    image = jnp.arange(16).reshape(4, 4, 1)
    # Sums of the four 2x2 quarters: 10, 18, 42, 50.
    np.testing.assert_allclose(module.apply({"params": params}, image), [0.0, 8.0, 32.0, 40.0])


def test_cnn_layers_have_kernels_of_their_own():
    module = CNN((4, 5), kernel_size=(3, 2), strides=(2, 1), hidden_sizes=(6,))
    params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((9, 9, 2)))["params"]
    assert params["Conv_0"]["kernel"].shape == (3, 3, 2, 4)
    assert params["Conv_1"]["kernel"].shape == (2, 2, 4, 5)
    assert params["MLP_0"]["Dense_0"]["kernel"].shape == (3 * 3 * 5, 6)


def test_gradient_reaches_every_parameter():
    module = CNN((2,), hidden_sizes=(4,), activation="tanh")
    observation = jax.random.normal(jax.random.key(0), (3, 5, 5, 1))
    params = jax.jit(module.init)(jax.random.key(1), observation)
    gradient = jax.jit(jax.grad(lambda params: module.apply(params, observation).sum()))(params)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(("network", "shape"), [(MLP((64, 64), "relu"), (7,)), (CNN((8, 8)), (9, 9, 3))])
def test_products_in_bfloat16_leave_parameters_features_and_gradients_in_float32(network, shape):
    low = network.clone(dtype="bfloat16")
    x = jax.random.normal(jax.random.key(0), (5, *shape))
    params = low.init(jax.random.key(1), x)
    full, half = network.apply(params, x), low.apply(params, x)
    assert half.dtype == jnp.float32 and {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    # Eight bits of a mantissa: 0.4 percent a rounding, of some layers.
    error = jnp.linalg.norm(half - full) / jnp.linalg.norm(full)
    assert 1e-4 < error < 0.02
    text = str(jax.make_jaxpr(low.apply)(params, x))
    assert "bf16" in text and "bf16" not in str(jax.make_jaxpr(network.apply)(params, x))
    gradients = jax.grad(lambda params: jnp.sum(low.apply(params, x) ** 2))(params)
    assert all(leaf.dtype == jnp.float32 and bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradients))


def test_unknown_activation_offers_the_nearest_at_construction():
    with pytest.raises(ValueError, match=r"`activation` must be .* got 'tahn'; try tanh"):
        MLP(activation="tahn")
    with pytest.raises(ValueError, match="try relu"):
        CNN(activation="rellu")
    with pytest.raises(ValueError, match="try celu, elu"):
        MLP(activation="zzz")
    with pytest.raises(ValueError, match="element-wise"):
        MLP(activation="softmax")


def test_every_activation_is_element_wise():
    for name in ("celu", "hard_tanh", "leaky_relu", "silu", "soft_sign", "softplus", "swish", "tanh"):
        x = jnp.array([-1.5, 0.5])
        np.testing.assert_allclose(activation_function(name)(x)[1], activation_function(name)(x[1]), rtol=1e-6)


def test_refusals():
    with pytest.raises(ValueError, match="`observation_ndim` must be at least 0, got -1"):
        MLP(observation_ndim=-1)
    with pytest.raises(ValueError, match="`dtype` must be null, float32 or bfloat16, got 'bf16'"):
        CNN(dtype="bf16")
    with pytest.raises(ValueError, match=r"`observation` must have at least .* got shape \(3,\) and 2"):
        MLP(observation_ndim=2).init(jax.random.key(0), jnp.zeros(3))
    with pytest.raises(ValueError, match=r"`kernel_size` must be one number or one for each of 2 layers, got \(3,\)"):
        CNN((4, 4), kernel_size=(3,))
    with pytest.raises(ValueError, match=r"\(4, 4, 1\), of which \(2, 2, 8\) reaches a kernel of 3"):
        CNN((8, 8)).init(jax.random.key(0), jnp.zeros((4, 4, 1)))

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.heads import ActionValueHead, CategoricalHead, CosineEmbedding, TanhNormalHead, ValueHead

FEATURES = jax.random.normal(jax.random.key(0), (3, 2, 8))


def test_shapes_for_any_leading_axes():
    for features in (FEATURES, FEATURES[0], FEATURES[0, 0]):
        leading = features.shape[:-1]
        for head, shapes in (
            (CategoricalHead(5), [(*leading, 5)]),
            (TanhNormalHead(4), [(*leading, 4)] * 2),
            (TanhNormalHead(4, state_dependent_scale=True), [(*leading, 4)] * 2),
            (ValueHead(), [leading]),
            (ActionValueHead(5), [(*leading, 5, 1)]),
            (ActionValueHead(5, 3, dueling=True, noise_scale=0.5), [(*leading, 5, 3)]),
        ):
            outputs, _ = jax.eval_shape(head.init_with_output, jax.random.key(1), features)
            assert [x.shape for x in jax.tree.leaves(outputs)] == shapes, head


def test_categorical_starts_near_uniform_and_is_orthogonal():
    head = CategoricalHead(4)
    kernel = jax.jit(head.init)(jax.random.key(0), FEATURES)["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 1e-4 * np.eye(4), atol=1e-9)


def test_value_is_linear_with_gain_one():
    head = ValueHead()
    params = jax.jit(head.init)(jax.random.key(0), FEATURES)
    kernel = params["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(jnp.linalg.norm(kernel), 1.0, rtol=1e-5)
    np.testing.assert_allclose(head.apply(params, FEATURES), (FEATURES @ kernel)[..., 0], rtol=1e-5)


def test_dueling_by_hand():
    params = {
        "value": {"kernel": jnp.array([[1.0], [0.0]]), "bias": jnp.array([0.5])},
        "advantage": {"kernel": jnp.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]), "bias": jnp.array([0.0, 0.0, 3.0])},
    }
    # v = 2.5, A = [1, 2, 6], mean 3.
    head = ActionValueHead(3, dueling=True)
    np.testing.assert_allclose(head.apply({"params": params}, jnp.array([2.0, 1.0]))[:, 0], [0.5, 1.5, 5.5])


def test_dueling_mean_is_the_value_number_by_number():
    head = ActionValueHead(6, 2, dueling=True)
    params = jax.jit(head.init)(jax.random.key(0), FEATURES)
    value = FEATURES @ params["params"]["value"]["kernel"]
    np.testing.assert_allclose(head.apply(params, FEATURES).mean(-2), value, atol=1e-5)


def test_noise_of_a_head_reaches_both_of_its_layers():
    head = ActionValueHead(4, dueling=True, noise_scale=0.5)
    params = jax.jit(head.init)(jax.random.key(0), FEATURES)
    noise = head.draw_noise(jax.random.key(1), FEATURES.shape[:-1], 8)
    assert jax.tree.map(jnp.shape, noise) == {
        "advantage": {"inputs": (3, 2, 8), "outputs": (3, 2, 4)},
        "value": {"inputs": (3, 2, 8), "outputs": (3, 2, 1)},
    }
    drawn = head.apply(params, FEATURES, noise)
    for name in noise:
        zero = noise | {name: jax.tree.map(jnp.zeros_like, noise[name])}
        assert not np.allclose(head.apply(params, FEATURES, zero), drawn)
    none = jax.tree.map(jnp.zeros_like, noise)
    np.testing.assert_allclose(head.apply(params, FEATURES, none), head.apply(params, FEATURES), rtol=1e-5, atol=1e-6)


def test_cosine_embedding_by_hand():
    """Weights of one for every cosine: cos(0) + cos(pi / 2) is 1, cos(0) + cos(pi) is 0."""
    params = {"Dense_0": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}}
    embedded = CosineEmbedding(2).apply({"params": params}, jnp.array([3.0, -2.0]), jnp.array([0.5, 1.0]))
    np.testing.assert_allclose(embedded, [[3.0, -2.0], [0.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize("state_dependent_scale", [False, True])
def test_scale_starts_at_initial_scale(state_dependent_scale):
    head = TanhNormalHead(2, state_dependent_scale, min_scale=0.1, initial_scale=0.5)
    params = jax.jit(head.init)(jax.random.key(0), FEATURES)
    _, scale = head.apply(params, jnp.zeros(8))
    np.testing.assert_allclose(scale, [0.5, 0.5], rtol=1e-5)
    smallest = jax.tree.map(lambda x: x - 1e3, params)
    np.testing.assert_allclose(head.apply(smallest, jnp.ones(8))[1], [0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize("state_dependent_scale", [False, True])
def test_gradient_of_the_scale_reaches_the_features_only_where_it_depends_on_them(state_dependent_scale):
    head = TanhNormalHead(2, state_dependent_scale)
    params = jax.jit(head.init)(jax.random.key(0), FEATURES)
    to_features = jax.grad(lambda features: head.apply(params, features)[1].sum())(FEATURES)
    assert bool(jnp.any(to_features != 0)) == state_dependent_scale
    to_params = jax.grad(lambda params: head.apply(params, FEATURES)[1].sum())(params)["params"]
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(to_params["loc"]))
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(to_params["raw_scale"]))


def test_refused_scales():
    with pytest.raises(ValueError, match="`min_scale` must be .* got 2.0 and 1.0"):
        TanhNormalHead(2, min_scale=2.0)

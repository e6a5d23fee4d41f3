import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.heads import CategoricalHead, DuelingHead, TanhNormalHead, ValueHead

FEATURES = jax.random.normal(jax.random.key(0), (3, 2, 8))


def test_shapes_for_any_leading_axes():
    for features in (FEATURES, FEATURES[0], FEATURES[0, 0]):
        leading = features.shape[:-1]
        for head, shapes in (
            (CategoricalHead(5), [(*leading, 5)]),
            (TanhNormalHead(4), [(*leading, 4)] * 2),
            (TanhNormalHead(4, state_dependent_scale=True), [(*leading, 4)] * 2),
            (ValueHead(), [leading]),
            (DuelingHead(5), [(*leading, 5)]),
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
    np.testing.assert_allclose(DuelingHead(3).apply({"params": params}, jnp.array([2.0, 1.0])), [0.5, 1.5, 5.5])


def test_dueling_mean_is_the_value():
    head = DuelingHead(6)
    params = jax.jit(head.init)(jax.random.key(0), FEATURES)
    value = FEATURES @ params["params"]["value"]["kernel"]
    np.testing.assert_allclose(head.apply(params, FEATURES).mean(-1, keepdims=True), value, atol=1e-5)


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

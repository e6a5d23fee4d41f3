"""Returns against numbers worked out by hand and against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxagents.ops.returns import discounted_returns, lambda_returns, n_step_transition

NO = np.zeros(3, bool)
AT_1 = np.array([False, True, False])


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (NO, NO, (1 + 0.5 * 2 + 0.25 * 4, 0.125, 2)),
        (AT_1, NO, (1 + 0.5 * 2, 0.0, 1)),
        (NO, AT_1, (1 + 0.5 * 2, 0.25, 1)),
        (np.array([True, False, False]), AT_1, (1.0, 0.0, 0)),
        (AT_1, np.array([True, False, False]), (1.0, 0.5, 0)),
        (np.array([False, False, True]), NO, (3.0, 0.0, 2)),
        (AT_1, AT_1, (2.0, 0.0, 1)),
    ],
)
def test_n_step_transition_by_hand(terminated, truncated, expected):
    reward = jnp.array([1.0, 2.0, 4.0])
    returns, discount, index = n_step_transition(reward, jnp.asarray(terminated), jnp.asarray(truncated), discount=0.5)
    assert (float(returns), float(discount), int(index)) == expected


def test_n_step_transition_ignores_what_follows_the_end():
    reward = jnp.array([1.0, 2.0, jnp.inf])
    returns, discount, index = n_step_transition(reward, jnp.asarray(AT_1), jnp.asarray(NO), discount=0.5)
    assert (float(returns), float(discount), int(index)) == (2.0, 0.0, 1)
    gradient = jax.grad(lambda r: n_step_transition(r, jnp.asarray(NO), jnp.asarray(AT_1), discount=0.5)[0])(reward)
    np.testing.assert_array_equal(gradient, [1.0, 0.5, 0.0])


def test_n_step_transition_of_one_step_is_the_step():
    reward = jnp.array([[3.0, 4.0]])
    returns, discount, index = n_step_transition(
        reward, jnp.array([[False, True]]), jnp.zeros((1, 2), bool), discount=0.9
    )
    np.testing.assert_array_equal(returns, [3.0, 4.0])
    np.testing.assert_allclose(discount, [0.9, 0.0])
    np.testing.assert_array_equal(index, [0, 0])


def test_n_step_transition_with_discount_zero_is_the_first_reward():
    reward = jnp.array([3.0, 4.0])
    returns, discount, _ = n_step_transition(reward, jnp.zeros(2, bool), jnp.zeros(2, bool), discount=0.0)
    assert float(returns) == 3.0 and float(discount) == 0.0


def test_n_step_transition_with_a_discount_per_step_changes_perspective():
    """In a zero-sum game that players take turns in, the opponent's rewards and values count against one's own."""
    reward, discount = jnp.array([1.0, 2.0, 4.0]), jnp.array([-0.5, -0.5, 0.5])
    returns, bootstrap, _ = n_step_transition(reward, jnp.zeros(3, bool), jnp.zeros(3, bool), discount=discount)
    assert (float(returns), float(bootstrap)) == (1.0 - 1.0 + 1.0, 0.125)
    returns, bootstrap, _ = n_step_transition(reward, jnp.zeros(3, bool), jnp.asarray(AT_1), discount=discount)
    assert (float(returns), float(bootstrap)) == (1.0 - 1.0, 0.25)


@pytest.fixture(scope="module")
def random_sequence():
    generator = np.random.default_rng(0)
    shape = (12, 5)
    terminated = generator.random(shape) < 0.15
    truncated = (generator.random(shape) < 0.15) & ~terminated
    reward, next_value = generator.normal(size=(2, *shape)).astype(np.float32)
    return tuple(jnp.asarray(array) for array in (reward, terminated, truncated, next_value))


def test_lambda_returns_agree_with_rlax_without_truncation(random_sequence):
    reward, terminated, _, next_value = random_sequence
    discount = 0.9 * (1.0 - terminated)
    expected = jax.vmap(rlax.lambda_returns, (1, 1, 1, None), 1)(reward, discount, next_value, 0.8)
    actual = lambda_returns(reward, terminated, jnp.zeros_like(terminated), next_value, discount=0.9, trace_decay=0.8)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_lambda_returns_by_hand_at_ends():
    reward = jnp.array([1.0, 1.0, 1.0, 1.0])
    terminated = jnp.array([False, False, False, True])
    truncated = jnp.array([False, True, False, False])
    next_value = jnp.array([10.0, 20.0, 30.0, 40.0])
    # G3 = 1; G2 = 1 + 0.5 (0.5 * 30 + 0.5 * 1); G1 = 1 + 0.5 * 20; G0 = 1 + 0.5 (0.5 * 10 + 0.5 * 11).
    actual = lambda_returns(reward, terminated, truncated, next_value, discount=0.5, trace_decay=0.5)
    np.testing.assert_allclose(actual, [6.25, 11.0, 8.75, 1.0])


def test_lambda_returns_of_extreme_traces(random_sequence):
    options = {"discount": 0.9}
    one_step = lambda_returns(*random_sequence, trace_decay=0.0, **options)
    reward, terminated, truncated, next_value = random_sequence
    np.testing.assert_allclose(one_step, reward + 0.9 * ~terminated * next_value, rtol=1e-5, atol=1e-6)
    whole = discounted_returns(*random_sequence, **options)
    for t in range(len(reward)):
        returns, discount, index = n_step_transition(reward[t:], terminated[t:], truncated[t:], discount=0.9)
        expected = returns + discount * next_value[t + index, jnp.arange(reward.shape[1])]
        np.testing.assert_allclose(whole[t], expected, rtol=1e-5, atol=1e-6)


def test_discounted_returns_by_hand():
    reward = jnp.array([1.0, 2.0, 4.0])
    actual = discounted_returns(reward, jnp.asarray(AT_1), jnp.asarray(NO), jnp.array([7.0, 7.0, 8.0]), discount=0.5)
    np.testing.assert_allclose(actual, [2.0, 2.0, 8.0])


def test_gradient_reaches_the_value_only_where_it_is_used():
    reward, terminated, truncated = jnp.ones(3), jnp.array([False, False, True]), jnp.asarray(AT_1)
    gradient = jax.grad(lambda value: discounted_returns(reward, terminated, truncated, value, discount=0.5).sum())(
        jnp.ones(3)
    )
    np.testing.assert_allclose(gradient, [0.0, 0.5 + 0.25, 0.0])


def test_jit_and_vmap_change_nothing(random_sequence):
    def both(reward, terminated, truncated, next_value):
        returns = lambda_returns(reward, terminated, truncated, next_value, discount=0.9, trace_decay=0.7)
        return returns, n_step_transition(reward, terminated, truncated, discount=0.9)

    expected = both(*random_sequence)
    jitted = jax.jit(both)(*random_sequence)
    mapped = jax.vmap(both, 1, (1, 0))(*random_sequence)
    jax.tree.map(
        lambda a, b, c: (np.testing.assert_allclose(a, b, rtol=1e-5), np.testing.assert_allclose(a, c, rtol=1e-5)),
        expected,
        jitted,
        mapped,
    )

"""Advantages against numbers worked out by hand, rlax, and the returns that they are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagents.ops.advantages import generalized_advantage, normalize_advantage, vtrace
from jaxagents.ops.returns import discounted_returns, lambda_returns

REWARD = jnp.array([1.0, 2.0, 3.0])
VALUE = jnp.array([0.5, 1.0, 1.5])
NO = (False, False, False)


def half(terminated=NO, truncated=NO, next_value=(1.0, 1.5, 2.0), reward=REWARD, value=VALUE, discount=0.5):
    """Returns advantages with a discount and a trace decay of a half."""
    return generalized_advantage(
        reward,
        value,
        jnp.asarray(next_value),
        jnp.asarray(terminated),
        jnp.asarray(truncated),
        discount=discount,
        trace_decay=0.5,
    )


@pytest.mark.parametrize(
    ("terminated", "truncated", "next_value", "expected"),
    [
        # delta = (1 + 0.5 - 0.5, 2 + 0.75 - 1, 3 + 1 - 1.5) = (1, 1.75, 2.5); the trace decays by a quarter.
        (NO, NO, (1.0, 1.5, 2.0), (1.0 + 0.25 * 2.375, 1.75 + 0.25 * 2.5, 2.5)),
        # Terminated in the middle: delta_1 = 2 - 1, whatever the value of what follows.
        ((0, 1, 0), NO, (1.0, 99.0, 2.0), (1.0 + 0.25 * 1.0, 1.0, 2.5)),
        # Truncated in the middle: delta_1 = 2 + 0.5 * 7 - 1 from the true successor, which is not the next row.
        (NO, (0, 1, 0), (1.0, 7.0, 2.0), (1.0 + 0.25 * 4.5, 4.5, 2.5)),
        # The last step of the rollout: cut off by the rollout, by a limit, or over.
        (NO, (0, 0, 1), (1.0, 1.5, 2.0), (1.59375, 2.375, 2.5)),
        ((0, 0, 1), NO, (1.0, 1.5, 2.0), (1.0 + 0.25 * 2.125, 1.75 + 0.25 * 1.5, 1.5)),
        # Both at once: terminated wins.
        ((0, 1, 0), (0, 1, 0), (1.0, 99.0, 2.0), (1.25, 1.0, 2.5)),
        ((1, 1, 1), NO, (9.0, 9.0, 9.0), (0.5, 1.0, 1.5)),
        (NO, (1, 1, 1), (1.0, 1.5, 2.0), (1.0, 1.75, 2.5)),
    ],
)
def test_by_hand_at_ends(terminated, truncated, next_value, expected):
    actual = half(np.asarray(terminated, bool), np.asarray(truncated, bool), next_value)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_value_behind_a_terminal_state_may_be_anything():
    np.testing.assert_allclose(half((False, True, False), NO, (1.0, np.nan, 2.0)), [1.25, 1.0, 2.5])


def test_alternating_zero_sum_game_is_negamax():
    """Players 0, 1, 0 move, win 1, 4 and 8, and lose as much to the opponent; the discount is a half."""
    reward, perspective = jnp.array([1.0, 4.0, 8.0]), jnp.array([-1.0, -1.0, -1.0])
    terminated, none = jnp.array([False, False, True]), jnp.zeros(3, bool)
    value, next_value = jnp.array([0.25, 0.5, 0.75]), jnp.array([0.5, 0.75, 99.0])
    arguments = reward, value, next_value, terminated, none
    whole = generalized_advantage(*arguments, discount=0.5 * perspective, trace_decay=1.0)
    # Negamax by hand, from the end: 8; 4 - 0.5 * 8; 1 - 0.5 * 0.
    np.testing.assert_allclose(whole + value, [1.0, 0.0, 8.0], atol=1e-6)
    # To player 0 alone the moves are worth 1, -4 and 8, and so is the game before its moves.
    own = discounted_returns(jnp.array([1.0, -4.0, 8.0]), terminated, none, jnp.zeros(3), discount=0.5)
    np.testing.assert_allclose((whole + value)[::2], own[::2], atol=1e-6)
    # One-step targets: r - 0.5 V(opponent).
    one_step = generalized_advantage(*arguments, discount=0.5 * perspective, trace_decay=0.0)
    np.testing.assert_allclose(one_step + value, [1.0 - 0.25, 4.0 - 0.375, 8.0], rtol=1e-6)
    # delta = (0.5, 3.125, 7.25); with a trace decay of a half, A_t = delta_t - A_{t+1} / 4.
    half_way = generalized_advantage(*arguments, discount=0.5 * perspective, trace_decay=0.5)
    np.testing.assert_allclose(half_way, [0.5 - 0.25 * 1.3125, 3.125 - 0.25 * 7.25, 7.25], rtol=1e-6)


def test_the_same_player_may_move_twice():
    perspective = jnp.array([1.0, -1.0, -1.0])
    actual = half((False, False, True), discount=0.5 * perspective)
    # delta = (1 + 0.5 - 0.5, 2 - 0.75 - 1, 3 - 1.5) and traces of +1/4, -1/4.
    np.testing.assert_allclose(actual, [1.0 + 0.25 * -0.125, 0.25 - 0.25 * 1.5, 1.5], rtol=1e-6)


def random_rollout(seed, shape=(9, 4)):
    generator = np.random.default_rng(seed)
    terminated = generator.random(shape) < 0.2
    truncated = (generator.random(shape) < 0.2) & ~terminated
    reward, value, next_value = generator.normal(size=(3, *shape)).astype(np.float32)
    return tuple(jnp.asarray(array) for array in (reward, value, next_value, terminated, truncated))


@given(st.integers(0, 10_000), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=15, deadline=None)
def test_advantage_plus_value_is_the_lambda_return(seed, discount, trace_decay):
    reward, value, next_value, terminated, truncated = random_rollout(seed)
    # Within an episode the successor of a step is the next state.
    following = jnp.concatenate([value[1:], next_value[-1:]])
    next_value = jnp.where(terminated | truncated, next_value, following)
    options = {"discount": jnp.float32(discount), "trace_decay": jnp.float32(trace_decay)}
    advantage = generalized_advantage(reward, value, next_value, terminated, truncated, **options)
    expected = lambda_returns(reward, terminated, truncated, next_value, **options)
    np.testing.assert_allclose(advantage + value, expected, rtol=1e-4, atol=1e-5)


def test_agrees_with_rlax_without_truncation():
    reward, value, next_value, terminated, _ = random_rollout(0)
    value = jnp.concatenate([value, next_value[-1:]])
    expected = jax.vmap(rlax.truncated_generalized_advantage_estimation, (1, 1, None, 1), 1)(
        reward, 0.9 * (1.0 - terminated), 0.8, value
    )
    no = jnp.zeros_like(terminated)
    actual = generalized_advantage(reward, value[:-1], value[1:], terminated, no, discount=0.9, trace_decay=0.8)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_vtrace_agrees_with_rlax_without_truncation():
    reward, value, next_value, terminated, _ = random_rollout(0)
    ratio = jnp.exp(jax.random.normal(jax.random.key(3), reward.shape))
    value = jnp.concatenate([value, next_value[-1:]])
    expected = jax.vmap(
        lambda *columns: rlax.vtrace_td_error_and_advantage(*columns, 0.8, 1.5, 0.7), in_axes=1, out_axes=1
    )(value[:-1], value[1:], reward, 0.9 * (1.0 - terminated), ratio)
    no = jnp.zeros_like(terminated)
    options = {"discount": 0.9, "trace_decay": 0.8, "clip_ratio": 1.5}
    given = (reward, value[:-1], value[1:], terminated, no, ratio)
    advantage, target = vtrace(*given, **options, clip_advantage_ratio=0.7)
    np.testing.assert_allclose(advantage, expected.pg_advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target - value[:-1], expected.errors, rtol=1e-4, atol=1e-5)
    unweighted, _ = vtrace(*given, **options, clip_advantage_ratio=None)
    np.testing.assert_allclose(unweighted * jnp.minimum(0.7, ratio), advantage, rtol=1e-5, atol=1e-6)


def test_vtrace_of_the_acting_policy_is_the_lambda_return_with_true_successors():
    """Truncated steps are worth their own successors, which rlax cannot say."""
    reward, value, next_value, terminated, truncated = random_rollout(1)
    following = jnp.concatenate([value[1:], next_value[-1:]])
    next_value = jnp.where(terminated | truncated, next_value, following)
    given, ends = (reward, value, next_value, terminated, truncated), (terminated, truncated)
    advantage, target = vtrace(*given, jnp.ones_like(reward), discount=0.9, trace_decay=1.0)
    expected = lambda_returns(reward, *ends, next_value, discount=0.9, trace_decay=1.0)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage, expected - value, rtol=1e-4, atol=1e-5)


def test_gradient_follows_the_trace_up_to_the_end_of_the_episode():
    def first(reward, next_value):
        return half((False, True, False), NO, next_value, reward=reward)[0]

    to_reward, to_next_value = jax.grad(first, (0, 1))(REWARD, jnp.array([1.0, 1.5, 2.0]))
    np.testing.assert_allclose(to_reward, [1.0, 0.25, 0.0])
    np.testing.assert_allclose(to_next_value, [0.5, 0.0, 0.0])


def test_jit_and_vmap_change_nothing():
    def advantage(*arguments):
        return generalized_advantage(*arguments, discount=0.9, trace_decay=0.7)

    arguments = random_rollout(1)
    expected = advantage(*arguments)
    np.testing.assert_allclose(jax.jit(advantage)(*arguments), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(advantage, 1, 1)(*arguments), expected, rtol=1e-5, atol=1e-6)


def test_normalized_by_hand():
    # Mean 3 and standard deviation 2.
    np.testing.assert_allclose(normalize_advantage(jnp.array([[1.0, 5.0], [1.0, 5.0]])), [[-1, 1], [-1, 1]], rtol=1e-6)
    np.testing.assert_allclose(normalize_advantage(jnp.array([1.0, 5.0]), epsilon=2.0), [-0.5, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(normalize_advantage(jnp.full(5, 0.3)), 0.0)


def test_normalized_over_the_mask_only():
    advantage, mask = jnp.array([1.0, 1e6, 5.0, -7.0]), jnp.array([True, False, True, False])
    np.testing.assert_allclose(normalize_advantage(advantage, mask), [-1.0, 0.0, 1.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(normalize_advantage(advantage, jnp.zeros(4, bool)), 0.0)


@pytest.mark.parametrize("masked", [False, True])
def test_normalized_over_devices_as_on_one(masked):
    advantage = jnp.array([[1.0, 2.0, 4.0], [10.0, -3.0, 0.5]])
    # Unequal numbers per device, which a mean of means would get wrong.
    mask = jnp.array([[True, True, True], [True, False, False]]) if masked else None
    parts = jax.vmap(lambda a, m: normalize_advantage(a, m, axis_name="device"), axis_name="device")(advantage, mask)
    np.testing.assert_allclose(parts, normalize_advantage(advantage, mask), rtol=1e-5, atol=1e-6)


@given(st.floats(0.1, 100.0), st.floats(-100.0, 100.0))
@settings(max_examples=15, deadline=None)
def test_normalized_has_mean_zero_and_deviation_one_and_forgets_scale_and_offset(scale, offset):
    advantage = jnp.array([0.3, -1.2, 2.5, 0.9, 4.0])
    normalized = normalize_advantage(scale * advantage + offset)
    np.testing.assert_allclose(normalized.mean(), 0.0, atol=1e-3)
    np.testing.assert_allclose(normalized.std(), 1.0, rtol=1e-4)
    np.testing.assert_allclose(normalized, normalize_advantage(advantage), atol=2e-3)

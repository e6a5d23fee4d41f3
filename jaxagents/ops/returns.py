"""Returns of sequences of rewards, time-first `[T, ...]`.

Truncation is not termination: a step that terminates is worth its reward; a step that is truncated is worth its reward
plus the discounted value of its true successor. `next_value[t]` is the value of the state that followed step `t`,
before any reset.
"""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def n_step_transition(
    reward: Array, terminated: Array, truncated: Array, *, discount: Array | float
) -> tuple[Array, Array, Array]:
    """Computes the single transition that is equivalent to a sequence of `n` steps.

    With `m <= n` the number of steps up to the end of the episode or of the sequence:
    `return = sum_{k<m} (prod_{j<k} discount_j) reward_k` and `bootstrap_discount = prod_{j<m} discount_j`, zero where
    step `m - 1` terminated. The target is `return + bootstrap_discount * V(next_observation[index])`.

    Args:
        reward: float `[n, ...]`.
        terminated: bool `[n, ...]`.
        truncated: bool `[n, ...]`.
        discount: per step, in `[0, 1]`, one number or `[n, ...]`; negative if the opponent values the successor.

    Returns:
        The return, the bootstrap discount and the index `m - 1` of the last included step (int32), all `[...]`.

    References:
        Sutton and Barto (2018), equation 7.1.
    """
    ended = terminated | truncated
    num_ends_before = jnp.cumsum(ended, axis=0, dtype=jnp.int32) - ended
    included = num_ends_before == 0
    # `where` instead of products, because values after the end are arbitrary.
    factors = jnp.cumprod(jnp.where(included, jnp.broadcast_to(discount, reward.shape), 1.0), axis=0)
    factors_before = jnp.concatenate([jnp.ones_like(factors[:1]), factors[:-1]])
    returns = jnp.sum(jnp.where(included, factors_before * reward, 0.0), axis=0)
    bootstrap_discount = jnp.where(jnp.any(included & terminated, axis=0), 0.0, factors[-1])
    return returns, bootstrap_discount, jnp.sum(included, axis=0, dtype=jnp.int32) - 1


def lambda_returns(
    reward: Array,
    terminated: Array,
    truncated: Array,
    next_value: Array,
    *,
    discount: Array | float,
    trace_decay: Array | float,
) -> Array:
    """Computes the lambda-return of every step.

    `G_t = reward_t + discount_t ((1 - trace_decay) V_{t+1} + trace_decay G_{t+1})`, with `discount_t = 0` if step `t`
    terminated and `G_{t+1} = V_{t+1}` if it was truncated or the last of the sequence.

    Args:
        reward: float `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        next_value: float `[T, ...]`, value of the true successor of every step.
        discount: per step, in `[0, 1]`.
        trace_decay: lambda, in `[0, 1]`; 0 gives one-step targets, 1 discounted returns.

    Returns:
        float `[T, ...]`.

    References:
        Sutton and Barto (2018), equation 12.2.

    Examples:
        >>> import jax.numpy as jnp
        >>> no = jnp.zeros(2, bool)
        >>> lambda_returns(jnp.ones(2), no, no, jnp.array([4.0, 8.0]), discount=0.5, trace_decay=0.0).tolist()
        [3.0, 5.0]
    """
    successor_discount = discount * (1.0 - terminated.astype(reward.dtype))
    ended = terminated | truncated

    def backward(successor_return: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, successor_discount, ended, next_value = step
        mixed = (1.0 - trace_decay) * next_value + trace_decay * successor_return
        returns = reward + successor_discount * jnp.where(ended, next_value, mixed)
        return returns, returns

    _, returns = jax.lax.scan(backward, next_value[-1], (reward, successor_discount, ended, next_value), reverse=True)
    return returns


def discounted_returns(
    reward: Array, terminated: Array, truncated: Array, next_value: Array, *, discount: Array | float
) -> Array:
    """Computes the discounted return of every step, `G_t = reward_t + discount G_{t+1}` within an episode.

    The value of the successor replaces missing rewards: at truncations and at the end of the sequence.

    Args:
        reward: float `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        next_value: float `[T, ...]`; zeros without a value function.
        discount: per step, in `[0, 1]`.

    Returns:
        float `[T, ...]`.

    References:
        Sutton and Barto (2018), equation 3.8.

    Examples:
        >>> import jax.numpy as jnp
        >>> reward, ended = jnp.array([1.0, 2.0, 4.0]), jnp.array([False, True, False])
        >>> discounted_returns(reward, ended, ~ended & False, jnp.zeros(3), discount=0.5).tolist()
        [2.0, 2.0, 4.0]
    """
    return lambda_returns(reward, terminated, truncated, next_value, discount=discount, trace_decay=1.0)

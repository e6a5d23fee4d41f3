"""Games in normal form: values of strategies in a tensor of payoffs, and gains of players from deviating.

`payoffs[p, a_1, ..., a_n]` is the payoff of player p if each player i plays a_i: `[n, A, ..., A]`, padded so that all
players have A actions. `counts [n, A]` is the multiplicity of each action: 0 is padding, and a policy that was found
twice has count 2. Solvers treat an action with count 2 as two copies of it. Strategies are `[n, A]`, a joint
distribution is `[A, ..., A]`; their dtype is that of the payoffs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.games.strategies import require_strategies
from jaxagents.types import Array


def pad_payoffs(payoffs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Makes the players' numbers of actions equal: `[n, A_1, ..., A_n] -> [n, A, ..., A]`, with A the largest.

    Args:
        payoffs: finite array, with one axis per player after the first axis.

    Returns:
        The payoffs, padded with zeros, and the counts `[n, A]`, 1 if the action exists and 0 otherwise.

    Raises:
        ValueError: the payoffs have the wrong rank or are not finite, or a player has no action.
    """
    payoffs = np.asarray(payoffs)
    if payoffs.ndim < 2 or payoffs.ndim != payoffs.shape[0] + 1:
        raise ValueError(
            f"`payoffs` must have shape [n, A_1, ..., A_n] for n players, got {list(payoffs.shape)}; try "
            "np.stack([row_payoffs, column_payoffs]) for two."
        )
    if min(payoffs.shape[1:]) < 1:
        raise ValueError(f"`payoffs` must have at least one action per player, got {list(payoffs.shape)}.")
    if not np.all(np.isfinite(payoffs)):
        where = np.argwhere(~np.isfinite(payoffs))[0].tolist()
        raise ValueError(f"`payoffs` must be finite, got {payoffs[tuple(where)]} at {where}; try a large number.")
    numbers = payoffs.shape[1:]
    largest = max(numbers)
    padded = np.pad(payoffs, [(0, 0), *((0, largest - number) for number in numbers)])
    return padded, (np.arange(largest)[None, :] < np.asarray(numbers)[:, None]).astype(padded.dtype)


def require_square(payoffs: Array, counts: Array | None = None) -> Array:
    """Returns the counts, ones for None, for payoffs with the shape that solvers need.

    Raises:
        ValueError: the shape differs.
    """
    num_players, num_actions = payoffs.shape[0], payoffs.shape[-1]
    if payoffs.shape != (num_players, *[num_actions] * num_players):
        raise ValueError(
            f"`payoffs` must have shape [n, A, ..., A] for n players, got {list(payoffs.shape)}; try pad_payoffs."
        )
    if counts is None:
        return jnp.ones((num_players, num_actions), payoffs.dtype)
    if counts.shape != (num_players, num_actions):
        raise ValueError(f"`counts` must have shape {[num_players, num_actions]}, got {list(counts.shape)}.")
    return jnp.asarray(counts, payoffs.dtype)


def action_value(payoff: Array, strategies: Array, player: int) -> Array:
    """Computes the value of each action of one player against the others' strategies, `[A]`.

    Args:
        payoff: `[A, ..., A]`, payoffs of this player.
        strategies: `[n, A]`.
        player: index of the player whose actions are evaluated.
    """
    for other in reversed(range(payoff.ndim)):  # From the last axis on, so that the other axes keep their positions.
        if other != player:
            payoff = jnp.tensordot(payoff, strategies[other], axes=(other, 0))
    return payoff


def action_values(payoffs: Array, strategies: Array) -> Array:
    """Computes `sum_{a_-p} prod_{i != p} sigma_i(a_i) G_p[a_p, a_-p]` for all players, `[n, A]`."""
    return jnp.stack([action_value(payoff, strategies, player) for player, payoff in enumerate(payoffs)])


def nash_conv(payoffs: Array, strategies: Array, counts: Array | None = None) -> Array:
    """Computes `sum_p [max_a u_p(a, sigma_-p) - u_p(sigma)]`, zero in a Nash equilibrium.

    Args:
        payoffs: `[n, A, ..., A]`.
        strategies: `[n, A]`.
        counts: `[n, A]`; None: all actions exist.

    Returns:
        A number; exploitability is this number divided by n.

    Raises:
        ValueError: the shape differs, or a strategy is not a distribution over the existing actions.
    """
    counts = require_square(payoffs, counts)
    if not isinstance(counts, jax.core.Tracer):
        require_strategies("strategies", list(strategies), list(np.asarray(counts) > 0))
    values = action_values(payoffs, strategies)
    best = jnp.max(jnp.where(counts > 0, values, -jnp.inf), axis=1)
    return jnp.sum(best - jnp.sum(strategies * values, axis=1))


def product_of(strategies: Array) -> Array:
    """Computes the joint distribution `[A, ..., A]` of independent players, `prod_p sigma_p(a_p)`."""
    joint = strategies[0]
    for strategy in strategies[1:]:
        joint = jnp.expand_dims(joint, -1) * strategy.reshape((1,) * joint.ndim + (-1,))
    return joint


def joint_value(payoffs: Array, joint: Array) -> Array:
    """Computes the expected payoff of every player, `[n]`, for actions drawn from a joint distribution."""
    return jnp.sum((payoffs * joint[None]).reshape(payoffs.shape[0], -1), axis=1)


def undominated(payoffs: Array, counts: Array | None = None) -> Array:
    """Sets the count of strictly dominated actions to 0, until there are none left.

    An action is dominated if another action of the same player is better against all remaining actions of the others.
    No correlated equilibrium plays it.

    Args:
        payoffs: `[n, A, ..., A]`.
        counts: `[n, A]`; None: ones.

    Returns:
        The counts `[n, A]`.
    """
    counts = require_square(payoffs, counts)

    def round_(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        left, _ = carry
        kept = left
        for player, payoff in enumerate(payoffs):
            rows = jnp.moveaxis(payoff, player, 0).reshape(payoff.shape[player], -1)
            others = product_of(jnp.concatenate([left[:player], left[player + 1 :]])) if len(payoffs) > 1 else None
            exists = jnp.ones(1, bool) if others is None else others.reshape(-1) > 0
            better = jnp.all((rows[:, None, :] > rows[None, :, :]) | ~exists[None, None, :], axis=-1)
            dominated = jnp.any(better & (left[player] > 0)[:, None], axis=0)
            kept = kept.at[player].set(jnp.where(dominated, 0.0, left[player]))
        return kept, jnp.any(kept != left)

    return jax.lax.while_loop(lambda carry: carry[1], round_, (counts, jnp.bool_(True)))[0]

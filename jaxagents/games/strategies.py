"""Strategies of compiled games: policies, the sequences that they reach, and values of policies and deviations."""

from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.games.extensive_form import Game, Seat
from jaxagents.types import Array

_TOLERANCE = 1e-3  # For sums of probabilities in float32.
Profile = Sequence[Array]
"""A policy `[I, A]` of every player: probabilities of actions, 0 for illegal ones."""


@jax.jit
def uniform_profile(game: Game) -> tuple[Array, ...]:
    """Returns policies that play all legal actions equally often, in the default precision."""
    return tuple(normalize(seat, jnp.zeros(seat.mask.shape)) for seat in game.seats)


def normalize(seat: Seat, weights: Array) -> Array:
    """Computes `w(a) / sum_b w(b)` over legal actions, uniform if the sum is 0.

    Args:
        seat: seat of the player.
        weights: `[I, A]`, non-negative.

    Returns:
        Policy `[I, A]`.
    """
    mask = jnp.asarray(seat.mask)
    weights = jnp.where(mask, weights, 0.0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    uniform = mask / jnp.sum(mask, axis=1, keepdims=True)
    return jnp.where(total > 0.0, weights / jnp.where(total > 0.0, total, 1.0), uniform)


def realization_plan(seat: Seat, policy: Array) -> Array:
    """Computes the probability that a player's own choices contribute to every sequence.

    `x(empty) = 1`, and `x(i, a) = x(previous(i)) policy(a | i)`.

    Args:
        seat: seat of the player.
        policy: `[I, A]`.

    Returns:
        `[1 + I A]`.

    References:
        von Stengel (1996), "Efficient Computation of Behavior Strategies", section 3.
    """
    levels = [jnp.ones(1, policy.dtype)]
    for (start, end), first in zip(pairwise(seat.levels), _first_sequences(seat)):
        before = levels[-1][seat.previous[start:end] - first]
        levels.append((before[:, None] * policy[start:end]).reshape(-1))
    return jnp.concatenate(levels)


def behavior_policy(seat: Seat, plan: Array) -> Array:
    """Computes the policy of a realization plan (or a weighted sum of plans), uniform in sets that it does not reach.

    Args:
        seat: seat of the player.
        plan: `[1 + I A]`.

    Returns:
        `[I, A]`.
    """
    return normalize(seat, plan[1:].reshape(seat.mask.shape))


@jax.jit
def realization_plans(game: Game, profile: Profile) -> tuple[Array, ...]:
    """Computes the `realization_plan` of every player."""
    return tuple(realization_plan(seat, policy) for seat, policy in zip(game.seats, profile))


@jax.jit
def expected_values(game: Game, profile: Profile) -> Array:
    """Computes the expected payoff of every player, `[N]`."""
    return jnp.sum(game.payoff * outcome_weights(game, realization_plans(game, profile))[None], axis=1)


def outcome_weights(game: Game, plans: Sequence[Array], without: int | None = None) -> Array:
    """Computes the product of the plans of all players, or of all but one, at every outcome.

    Args:
        game: game of Z outcomes.
        plans: `[1 + I A]` of every player.
        without: index of a player whose plan is left out.

    Returns:
        `[Z]`.
    """
    reach = jnp.ones(game.payoff.shape[1], plans[0].dtype)
    for player, plan in enumerate(plans):
        if player != without:
            reach = reach * plan[game.sequence[player]]
    return reach


def sequence_values(game: Game, player: int, plans: Sequence[Array]) -> Array:
    """Computes the value of the outcomes directly after every sequence of a player, if it is played.

    `g(s) = sum_{outcomes z with s_i(z) = s} payoff_i(z) prod_{j != i} x_j(s_j(z))`.

    Args:
        game: compiled game.
        player: i, index of the player.
        plans: plans of all players; that of i does not matter.

    Returns:
        `[1 + I A]`.
    """
    return gather_outcomes(game, player, outcome_weights(game, plans, without=player))


def gather_outcomes(game: Game, player: int, weights: Array) -> Array:
    """Sums a player's payoffs over weighted outcomes, by the player's sequence.

    Args:
        game: game of Z outcomes.
        player: i, index of the player.
        weights: `[Z]`, the others' reach; weights of several opponent profiles can be added.

    Returns:
        `[1 + I A]`.
    """
    worth = jnp.asarray(game.payoff[player]) * weights
    return jnp.zeros(game.seats[player].num_sequences, worth.dtype).at[game.sequence[player]].add(worth)


def action_values(seat: Seat, values: Array, policy: Array | None = None) -> tuple[Array, Array]:
    """Computes the value of every action at its information set (counterfactual values), from the last level up.

    `Q(i, a) = g(i, a) + sum_{sets j after (i, a)} V(j)` with `V(j) = sum_b policy(b | j) Q(j, b)`.

    Args:
        seat: seat of the player.
        values: g, `[1 + I A]`, see `sequence_values`.
        policy: `[I, A]`, policy for later decisions; None: the best action, `V(j) = max_b Q(j, b)`.

    Returns:
        `(Q [I, A], value of the game)`; Q of illegal actions is meaningless.
    """
    width = seat.mask.shape[1]
    levels, worth, previous = [], None, None
    bounds = list(zip(pairwise(seat.levels), _first_sequences(seat)))
    for (start, end), first in reversed(bounds):
        of_level = _add_sets(values[1 + start * width : 1 + end * width], worth, previous)
        of_level = of_level.reshape(end - start, width)
        if policy is None:
            worth = jnp.max(jnp.where(seat.mask[start:end], of_level, -jnp.inf), axis=1)
        else:
            worth = jnp.sum(policy[start:end] * of_level, axis=1)
        previous = seat.previous[start:end] - first
        levels.append(of_level)
    root = _add_sets(values[:1], worth, previous)[0]
    return jnp.concatenate(levels[::-1]) if levels else jnp.zeros(seat.mask.shape, values.dtype), root


def _add_sets(values: Array, worth: Array | None, previous: Array | None) -> Array:
    """Adds the values of the next level's information sets to the sequences before them."""
    return values if worth is None else values.at[previous].add(worth, indices_are_sorted=True)


def _first_sequences(seat: Seat) -> list[int]:
    """Returns the first sequence that can precede each level: one of the previous level, or the empty one."""
    return [0, *(1 + start * seat.mask.shape[1] for start in seat.levels[:-2])]


def check_profile(game: Game, profile: Profile) -> None:
    """Refuses policies whose shapes do not fit the game.

    Raises:
        ValueError: there are not N policies, or one is not `[I, A]`.
    """
    got = [np.shape(policy) for policy in profile]
    needed = [seat.mask.shape for seat in game.seats]
    if got != needed:
        raise ValueError(
            f"`profile` must have policies of shapes {needed} in {game.name}, got {got}; try uniform_profile(game)."
        )


def require_strategies(name: str, policies: Sequence[Array | None], masks: Sequence[Array]) -> None:
    """Refuses numbers that are not probabilities; traced arrays are not checked.

    Args:
        name: name of the argument.
        policies: `[..., A]` of every player; None for players who do not matter.
        masks: bool `[..., A]` of every player, True = legal.

    Raises:
        ValueError: a row has a negative entry or probability on an illegal action, or does not add up to 1.
    """
    for player, (policy, mask) in enumerate(zip(policies, masks, strict=True)):
        if policy is None or isinstance(policy, jax.core.Tracer):
            continue
        rows = np.asarray(policy, np.float64)
        wrong = ~(np.all((rows >= -_TOLERANCE) & (np.asarray(mask) | (rows <= _TOLERANCE)), axis=-1))
        wrong |= ~(np.abs(np.sum(rows, axis=-1) - 1.0) <= _TOLERANCE)
        if wrong.any():
            place = tuple(int(index) for index in np.argwhere(wrong)[0])
            found = f"{rows[place].round(4).tolist()}, player {player} in row {list(place)}"
            raise ValueError(
                f"`{name}` must be probabilities of legal actions that add up to 1, got {found}; try "
                "jaxagents.games.strategies.normalize."
            )

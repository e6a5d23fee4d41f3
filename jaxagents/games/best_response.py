"""Exact best responses, and the distance of policies from an equilibrium."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.games.extensive_form import Game
from jaxagents.games.strategies import (
    Profile,
    action_values,
    check_profile,
    expected_values,
    gather_outcomes,
    outcome_weights,
    realization_plans,
    require_strategies,
)
from jaxagents.types import Array


class BestResponse(NamedTuple):
    """A best response of a player, and its value.

    Attributes:
        policy: `[I, A]`, one action at every information set; the first one if several are equally good.
        value: `[]`, expected payoff of the policy.
    """

    policy: Array
    value: Array


def best_response(game: Game, player: int, profile: Profile) -> BestResponse:
    """Computes a best response to the policies of the others.

    Args:
        game: compiled game.
        player: index of the player who responds.
        profile: policies `[I_j, A_j]` of all players; that of `player` does not matter.

    Returns:
        The best response.

    Raises:
        ValueError: policies do not fit the game, or a row of another player is not a distribution over legal actions.
    """
    check_profile(game, profile)
    _require_others(game, player, profile)
    return _best_response(game, player, tuple(profile))


@partial(jax.jit, static_argnames="player")
def _best_response(game: Game, player: int, profile: Profile) -> BestResponse:
    weights = outcome_weights(game, realization_plans(game, profile), without=player)
    return respond(game, player, weights)


def nash_conv(game: Game, profile: Profile) -> Array:
    """Computes `sum_i (max_{x_i} u_i(x_i, x_-i) - u_i(x))`, 0 in an equilibrium.

    Args:
        game: compiled game.
        profile: policies of all players.

    Raises:
        ValueError: policies do not fit the game, or a row is not a distribution over legal actions: if rows were zero,
            no payoff would be reached, and nothing could be gained against them.

    References:
        Lanctot et al. (2017), "A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning", section 4.
    """
    check_profile(game, profile)
    require_strategies("profile", profile, [seat.mask for seat in game.seats])
    return _nash_conv(game, tuple(profile))


@jax.jit
def _nash_conv(game: Game, profile: Profile) -> Array:
    responses = [_best_response(game, player, profile).value for player in range(game.num_players)]
    return jnp.sum(jnp.stack(responses) - expected_values(game, profile))


def exploitability(game: Game, profile: Profile) -> Array:
    """Computes `nash_conv / N`; raises the same errors as `nash_conv`."""
    return nash_conv(game, profile) / game.num_players


def respond(game: Game, player: int, weights: Array) -> BestResponse:
    """Computes a best response to the others' reach of every outcome, `[Z]`, see `strategies.outcome_weights`."""
    seat = game.seats[player]
    values, value = action_values(seat, gather_outcomes(game, player, weights))
    best = jnp.argmax(jnp.where(seat.mask, values, -jnp.inf), axis=1)
    return BestResponse(policy=jax.nn.one_hot(best, seat.mask.shape[1], dtype=weights.dtype), value=value)


def _require_others(game: Game, player: int, policies: Sequence[Array]) -> None:
    others = [None if number == player else policy for number, policy in enumerate(policies)]
    require_strategies("profile", others, [seat.mask for seat in game.seats])

"""Counterfactual regret minimisation: one iteration for all members of the family, compiled as a whole."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.games.best_response import exploitability
from jaxagents.games.extensive_form import Game
from jaxagents.games.strategies import action_values, behavior_policy, normalize, realization_plan, sequence_values
from jaxagents.types import Array

_MEMORY = 0.9  # Decay of the moving mean of regrets.


class Moment(NamedTuple):
    """Quantities besides regrets that the functions of a method may use.

    Attributes:
        iteration: `[]`, number of the iteration, from 1.
        magnitude: `[I, 1]`, m, the largest `|r(a)|` in every information set.
        volatility: `[I, 1]`, `e <- 0.1 m + 0.9 e`, initially m.
    """

    iteration: Array
    magnitude: Array
    volatility: Array


class Method(NamedTuple):
    """A member of the family, with one function per slot.

    Each function is a `jax.tree_util.Partial`, whose numbers are arrays in a compiled program.

    Attributes:
        accumulate: `(regret R [I, A], instant r [I, A], moment) -> R` after this iteration.
        predict: `(R after this iteration, r, moment) -> P [I, A]`, regrets expected after the next one.
        exponent: p; the next policy is `max(0, P(a))^p`, normalised, uniform if all are 0.
        weight: `(moment) -> [] or [I, 1]`, weight of this iteration's policy in the average.
    """

    accumulate: Callable[[Array, Array, Moment], Array]
    predict: Callable[[Array, Array, Moment], Array]
    exponent: Array | float
    weight: Callable[[Moment], Array]


@struct.dataclass
class SeatState:
    """Memory of a player.

    Attributes:
        regret: `[I, A]`, accumulated regrets R.
        policy: `[I, A]`, current policy.
        plan: `[1 + I A]`, realization plan of the policy.
        average: `[1 + I A]`, weighted sum of the plans so far.
        volatility: `[I, 1]`.
    """

    regret: Array
    policy: Array
    plan: Array
    average: Array
    volatility: Array


@struct.dataclass
class CfrState:
    """State of the method.

    Attributes:
        iteration: int32, number of finished iterations.
        seats: seats of the players.
    """

    iteration: Array
    seats: tuple[SeatState, ...]


class Solver(NamedTuple):
    """An equilibrium solver, as pure functions.

    Attributes:
        init: `() -> state`.
        update: `(state) -> state`.
        profile: `(state) -> policies` that the method returns as its result.
    """

    init: Callable[[], CfrState]
    update: Callable[[CfrState], CfrState]
    profile: Callable[[CfrState], tuple[Array, ...]]


def make_cfr(game: Game, method: Method) -> Solver:
    """Makes a solver that minimises counterfactual regrets in every information set.

    An iteration updates the players in turn, each against the newest policies of the others:
    `r(i, a) = Q(i, a) - sum_b policy(b | i) Q(i, b)`, with values Q that leave the player's own reach out.

    Args:
        game: compiled game.
        method: see `cfr_methods`.

    Returns:
        The solver; `profile` is the weighted average of the policies of all iterations, computed from their plans.

    References:
        Zinkevich et al. (2007), "Regret Minimization in Games with Incomplete Information", equations 5 to 8. Tammelin
        et al. (2015), "Solving Heads-up Limit Texas Hold'em" (players in turn).
    """

    def init() -> CfrState:
        seats = []
        for seat in game.seats:
            zeros = jnp.zeros(seat.mask.shape)
            policy = normalize(seat, zeros)
            plan = realization_plan(seat, policy)
            seats.append(SeatState(zeros, policy, plan, jnp.zeros_like(plan), zeros[:, :1]))
        return CfrState(iteration=jnp.zeros((), jnp.int32), seats=tuple(seats))

    def update(state: CfrState) -> CfrState:
        iteration, seats = state.iteration + 1, list(state.seats)
        for player in range(game.num_players):
            values = sequence_values(game, player, [seat.plan for seat in seats])
            seats[player] = _update_seat(game, method, player, seats[player], values, iteration)
        return CfrState(iteration=iteration, seats=tuple(seats))

    def profile(state: CfrState) -> tuple[Array, ...]:
        return tuple(behavior_policy(seat, own.average) for seat, own in zip(game.seats, state.seats))

    return Solver(init, update, profile)


def _update_seat(game: Game, method: Method, player: int, own: SeatState, values: Array, iteration: Array) -> SeatState:
    seat = game.seats[player]
    worth, _ = action_values(seat, values, own.policy)
    instant = jnp.where(seat.mask, worth - jnp.sum(own.policy * worth, axis=1, keepdims=True), 0.0)
    magnitude = jnp.max(jnp.abs(instant), axis=1, keepdims=True)
    remembered = jnp.where(iteration == 1, magnitude, own.volatility)
    volatility = (1.0 - _MEMORY) * magnitude + _MEMORY * remembered
    moment = Moment(iteration.astype(worth.dtype), magnitude, volatility)
    regret = method.accumulate(own.regret, instant, moment)
    prediction = method.predict(regret, instant, moment)
    policy = normalize(seat, jnp.maximum(prediction, 0.0) ** method.exponent)
    weight = jnp.broadcast_to(method.weight(moment), seat.mask.shape).reshape(-1)
    return SeatState(
        regret=regret,
        policy=policy,
        plan=realization_plan(seat, policy),
        average=own.average.at[1:].add(weight * own.plan[1:]),
        volatility=volatility,
    )


@partial(jax.jit, static_argnames=("num_iterations", "evaluate_every"))
def solve(
    game: Game, method: Method, *, num_iterations: int = 1000, evaluate_every: int | None = None
) -> tuple[tuple[Array, ...], Array]:
    """Runs a method in one compiled program, in the precision of the caller: `with jax.enable_x64():` for float64.

    Args:
        game: compiled game.
        method: see `cfr_methods`.
        num_iterations: number of iterations.
        evaluate_every: number of iterations between evaluations of the average; None: evaluates only after the last
            one.

    Returns:
        `(average profile, exploitability after every evaluate_every iterations)`.

    Raises:
        ValueError: the number of iterations is not a multiple of `evaluate_every`, or is zero.
    """
    every = num_iterations if evaluate_every is None else evaluate_every
    if num_iterations < 1 or every < 1 or num_iterations % every:
        raise ValueError(
            f"`num_iterations` must be a positive multiple of `evaluate_every`, got {num_iterations} and {every}."
        )
    solver = make_cfr(game, method)

    def stretch(state: CfrState, _: None) -> tuple[CfrState, Array]:
        state = jax.lax.fori_loop(0, every, lambda _, state: solver.update(state), state)
        return state, exploitability(game, solver.profile(state))

    state, curve = jax.lax.scan(stretch, solver.init(), None, length=num_iterations // every)
    return solver.profile(state), curve

"""Repeated trials of the same task within one episode, after failures."""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp

from jaxagents.environments.text.lines import with_lines
from jaxagents.environments.text.splits import as_integers, leaves_without_level
from jaxagents.environments.text.texts import Text, number, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.environments.timesteps import select
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, State, Task


def with_retries(
    world: World,
    *,
    num_trials: int,
    show_last: bool = True,
    reflection_words: int = 0,
    words: Sequence[str] | None = None,
) -> World:
    """Restarts a task, from the same state, after a trial that failed or used all of its turns.

    Observations begin with `try 1`; the first one of a later trial repeats the end of the previous one, `before ...`.
    With reflections, the first turn of a later trial asks for one by `note ?`; the answer, `note <words>`, is shown in
    all later observations, until the next reflection replaces it.

    The episode ends with the first success, or with the last trial. The rewards of trials add up; progress is that of
    the current trial, and at least the best final progress of the earlier ones. `info["metrics"]["trials"]` counts the
    trials.

    Args:
        world: rules with one seat.
        num_trials: maximum number of trials, 2 to 9.
        show_last: whether the end of the previous trial is repeated.
        reflection_words: maximum words of a reflection; 0: no reflections.
        words: possible words of a reflection; None: those of the actions.

    Returns:
        The rules, with as many turns as all trials and reflections need.

    Raises:
        ValueError: a number is out of its range, or there is more than one seat.

    References:
        Shinn et al. (2023), Reflexion, section 3; Yao et al. (2024), Retroformer, section 4.
    """
    require_positive("num_trials", num_trials)
    if not 2 <= num_trials <= 9:
        raise ValueError(f"`num_trials` must be from 2 to 9, got {num_trials}.")
    if reflection_words < 0:
        raise ValueError(f"`reflection_words` must not be negative, got {reflection_words}; try 4.")
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat to be retried, got {world.num_seats} in {world.name!r}.")
    trials = _with_trials(world, num_trials, show_last)
    if not reflection_words:
        return trials
    return with_lines(
        trials,
        "note",
        lambda turns, before, after: after["trial"] > before["trial"],
        extra_turns=num_trials - 1,
        max_words=reflection_words,
        words=words,
    )


def _with_trials(world: World, num_trials: int, show_last: bool) -> World:
    outer, situation_of = with_inner_state(world), world.situation or leaves_without_level

    def failed(state: State) -> Array:
        """Returns whether a trial is over, or has used all of its turns, without success."""
        outcome = world.status(state["inner"])
        return ~(outcome.success & outcome.over) & (outcome.over | (state["turns"] >= state["limit"]))

    def after_turn(state: State) -> State:
        state = {**state, "turns": state["turns"] + 1}
        outcome = world.status(state["inner"])
        again = {**state, "inner": state["first"], "trial": state["trial"] + 1, "turns": jnp.int32(0)}
        again |= {"last": state["inner"]} if show_last else {}
        again |= {} if outcome.payoff is None else {"earned": state["earned"] + outcome.payoff}
        again |= {} if outcome.progress is None else {"best": _best(state, outcome)}
        return select(failed(state) & (state["trial"] + 1 < num_trials), again, state)

    def start(key: Array, task: Task) -> State:
        first, limit = world.start(key, task), world.max_steps if world.limit is None else world.limit(task)
        outcome = world.status(first)
        state = {"inner": first, "first": first, "trial": jnp.int32(0), "turns": jnp.int32(0)}
        state |= {"limit": jnp.asarray(limit, jnp.int32)} | ({"last": first} if show_last else {})
        state |= {} if outcome.payoff is None else {"earned": jnp.zeros(1)}
        return state | ({} if outcome.progress is None else {"best": jnp.full((), -jnp.inf)})

    def status(state: State) -> Status:
        outcome = world.status(state["inner"])
        return Status(
            success=outcome.success,
            over=jnp.where(state["trial"] + 1 < num_trials, outcome.over, outcome.over | failed(state)),
            payoff=None if outcome.payoff is None else state["earned"] + outcome.payoff,
            progress=None if outcome.progress is None else _best(state, outcome),
            parts={**outcome.parts, "trials": (state["trial"] + 1).astype(jnp.float32)},
        )

    def begins(state: State) -> Array:
        return (state["trial"] > 0) & (state["turns"] == 0)

    def tell(state: State, seat: Array) -> Text:
        before = when(begins(state), text("before", world.tell(state["last"], seat))) if show_last else None
        return text("try", number(state["trial"] + 1, 1), before, outer.tell(state, seat))

    def situation(state: State) -> list:
        last = (
            [jnp.where(begins(state), leaf, 0) for leaf in as_integers(situation_of(state["last"]))]
            if show_last
            else []
        )
        return [situation_of(state["inner"]), state["trial"], begins(state), last]

    def skip(state: State) -> State:
        return after_turn(state if world.skip is None else outer.skip(state))

    limit = world.limit
    return replace(
        outer,
        max_steps=num_trials * world.max_steps,
        limit=None if limit is None else lambda task: num_trials * limit(task),
        start=start,
        play=lambda key, state, verb, args: after_turn(outer.play(key, state, verb, args)),
        skip=skip,
        status=status,
        tell=tell,
        situation=situation,
    )


def _best(state: State, outcome: Status) -> Array:
    return jnp.maximum(state["best"], jnp.asarray(outcome.progress, jnp.float32))

"""Rewards for calls: every action is graded by comparison with the expert's."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.ops.call_grades import Call
from jaxagents.types import Array, State, Task

Grade = Callable[[Call, Call, Array], Array]
"""`(predicted, right, read bool []) -> float32 []`, see `ops.call_grades`."""


def with_call_grades(
    world: World,
    *,
    grade: Grade,
    average: bool = True,
    exists: Callable[[State, Call], Array] | None = None,
) -> World:
    """Makes grades of actions the progress of a world; `reward=dense` pays its increase.

    Args:
        world: rules with one seat.
        grade: grade of an action, compared with the expert's in the same state.
        average: whether progress is the mean grade of the turns, which is then the return of an episode; False:
            progress is the sum of the grades, and each turn earns its own.
        exists: `(state, call) -> bool []`, whether there is such a tool; other calls count as not understood. None: all
            exist.

    Returns:
        The rules with this progress, and without payoffs; the part `grade` is the mean.

    Raises:
        ValueError: the world has several seats.
    """
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat to be graded, got {world.num_seats} in {world.name!r}.")
    outer = with_inner_state(world)

    def graded(state: State, call: Call, read: Array) -> State:
        verb, args, _ = world.expert(jax.random.key(0), state["inner"])
        earned = grade(call, Call(jnp.asarray(verb), args), read)
        return {**state, "total": state["total"] + earned, "turns": state["turns"] + 1.0}

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        call = Call(jnp.asarray(verb), args)
        there = jnp.ones((), bool) if exists is None else exists(state["inner"], call)
        return outer.play(key, graded(state, call, there), verb, args)

    def skip(state: State) -> State:
        nothing = Call(jnp.int32(-1), jnp.full((world.grammar.max_args, world.grammar.max_length), -1, jnp.int32))
        following = graded(state, nothing, jnp.zeros((), bool))
        return following if world.skip is None else {**following, "inner": world.skip(state["inner"])}

    def start(key: Array, task: Task) -> State:
        return {"inner": world.start(key, task), "total": jnp.zeros(()), "turns": jnp.zeros(())}

    def status(state: State) -> Status:
        judged = world.status(state["inner"])
        mean = state["total"] / jnp.maximum(state["turns"], 1.0)
        return judged.replace(
            progress=mean if average else state["total"], payoff=None, parts={**judged.parts, "grade": mean}
        )

    return replace(outer, start=start, play=play, skip=skip, status=status)

"""Hints that only some tasks give: episodes are played under them and learned without."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp

from jaxagents.environments.text.texts import Text, text, when
from jaxagents.environments.text.world import World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.types import Array, State


def with_hints(world: World, *, write: Callable[[World, State], Text], cue: str = "hint") -> World:
    """Puts a hint in front of every observation of tasks that give one: `hint <hint> .`

    The task is `{"inner": task, "hint": bool, "level": int32}`. No task that is drawn gives a hint; whoever wants one
    sets `task["hint"]`, such as `language.hints`. It is the same task with and without.

    Args:
        world: the rules.
        write: `(world, state) -> Text`, such as `procedures.procedure` or `notes.expert_action`.
        cue: first word.

    Returns:
        The rules.
    """
    outer = with_inner_state(with_inner_task(world, hint=jnp.zeros((), bool)))

    def tell(state: State, seat: Array) -> Text:
        hint = text(cue, write(world, state["inner"]), ".")
        return text(when(state["hint"], hint), outer.tell(state, seat))

    return replace(
        outer,
        start=lambda key, task: {"inner": world.start(key, task["inner"]), "hint": task["hint"]},
        situation=lambda state: (state["hint"], outer.situation(state)),
        tell=tell,
    )

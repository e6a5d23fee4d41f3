"""Hints that only some tasks give: episodes are played under them and learned without."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Text, text, when
from jaxagents.environments.text.world import World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, State, Task

_HINT = 7  # Of the keys of tasks, the stream that decides whether they give hints.


def with_hints(world: World, *, write: Callable[[World, State], Text], cue: str = "hint", share: float = 0.0) -> World:
    """Puts a hint in front of every observation of tasks that give one: `hint <hint> .`

    The task is `{"inner": task, "hint": bool, "level": int32}`. It is the same task with and without; whoever wants a
    hint sets `task["hint"]`, such as `language.hints`. A policy understands hints if it was trained on some: `share` is
    for the transcripts that it starts from.

    Args:
        world: the rules.
        write: `(world, state) -> Text`, such as `procedures.procedure` or `notes.expert_action`.
        cue: first word.
        share: of the tasks that are drawn, which give a hint, in [0, 1].

    Returns:
        The rules.

    Raises:
        ValueError: `share` is no share.
    """
    require_between("share", share, 0.0, 1.0)
    outer = with_inner_state(with_inner_task(world, hint=jnp.zeros((), bool)))

    def sample(key: Array, level: Array) -> Task:
        # Folded twice: `fold_in(key, i)` is what `split(key, n)[i]` gives the world.
        hint = jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(key, _HINT), _HINT), share)
        return outer.sample(key, level) | {"hint": hint}

    def tell(state: State, seat: Array) -> Text:
        hint = text(cue, write(world, state["inner"]), ".")
        return text(when(state["hint"], hint), outer.tell(state, seat))

    return replace(
        outer,
        sample=sample if share else outer.sample,
        start=lambda key, task: {"inner": world.start(key, task["inner"]), "hint": task["hint"]},
        situation=lambda state: (state["hint"], outer.situation(state)),
        tell=tell,
    )

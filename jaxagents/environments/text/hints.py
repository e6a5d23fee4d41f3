"""Hints that only some tasks give: episodes are played with hints and learned without."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Text, text, when
from jaxagents.environments.text.world import World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, State, Task

_HINT = 7  # Random stream, of the tasks' keys, that decides whether they give hints.


def with_hints(world: World, *, write: Callable[[World, State], Text], cue: str = "hint", share: float = 0.0) -> World:
    """Prepends a hint to every observation of tasks that give one: `hint <hint> .`

    The task is `{"inner": task, "hint": bool, "level": int32}`; it is the same with and without a hint. Code that wants
    a hint sets `task["hint"]`, such as `language.hints`. A policy understands hints only if it was trained on some:
    `share` serves the transcripts from which it starts.

    Args:
        world: rules of the world.
        write: `(world, state) -> Text`, such as `procedures.procedure` or `notes.expert_action`.
        cue: first word of the hint.
        share: share of the drawn tasks that give a hint, in [0, 1].

    Returns:
        The rules.

    Raises:
        ValueError: `share` is not in [0, 1].
    """
    require_between("share", share, 0.0, 1.0)
    outer = with_inner_state(with_inner_task(world, hint=jnp.zeros((), bool)))

    def sample(key: Array, level: Array) -> Task:
        # Folded twice, since `fold_in(key, i)` is what `split(key, n)[i]` gives the world.
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

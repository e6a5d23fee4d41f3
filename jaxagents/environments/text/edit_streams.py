"""Streams of edits in words: an operation is replaced wherever it occurs in a program; what is the next edit?"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.code import OPERATIONS
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

HISTORY = 3
"""Most edits that are shown."""


@struct.dataclass
class EditState:
    """Prediction of the next edit: place and operation, int32, -1 before the action."""

    task: Task
    place: Array
    operation: Array


def make_environment(lengths: Sequence[int] = (4, 6, 8), *, history: int = HISTORY, **options: Any) -> Environment:
    """Makes a world of edits, one action each.

    Somebody goes through a program and replaces one operation by another one wherever it occurs. The observation shows
    the last edits and the current program: `1 dup to mul 3 dup to mul in mul add mul dup dup mul`. The next edit is
    `edit 4 mul`. Without the edits, nothing shows which operation replaces which.

    `info["metrics"]` grades `place` and `operation`.

    Args:
        lengths: lengths of programs, one per level, even, from 4 to 8. Half of the places are edited, one after the
            other.
        history: maximum number of edits that are shown, 0 to 3.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: lengths or numbers of edits are out of their range.

    References:
        Lu, Huo, Zhang, Li and Lyu (2025), Next Edit Prediction.
    """
    lengths = tuple(lengths)
    if not lengths or any(one not in (4, 6, 8) for one in lengths) or not 0 <= history <= HISTORY:
        raise ValueError(f"`lengths` must be 4, 6 or 8 and `history` 0 to {HISTORY}, got {lengths} and {history}.")
    grammar = make_grammar(
        "edit {place} {operation}", place=tuple(map(str, range(1, max(lengths) + 1))), operation=OPERATIONS
    )
    nothing = jnp.int32(-1)
    world = World(
        name="edit_streams",
        grammar=grammar,
        max_steps=1,
        num_levels=len(lengths),
        sample=partial(sample, lengths),
        identity=lambda task: (task["program"], task["places"], task["old"], task["new"]),
        start=lambda key, task: EditState(task=task, place=nothing, operation=nothing),
        play=lambda key, state, verb, args: state.replace(place=args[0, 0], operation=args[1, 0]),
        status=status,
        tell=partial(tell, history),
        expert=lambda key, state: (jnp.int32(0), grammar.args(following(state.task), state.task["new"]), None),
    )
    return make_text_world(world, **options)


def sample(lengths: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws a program, the edited places in order, int32 `[L / 2]`, -1 for none, and how many edits were made."""
    name_key, program_key, place_key, done_key = jax.random.split(key, 4)
    most, length = max(lengths), jnp.asarray(lengths)[level]
    old, new = draw_distinct(name_key, jnp.ones(len(OPERATIONS), bool), 2)
    other = jax.random.randint(program_key, (most,), 0, len(OPERATIONS) - 1)
    index, there = np.arange(most), jnp.arange(most) < length
    order = jnp.argsort(jnp.where(there, jax.random.uniform(place_key, (most,)), 2.0))
    edited = jnp.zeros(most, bool).at[order].set(index < length // 2)
    (places,) = jnp.nonzero(edited, size=most // 2, fill_value=-1)
    done = jax.random.randint(done_key, (), 1, length // 2)
    program = jnp.where(edited, old, other + (other >= old))
    program = jnp.where(there, program, -1).astype(jnp.int32)
    return {"program": program, "places": places, "old": old, "new": new, "done": done, "level": level}


def following(task: Task) -> Array:
    """Returns the place of the next edit, int32 `[]`."""
    return task["places"][task["done"]]


def status(state: EditState) -> Status:
    """Grades an edit."""
    task, over = state.task, state.place >= 0
    place, operation = state.place == following(task), state.operation == task["new"]
    parts = {"place": (over & place).astype(jnp.float32), "operation": (over & operation).astype(jnp.float32)}
    return Status(success=over & place & operation, over=over, progress=sum(parts.values()) / 2, parts=parts)


def tell(history: int, state: EditState, seat: Array) -> Text:
    """Describes the last edits, and the program after them."""
    del seat
    task, done = state.task, state.task["done"]
    edit = text(pick(OPERATIONS, task["old"]), "to", pick(OPERATIONS, task["new"]))
    edits = []
    for ago in range(min(history, len(task["places"])), 0, -1):
        place = task["places"][jnp.maximum(done - ago, 0)] + 1
        edits.append(when(done >= ago, text(number(place, 1), edit)))
    edited = jnp.where(jnp.arange(len(task["places"])) < done, task["places"], -1)
    changed = edited[:, None] == jnp.arange(len(task["program"]))[None]
    program = jnp.where(jnp.any(changed, axis=0), task["new"], task["program"])
    return text(*edits, "in", pick(OPERATIONS, program))

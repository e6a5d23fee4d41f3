"""Choices of an algorithm as functions whose numbers are arrays: a changed number is the same program.

A choice is a function, or a `Remembering` where it needs a memory between updates.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.types import Array, PyTree, Remembering

Numbers = dict[str, Array]
Slot = Callable[..., Any] | Remembering


def numbers_of(slots: Mapping[str, Slot]) -> dict[str, Numbers]:
    """Returns the keywords of slots that are floats or lists of floats, by slot, as float32 arrays.

    Only a `functools.partial` has keywords, be it the slot or what a `Remembering` applies.
    """
    slots = {name: slot for name, slot in slots.items() if slot is not None}
    functions = {name: slot.apply if isinstance(slot, Remembering) else slot for name, slot in slots.items()}
    return {
        name: {key: _to_array(value) for key, value in function.keywords.items() if _is_number(value)}
        for name, function in functions.items()
        if isinstance(function, partial)
    }


def with_numbers(slots: Mapping[str, Slot], numbers: Mapping[str, Numbers]) -> dict[str, Callable[..., Any]]:
    """Returns slots without memory that take the numbers of a state, by name; those that are None are left out."""
    return {name: partial(slot, **numbers.get(name, {})) for name, slot in slots.items() if slot is not None}


def memory_of(slots: Mapping[str, Slot], num_updates: int) -> dict[str, PyTree]:
    """Returns what the slots that remember something start with, by slot."""
    return {name: slot.init(num_updates) for name, slot in slots.items() if isinstance(slot, Remembering)}


def bind(
    slots: Mapping[str, Slot], numbers: Mapping[str, Numbers], memory: Mapping[str, PyTree] | None = None
) -> dict[str, Callable[..., tuple[Any, dict[str, PyTree]]]]:
    """Binds slots to their numbers and memories.

    Args:
        slots: by name.
        numbers: in place of their keywords.
        memory: of the slots that have one.

    Returns:
        By name, functions that return what the slot returns, and `{name: summary}` for the memory, empty without one.
    """
    memory = {} if memory is None else memory

    def call(name: str, *arguments: Any, **keywords: Any) -> tuple[Any, dict[str, PyTree]]:
        slot, keywords = slots[name], numbers.get(name, {}) | keywords
        if not isinstance(slot, Remembering):
            return slot(*arguments, **keywords), {}
        result, summary = slot.apply(memory[name], *arguments, **keywords)
        return result, {name: summary}

    return {name: partial(call, name) for name in slots}


def remember(
    slots: Mapping[str, Slot],
    memory: Mapping[str, PyTree],
    summaries: Mapping[str, PyTree],
    *,
    axis_name: str | None = None,
) -> dict[str, PyTree]:
    """Returns the memories after an update.

    Args:
        slots: by name.
        memory: before the update, by slot.
        summaries: of the update, by slot, of this device.
        axis_name: mapped device axis to add summaries over.
    """
    if axis_name is not None:
        summaries = jax.lax.psum(summaries, axis_name)
    return {name: slots[name].update(before, summaries[name]) for name, before in memory.items()}


def _is_number(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0 and all(isinstance(entry, float) for entry in value)
    return isinstance(value, float)


def _to_array(value: float | Sequence[float]) -> Array:
    return jnp.asarray(list(value) if isinstance(value, Sequence) else value, jnp.float32)

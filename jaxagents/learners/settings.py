"""Settings of a learner, its numbers and slots, as arrays in its state: changing a number needs no new compilation.

A slot is a function that is passed to a learner. Numbers and slots are `Stateful` if they need memory between updates:
a number then computes its current value (see `ops.schedules`), whether it belongs to the learner or is a keyword of a
slot.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, PyTree, Stateful

Numbers = dict[str, Array]
Slot = Callable[..., Any] | Stateful
Number = float | Stateful
Bound = Callable[..., tuple[Any, dict[str, PyTree]]]
"""A slot with its numbers and memory: returns what the slot does, and `{name: summary}` for the memory, or `{}`."""


@struct.dataclass
class SettingsState:
    """Arrays of the settings.

    Attributes:
        numbers: float32 by name; for a slot, its keywords that are floats or lists of floats.
        memory: memory of stateful numbers and slots, by name; for keywords of slots by `slot.keyword`.
    """

    numbers: dict[str, Any]
    memory: dict[str, PyTree]


class Settings(NamedTuple):
    """Numbers and slots of a learner.

    Attributes:
        init: `(num_updates of the run) -> SettingsState`.
        open: `(state) -> (current numbers, slots by name)`, at the beginning of an update.
        close: `(state, summaries of the slots, *, axis_name) -> state` for the next update; the summaries are those of
            this device.
    """

    init: Callable[[int], SettingsState]
    open: Callable[[SettingsState], tuple[Numbers, dict[str, Bound]]]
    close: Callable[..., SettingsState]


def make_settings(
    numbers: Mapping[str, Number | None] | None = None, slots: Mapping[str, Slot | None] | None = None
) -> Settings:
    """Makes the settings of a learner.

    Args:
        numbers: numbers by name; those that are None are left out.
        slots: slots by name, with names other than those of the numbers; those that are None are left out. The keywords
            of a `functools.partial`, whether it is the slot or what a `Stateful` applies, become numbers in the state.
    """
    numbers = {name: number for name, number in (numbers or {}).items() if number is not None}
    slots = {name: slot for name, slot in (slots or {}).items() if slot is not None}
    scheduled = {name: number for name, number in numbers.items() if isinstance(number, Stateful)}
    remembering = scheduled | {name: slot for name, slot in slots.items() if isinstance(slot, Stateful)}
    for name, slot in slots.items():
        remembering |= {f"{name}.{key}": number for key, number in _scheduled_keywords(slot).items()}

    def init(num_updates: int) -> SettingsState:
        plain = {name: jnp.float32(number) for name, number in numbers.items() if name not in scheduled}
        of_slots = {name: floats for name, slot in slots.items() if (floats := _arrays(_keywords(slot)))}
        memory = {name: one.init(num_updates) for name, one in remembering.items()}
        return SettingsState(numbers=plain | of_slots, memory=memory)

    def open(state: SettingsState) -> tuple[Numbers, dict[str, Bound]]:
        due = {name: number.apply(state.memory[name])[0] for name, number in scheduled.items()}
        plain = {name: state.numbers[name] for name in numbers if name not in scheduled}
        return plain | due, {name: partial(_call, name, slot, state) for name, slot in slots.items()}

    def close(
        state: SettingsState, summaries: Mapping[str, PyTree] | None = None, *, axis_name: str | None = None
    ) -> SettingsState:
        summaries = summaries or {}
        if axis_name is not None:
            summaries = jax.lax.psum(summaries, axis_name)
        memory = {name: one.update(state.memory[name], summaries.get(name, ())) for name, one in remembering.items()}
        return state.replace(memory=memory)

    return Settings(init=init, open=open, close=close)


def without_memory(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Bound]:
    """Returns functions in the form in which `Settings.open` returns slots."""
    return make_settings(slots=functions).open(SettingsState(numbers={}, memory={}))[1]


def named(bound: Mapping[str, Any], prefix: str) -> list[str]:
    """Returns the names of slots that begin with a prefix, in order."""
    return [name for name in bound if name.startswith(prefix)]


def _call(
    name: str, slot: Slot, state: SettingsState, *arguments: Any, **keywords: Any
) -> tuple[Any, dict[str, PyTree]]:
    scheduled = _scheduled_keywords(slot)
    scheduled = {key: number.apply(state.memory[f"{name}.{key}"])[0] for key, number in scheduled.items()}
    keywords = scheduled | state.numbers.get(name, {}) | keywords
    if not isinstance(slot, Stateful):
        return slot(*arguments, **keywords), {}
    result, summary = slot.apply(state.memory[name], *arguments, **keywords)
    return result, {name: summary}


def _keywords(slot: Slot) -> dict[str, Any]:
    function = slot.apply if isinstance(slot, Stateful) else slot
    return function.keywords if isinstance(function, partial) else {}


def _scheduled_keywords(slot: Slot) -> dict[str, Stateful]:
    return {key: number for key, number in _keywords(slot).items() if isinstance(number, Stateful)}


def _arrays(keywords: Mapping[str, Any]) -> Numbers:
    return {
        key: jnp.asarray(list(value) if isinstance(value, Sequence) else value, jnp.float32)
        for key, value in keywords.items()
        if _is_number(value)
    }


def _is_number(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0 and all(isinstance(entry, float) for entry in value)
    return isinstance(value, float)

"""Choices of an algorithm as functions whose numbers are arrays: a changed number is the same program.

A choice is a function, or a `Remembering` where it needs a memory between updates. So is a number: a float, or a
`Remembering` that says which number is due (see `ops.schedules`), be it a hyper-parameter or a keyword of a function.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.types import Array, Episode, EpisodeView, PyTree, Remembering

Numbers = dict[str, Array]
Slot = Callable[..., Any] | Remembering
Number = float | Remembering
Bound = Callable[..., tuple[Any, dict[str, PyTree]]]
"""A slot with its numbers and its memory, see `bind`."""


def numbers_of(slots: Mapping[str, Slot | None]) -> dict[str, Numbers]:
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


def arrays_of(hyperparameters: Mapping[str, Number | None]) -> Numbers:
    """Returns hyper-parameters as float32 arrays, by name; those that remember, or are None, are left out."""
    others = {name for name, value in hyperparameters.items() if value is None or isinstance(value, Remembering)}
    return {name: jnp.float32(value) for name, value in hyperparameters.items() if name not in others}


def numbers_due(
    hyperparameters: Mapping[str, Number | None], numbers: Numbers, memory: Mapping[str, PyTree]
) -> Numbers:
    """Returns the hyper-parameters of this update: the arrays of a state, and what those that remember say."""
    return dict(numbers) | {name: slot.apply(memory[name])[0] for name, slot in _remembering(hyperparameters).items()}


def memory_of(slots: Mapping[str, Any], num_updates: int) -> dict[str, PyTree]:
    """Returns what slots, their keywords and hyper-parameters that remember something start with.

    Args:
        slots: slots, numbers and None, by name.
        num_updates: of the run.

    Returns:
        The memories by slot; those of keywords by `slot.keyword`.
    """
    return {name: slot.init(num_updates) for name, slot in _remembering(slots).items()}


def bind(
    slots: Mapping[str, Slot | None], numbers: Mapping[str, Numbers], memory: Mapping[str, PyTree] | None = None
) -> dict[str, Bound]:
    """Binds slots to their numbers and memories.

    Args:
        slots: by name; those that are None are left out.
        numbers: in place of their keywords.
        memory: of the slots that have one.

    Returns:
        By name, functions that return what the slot returns, and `{name: summary}` for the memory, empty without one.
    """
    memory = {} if memory is None else memory
    slots = {name: slot for name, slot in slots.items() if slot is not None}

    def call(name: str, *arguments: Any, **keywords: Any) -> tuple[Any, dict[str, PyTree]]:
        slot, scheduled = slots[name], _remembering_keywords(slots[name])
        scheduled = {key: number.apply(memory[f"{name}.{key}"])[0] for key, number in scheduled.items()}
        keywords = scheduled | numbers.get(name, {}) | keywords
        if not isinstance(slot, Remembering):
            return slot(*arguments, **keywords), {}
        result, summary = slot.apply(memory[name], *arguments, **keywords)
        return result, {name: summary}

    return {name: partial(call, name) for name in slots}


def remember(
    slots: Mapping[str, Any],
    memory: Mapping[str, PyTree],
    summaries: Mapping[str, PyTree],
    *,
    axis_name: str | None = None,
) -> dict[str, PyTree]:
    """Returns the memories after an update.

    Args:
        slots: slots, numbers and None, by name.
        memory: before the update, by slot.
        summaries: of the update, by slot, of this device; none of numbers, which see nothing.
        axis_name: mapped device axis to add summaries over.
    """
    if axis_name is not None:
        summaries = jax.lax.psum(summaries, axis_name)
    remembering = _remembering(slots)
    return {name: remembering[name].update(before, summaries.get(name, ())) for name, before in memory.items()}


def fields_read(function: Callable[..., Any], *records: PyTree) -> tuple[frozenset[str], ...]:
    """Says which fields of records of arrays a function reads, by tracing it; it is not run.

    Args:
        function: `(*records) -> pytree`.
        *records: dataclasses whose fields are `ShapeDtypeStruct`s or arrays, or None.

    Returns:
        For every record, the names of the fields that enter a computation or the result.
    """
    read = paths_read(function, *records)
    return tuple(frozenset(path[1].name for path in read if path[0].idx == index) for index in range(len(records)))


def paths_read(function: Callable[..., Any], *arguments: PyTree) -> list[tuple[Any, ...]]:
    """Says which leaves of its arguments enter what a function computes or returns, by tracing it; it is not run.

    Args:
        function: `(*arguments) -> pytree`.
        *arguments: pytrees of `ShapeDtypeStruct`s or arrays.

    Returns:
        The key paths of these leaves in the tuple of the arguments, in order.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(arguments)[0]]
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    used = {id(var) for equation in jaxpr.eqns for var in equation.invars} | {id(var) for var in jaxpr.outvars}
    return [path for path, var in zip(paths, jaxpr.invars, strict=True) if id(var) in used]


def assign_credit(
    bound: Mapping[str, Bound], view: EpisodeView, axis_name: str | None
) -> tuple[Credit, Episode, dict[str, PyTree]]:
    """Runs rewards, filter, advantage and credits in this order.

    Args:
        bound: slots that were bound.
        view: of the episodes.
        axis_name: mapped device axis.

    Returns:
        The credit, the episodes with their new rewards and what is kept of them, and summaries for the memories.
    """
    summaries = {}

    def call(name: str, *arguments: Any) -> Any:
        result, summary = bound[name](*arguments, axis_name=axis_name)
        summaries.update(summary)
        return result

    for name in named(bound, "reward/"):
        view = view.replace(episode=view.episode.replace(reward=call(name, view)))
    view = view.replace(episode=view.episode.replace(keep=call("group_filter", view)))
    credit = call("advantage", view)
    for name in named(bound, "credit/"):
        credit = credit.replace(advantage=to_tokens(view.episode, call(name, view, credit.advantage)))
    return credit, view.episode, summaries


def named(bound: Mapping[str, Any], prefix: str) -> list[str]:
    """Returns the names of slots that begin with a prefix, in order."""
    return [name for name in bound if name.startswith(prefix)]


def _remembering(slots: Mapping[str, Slot | Number | None]) -> dict[str, Remembering]:
    """Returns the slots, and the keywords of slots, that remember something."""
    found = {name: slot for name, slot in slots.items() if isinstance(slot, Remembering)}
    for name, slot in slots.items():
        found |= {f"{name}.{key}": number for key, number in _remembering_keywords(slot).items()}
    return found


def _remembering_keywords(slot: Slot | Number | None) -> dict[str, Remembering]:
    function = slot.apply if isinstance(slot, Remembering) else slot
    keywords = function.keywords if isinstance(function, partial) else {}
    return {key: number for key, number in keywords.items() if isinstance(number, Remembering)}


def _is_number(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0 and all(isinstance(entry, float) for entry in value)
    return isinstance(value, float)


def _to_array(value: float | Sequence[float]) -> Array:
    return jnp.asarray(list(value) if isinstance(value, Sequence) else value, jnp.float32)

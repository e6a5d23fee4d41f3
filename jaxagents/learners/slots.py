"""Choices of an algorithm as functions whose numbers are arrays: a changed number is the same program."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp

from jaxagents.types import Array

Numbers = dict[str, Array]


def numbers_of(slots: Mapping[str, Callable[..., Any]]) -> dict[str, Numbers]:
    """Returns the float keywords of slots that are `functools.partial`s, by slot, as float32 arrays."""
    return {
        name: {key: jnp.float32(value) for key, value in slot.keywords.items() if isinstance(value, float)}
        for name, slot in slots.items()
        if isinstance(slot, partial)
    }


def bind(slots: Mapping[str, Callable[..., Any]], numbers: Mapping[str, Numbers]) -> dict[str, Callable[..., Any]]:
    """Returns the slots with `numbers` in place of their float keywords."""
    return {name: partial(slot, **numbers.get(name, {})) for name, slot in slots.items()}

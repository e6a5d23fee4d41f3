"""Words in front of observations: notes about the state, and names of seats."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Text, number, pick, quote, text
from jaxagents.environments.text.world import World
from jaxagents.types import State

Write = Callable[[World, State], Text]
"""Writes a note about a state; it knows the situation and nothing else, or equal situations look different."""


def with_notes(world: World, *, write: Write, cue: str = "note") -> World:
    """Puts a note about the state in front of every observation: `note <note> .`

    Args:
        world: the rules.
        write: `(world, state) -> Text`, such as `expert_action`.
        cue: first word.

    Returns:
        The rules.
    """
    return replace(world, tell=lambda state, seat: text(cue, write(world, state), ".", world.tell(state, seat)))


def with_names_of_seats(world: World) -> World:
    """Puts the name of the seat that an observation is for in front of it: `player 0 <observation>`.

    Args:
        world: the rules.

    Returns:
        The rules.
    """
    names = [f"player {number}" for number in range(world.num_seats)]
    return replace(world, tell=lambda state, seat: text(pick(names, seat), world.tell(state, seat)))


def expert_action(world: World, state: State) -> Text:
    """Writes what the expert would do, where one seat acts; it decides by a key of its own."""
    if world.num_seats > 1 and world.player is None:
        raise ValueError(f"`world` must ask one seat at a time, got all {world.num_seats} of {world.name!r} at once.")
    verb, args, _ = world.expert(jax.random.key(0), state)
    return quote(world.grammar.render(verb, args), world.grammar)


def steps_left(world: World, state: State, *, digits: int = 2) -> Text:
    """Writes the fewest actions to a success in digits; nothing where there is none left."""
    if world.distance is None:
        raise ValueError(f"`world` must know how far a success is, {world.name!r} does not; try another note.")
    distance = world.distance(state)
    return number(jnp.where(jnp.isfinite(distance), distance, -1.0).astype(jnp.int32), digits)

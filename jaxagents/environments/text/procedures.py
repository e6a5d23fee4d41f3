"""Procedures as notes: the sub-goals, step by step, from here to the end of the task."""

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Text, quote, text, when
from jaxagents.environments.text.world import World
from jaxagents.types import State


def procedure(world: World, state: State, *, num_steps: int = 7) -> Text:
    """Writes the sub-goals of the expert's path from here, in order; for `notes.with_notes(write=...)`.

    A sub-goal is the expert's thought before an action, or the action itself if it does not think aloud. A sub-goal of
    several successive actions is listed once, and finished ones are left out.

    Args:
        world: rules with one seat.
        state: current state.
        num_steps: maximum number of actions to look ahead.

    Returns:
        The text.

    Raises:
        ValueError: the world has several seats.

    References:
        Ding (2024), "MobileAgent: Enhancing Mobile Control via Human-Machine Interaction and SOP Integration".
    """
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat, got {world.num_seats} in {world.name!r}.")
    steps, before = [], None
    for _ in range(num_steps):
        over = world.status(state).over
        verb, args, thought = world.expert(jax.random.key(0), state)
        goal = quote(world.grammar.render(verb, args), world.grammar) if thought is None else thought
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(goal)]
        now = jnp.concatenate([leaf.astype(jnp.int32) for leaf in leaves]) if leaves else jnp.zeros(1, jnp.int32)
        steps.append(when(~over & (True if before is None else jnp.any(now != before)), goal))
        before, state = now, world.play(jax.random.key(0), state, verb, args)
    return text(*steps)

"""Shortest paths through quests, and the remaining distance from every state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.environments.contextual_gridworld import mark
from jaxagents.environments.quest import CHARGER, KEY_FIRST, TIMER, QuestState, treasure
from jaxagents.environments.quest_layouts import PATROL
from jaxagents.environments.text.grid import distances
from jaxagents.types import Array, Task


class Ways(NamedTuple):
    """Fewest steps between cells of one layout, float32 `[S, S]`, `inf` if there is no path.

    Attributes:
        to_treasure: `[PATROL + 1, S, S]`, to the cell this far to the right of the treasure's first cell, through the
            open door.
        past_door: to the treasure's first cell, while the door is locked.
        to_key: to the key, while the door is locked.
        to_charger: to the charger, if there is one.
    """

    to_treasure: Array
    past_door: Array
    to_key: Array
    to_charger: Array


def find_ways(task: Task) -> Ways:
    """Computes the shortest paths of a layout, once per task.

    Args:
        task: task of `quest.make_environment`.

    Returns:
        The numbers of steps.
    """
    size = task["walls"].shape[0]
    free = ~(task["walls"] | task["lava"])
    locked = free & ~mark(size, task["door"])

    def to(place: Array, free: Array) -> Array:
        return jnp.where(free, distances(mark(size, place), free), jnp.inf)

    places = jax.vmap(lambda offset: task["treasure"].at[1].add(offset))(jnp.arange(PATROL + 1))
    return Ways(
        to_treasure=jax.vmap(lambda place: to(place, free))(places),
        past_door=to(task["treasure"], locked),
        to_key=to(task["key"], locked),
        to_charger=to(task["charger"], free),
    )


def distance(ways: Ways, state: QuestState) -> Array:
    """Computes the fewest steps until the treasure pays in full; 0 in the step in which it does.

    Args:
        ways: paths for the task of the state.
        state: state of the quest, the `inner` state of the environment's.

    Returns:
        Float32 `[]`, `inf` if it never will. It may exceed the remaining steps.
    """
    task, wait = state.task, state.task["wait"]
    row, column = state.position

    def after(place: Array) -> Array:
        # A kind without the place has an infinite distance to it, whatever is read here.
        return ways.to_treasure[0, place[0], place[1]]

    direct, to_key = after(state.position), ways.to_key[row, column]
    with_key = to_key + after(task["key"])
    without = jnp.minimum(jnp.where(task["kind"] == KEY_FIRST, jnp.inf, ways.past_door[row, column]), with_key)
    fewest = jnp.where(state.has_key, direct, without)
    fewest = jnp.where(task["kind"] == TIMER, jnp.maximum(direct, wait - state.num_steps), fewest)
    to_charger = ways.to_charger[row, column]
    # The step onto the charger is the first step of the charge.
    charging = to_charger + (wait - state.charge) - (to_charger > 0.0) + after(task["charger"])
    fewest = jnp.where(task["kind"] == CHARGER, jnp.where(state.charge >= wait, direct, charging), fewest)
    return jnp.where(task["patrol"] > 0, _steps_to_meet(ways, state), fewest).astype(jnp.float32)


def _steps_to_meet(ways: Ways, state: QuestState) -> Array:
    """Computes the earliest time from now at which the agent can reach a moving treasure."""
    task, size = state.task, state.task["walls"].shape[0]
    times = jnp.arange(2 * size + 2 * PATROL)
    offsets = jax.vmap(lambda time: treasure(task, state.num_steps + time)[1])(times) - task["treasure"][1]
    steps = ways.to_treasure[offsets, state.position[0], state.position[1]]
    return jnp.min(jnp.where(steps <= times, times, jnp.inf))

"""Easier tasks of crafting, for curricula: what an achievement needs is given, and it is near."""

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.craft import ACHIEVEMENTS, ITEMS
from jaxagents.environments.craft_terrain import COAL, DIAMOND, GRASS, IRON, STONE, TREE, WATER
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grid import distances
from jaxagents.types import Array, Task

_NEAR = 4.0  # Steps.
# Of every achievement: wood, stone, coal, iron, diamond, the pickaxe, and the material that is near.
_GIVEN = {
    "collect_wood": (0, 0, 0, 0, 0, 0, TREE),
    "place_table": (1, 0, 0, 0, 0, 0, TREE),
    "make_wood_pickaxe": (2, 0, 0, 0, 0, 0, TREE),
    "collect_stone": (0, 0, 0, 0, 0, 1, STONE),
    "make_stone_pickaxe": (2, 1, 0, 0, 0, 1, STONE),
    "collect_coal": (0, 0, 0, 0, 0, 1, COAL),
    "place_furnace": (2, 1, 0, 0, 0, 2, STONE),
    "collect_iron": (0, 0, 0, 0, 0, 2, IRON),
    "make_iron_pickaxe": (2, 1, 1, 1, 0, 2, STONE),
    "collect_diamond": (0, 0, 0, 0, 0, 3, DIAMOND),
    "drink_water": (0, 0, 0, 0, 0, 0, WATER),
}


def ease(key: Array, task: Task, achievement: Array) -> Task:
    """Gives what one achievement needs besides the last deeds, and starts near the material that it is about.

    Tables and furnaces are not given, but what they are made of is. The start is a cell of grass at most four steps
    from the material, or the nearest one, through what the given pickaxe digs.

    Args:
        key: PRNG key, of the start.
        task: of `craft.make_environment`; land and goal stay.
        achievement: int32 `[]`, index into `ACHIEVEMENTS`.

    Returns:
        The task.

    References:
        Zala, Cho, Lin, Yoon and Bansal (2024), EnvGen: Generating and adapting environments via LLMs for training
        embodied agents, section 3.
    """
    given = jnp.asarray(np.asarray([_GIVEN[name] for name in ACHIEVEMENTS], np.int32))[achievement]
    pickaxe, material, terrain = given[len(ITEMS)], given[-1], task["terrain"]
    grass = terrain == GRASS
    digs = (pickaxe > 0) & ((terrain == STONE) | (terrain == COAL))
    steps = jnp.where(grass, distances(terrain == material, grass | digs), jnp.inf)
    near = steps <= jnp.maximum(_NEAR, jnp.min(steps))
    cell = choose(key, near.reshape(-1))
    start = jnp.stack(jnp.divmod(cell, terrain.shape[1])).astype(jnp.int32)
    return task | {"inventory": given[: len(ITEMS)], "pickaxe": pickaxe, "start": start}

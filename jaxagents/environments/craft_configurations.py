"""Lands of crafting made for an achievement, whose requirements are met and whose materials are nearby."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.craft import ACHIEVEMENTS, ITEMS, MOST, SIGHT
from jaxagents.environments.craft_terrain import COAL, DIAMOND, FURNACE, GRASS, IRON, STONE, TABLE, TREE, WATER
from jaxagents.environments.text.experts import choose
from jaxagents.types import Array, Environment, Task


class _Needs(NamedTuple):
    """What is needed to reach an achievement at once: a pickaxe, items, and materials in sight."""

    pickaxe: int = 0
    items: dict[str, int] = {}
    near: tuple[int, ...] = ()


_NEEDS = {
    "collect_wood": _Needs(near=(TREE,)),
    "place_table": _Needs(items={"wood": 1}),
    "make_wood_pickaxe": _Needs(items={"wood": 1}, near=(TABLE,)),
    "collect_stone": _Needs(pickaxe=1, near=(STONE,)),
    "make_stone_pickaxe": _Needs(pickaxe=1, items={"wood": 1, "stone": 1}, near=(TABLE,)),
    "collect_coal": _Needs(pickaxe=1, near=(COAL,)),
    "place_furnace": _Needs(items={"stone": 1}, near=(TABLE,)),
    "collect_iron": _Needs(pickaxe=2, near=(IRON,)),
    "make_iron_pickaxe": _Needs(pickaxe=2, items={"wood": 1, "coal": 1, "iron": 1}, near=(TABLE, FURNACE)),
    "collect_diamond": _Needs(pickaxe=3, near=(DIAMOND,)),
    "drink_water": _Needs(near=(WATER,)),
}
_PICKAXES = np.asarray([_NEEDS[name].pickaxe for name in ACHIEVEMENTS])
_INVENTORIES = np.asarray([[_NEEDS[name].items.get(item, 0) for item in ITEMS] for name in ACHIEVEMENTS])
_NEAR = np.asarray([(*_NEEDS[name].near, GRASS, GRASS)[:2] for name in ACHIEVEMENTS])
"""Materials by achievement, `[11, 2]`; grass where there is none."""


def prepare(key: Array, task: Task, achievement: Array) -> Task:
    """Makes a land in which one achievement does not depend on others.

    The agent has the required pickaxe and items, in addition to what it had, and the required materials lie on grass in
    sight of the start.

    Args:
        key: PRNG key for the cells.
        task: task of `craft.make_environment`.
        achievement: int32 `[]`, index into `craft.ACHIEVEMENTS`.

    Returns:
        The task. If no grass is in sight except under the agent, nothing is placed.
    """
    inventory = task["inventory"] + jnp.asarray(_INVENTORIES, jnp.int32)[achievement]
    pickaxe = jnp.maximum(task["pickaxe"], jnp.asarray(_PICKAXES, jnp.int32)[achievement])
    terrain = task["terrain"]
    for index in range(_NEAR.shape[1]):
        terrain = _put(jax.random.fold_in(key, index), terrain, task["start"], jnp.asarray(_NEAR)[achievement, index])
    return task | {"terrain": terrain, "inventory": jnp.minimum(inventory, MOST), "pickaxe": pickaxe}


def prepared(environment: Environment, achievements: Sequence[str]) -> Environment:
    """Makes an environment with lands for some achievements, one of them drawn uniformly for every task.

    Args:
        environment: environment of `craft.make_environment`.
        achievements: some of `craft.ACHIEVEMENTS`; a repeated one is drawn more often.

    Returns:
        The environment; all else is unchanged, so that training in it can continue in the original one.

    Raises:
        ValueError: there are no achievements, or unknown ones, or it is another environment.

    References:
        Zala et al. (2024), EnvGen: Generating and adapting environments via LLMs for training embodied agents, section
        2 (worlds that differ in terrain, in what lies near, and in what the agent starts with).

    Deviation: a table of requirements determines the worlds, in place of a language model.
    """
    if environment.name != "craft":
        raise ValueError(f"`environment` must be the world of crafting, got {environment.name!r}; try craft.")
    unknown = [name for name in achievements if name not in ACHIEVEMENTS]
    if unknown or not achievements:
        got = f"{unknown[0]!r}" if unknown else "none"
        raise ValueError(f"`achievements` must be some of {', '.join(ACHIEVEMENTS)}, got {got}.")
    indices = jnp.asarray([ACHIEVEMENTS.index(name) for name in achievements], jnp.int32)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        land_key, choice_key, put_key = jax.random.split(key, 3)
        choice = jax.random.randint(choice_key, (), 0, len(achievements))
        return prepare(put_key, environment.sample_task(land_key, level), indices[choice])

    return replace(environment, sample_task=sample_task)


def _put(key: Array, terrain: Array, start: Array, material: Array) -> Array:
    """Places a material, unless it is grass, on a cell of grass in sight of the start."""
    size = terrain.shape[0]
    rows, columns = jnp.arange(size)[:, None], jnp.arange(size)[None]
    away = jnp.maximum(jnp.abs(rows - start[0]), jnp.abs(columns - start[1]))
    free = ((terrain == GRASS) & (away >= 1) & (away <= SIGHT)).reshape(-1)
    cell = choose(key, free)
    found = jnp.any(free) & (material != GRASS)
    return jnp.where(found & (jnp.arange(size * size) == cell).reshape(size, size), material, terrain).astype(jnp.int32)

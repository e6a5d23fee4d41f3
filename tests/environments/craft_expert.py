"""An expert of the world of crafting: what is missing next, and the way there."""

import jax.numpy as jnp

from jaxagents.environments.contextual_gridworld import MOVES
from jaxagents.environments.craft import (
    ACHIEVEMENTS,
    INTERACT,
    MAKE_PICKAXE,
    PLACE_FURNACE,
    PLACE_TABLE,
    STAY,
    CraftState,
    view,
)
from jaxagents.environments.craft_terrain import COAL, DIAMOND, FURNACE, GRASS, IRON, STONE, TABLE, TREE, WATER
from jaxagents.environments.text.experts import first_rule
from jaxagents.environments.text.grid import distances
from jaxagents.types import Array

_SITE, _HERE = 100, 101  # In place of a material: a cell that may be built on; where the agent is.


def expert(state: CraftState) -> Array:
    """Chooses the next action towards the goal, or everything; it digs and builds so that nothing is cut off.

    Args:
        state: `inner` of the environment's, of a land of `sample_land`.

    Returns:
        int32 `[]`.
    """
    material, deed = _next_deed(state)
    terrain = state.terrain
    target = jnp.where(material == _SITE, _sites(terrain), terrain == material)
    digs = (state.pickaxe > 0) & ((terrain == STONE) | (terrain == COAL))
    free = (terrain == GRASS) | digs
    around = jnp.pad(jnp.where(free | target, distances(target, free), jnp.inf), 1, constant_values=jnp.inf)
    rows, columns = (state.position[None] + 1 + jnp.asarray(MOVES)).T
    side = jnp.argmin(around[rows, columns]).astype(jnp.int32)
    ahead = state.position + jnp.asarray(MOVES)[side]
    arrived = target[ahead[0], ahead[1]]
    walks = jnp.where(terrain[ahead[0], ahead[1]] == GRASS, side, INTERACT)
    action = jnp.where(state.facing != side, side, jnp.where(arrived, deed, walks))
    return jnp.where(material == _HERE, deed, action).astype(jnp.int32)


def _next_deed(state: CraftState) -> tuple[Array, Array]:
    """Returns the material to go to, and what to do there."""
    wood, stone, coal, iron, _ = state.inventory
    pickaxe, goal, achieved = state.pickaxe, state.task["goal"], state.achieved
    seen = view(state)
    table, furnace = (jnp.any(state.terrain == material) for material in (TABLE, FURNACE))
    sees_table, sees_furnace = (jnp.any(seen == material) for material in (TABLE, FURNACE))
    makes = (jnp.int32(_HERE), jnp.int32(MAKE_PICKAXE))

    def to(material: int, deed: int = INTERACT) -> tuple[Array, Array]:
        return jnp.int32(material), jnp.int32(deed)

    def wants(name: str) -> Array:
        return goal == ACHIEVEMENTS.index(name)

    stones = ((pickaxe == 1) | ((pickaxe == 2) & ~furnace)) & (stone < 1)
    return first_rule(
        [
            (wants("drink_water"), to(WATER)),
            (wants("collect_coal") & (pickaxe > 0), to(COAL)),
            ((~table | (pickaxe < 3)) & (wood < 1), to(TREE)),
            (~table, to(_SITE, PLACE_TABLE)),
            (stones, to(STONE)),
            ((pickaxe < 2) & sees_table, makes),
            (pickaxe < 2, to(TABLE, STAY)),
            (~furnace, to(_SITE, PLACE_FURNACE)),
            ((pickaxe == 2) & (coal < 1), to(COAL)),
            ((pickaxe == 2) & (iron < 1), to(IRON)),
            ((pickaxe == 2) & sees_table & sees_furnace, makes),
            (pickaxe == 2, to(FURNACE, STAY)),
            (~achieved[ACHIEVEMENTS.index("collect_diamond")], to(DIAMOND)),
            (jnp.ones((), bool), to(WATER)),
        ]
    )


def _sites(terrain: Array) -> Array:
    """Returns grass that is on no way, and has another such cell beside it, or the table where there is one."""
    size = terrain.shape[0]
    odd = (jnp.arange(size) % 2 == 1)[:, None] & (jnp.arange(size) % 2 == 1)[None]
    free = odd & (terrain == GRASS)
    beside = free | (terrain == TABLE)
    padded = jnp.pad(jnp.where(jnp.any(terrain == TABLE), terrain == TABLE, beside), 2)
    near = padded[:-4, 2:-2] | padded[4:, 2:-2] | padded[2:-2, :-4] | padded[2:-2, 4:]
    return free & near

"""Terrain of the crafting world: grass with trees and water on one side, rock with minerals on the other."""

import jax
import jax.numpy as jnp

from jaxagents.environments.text.experts import choose
from jaxagents.types import Array

MATERIALS = ("grass", "water", "stone", "tree", "coal", "iron", "diamond", "table", "furnace")
GRASS, WATER, STONE, TREE, COAL, IRON, DIAMOND, TABLE, FURNACE = range(len(MATERIALS))
_TREES, _WATER, _TUNNELS = 0.35, 0.1, 0.15  # Shares of the cells.
_COAL, _IRON, _DIAMOND = 0.3, 0.15, 0.1


def sample_land(key: Array, size: int) -> tuple[Array, Array]:
    """Draws a land in which every material can be reached.

    Materials that can neither be walked through nor be dug with the first pickaxe lie where row and column are both
    odd, so that they never cut the land in two. There are at least two trees, one cell each of water, coal, iron and
    diamond, and two such cells of grass side by side.

    Args:
        key: PRNG key.
        size: S, even and at least 8.

    Returns:
        Terrain, int32 `[S, S]` of indices into `MATERIALS`, and the start, int32 `[2]`, on grass.
    """
    depth_key, chance_key, grass_key, rock_key, start_key, side_key = jax.random.split(key, 6)
    rows, columns = jnp.arange(size)[:, None], jnp.arange(size)[None]
    rock = jnp.broadcast_to(rows < jax.random.randint(depth_key, (), size // 3, size // 2 + 1), (size, size))
    odd = (rows % 2 == 1) & (columns % 2 == 1)
    chance = jax.random.uniform(chance_key, (size, size))
    meadow = jnp.where(chance < _TREES, TREE, jnp.where(chance < _TREES + _WATER, WATER, GRASS))
    veins = jnp.where(chance < _COAL, COAL, jnp.where(chance < _COAL + _IRON, IRON, STONE))
    veins = jnp.where(chance > 1.0 - _DIAMOND, DIAMOND, veins)
    plain = jnp.where(rock & (chance > _TUNNELS), STONE, GRASS)
    terrain = jnp.where(odd, jnp.where(rock, veins, meadow), plain)
    terrain = _with_each(grass_key, terrain, odd & ~rock & (columns < size - 2), [GRASS, TREE, TREE, WATER])
    terrain = _with_each(rock_key, terrain, odd & rock, [COAL, IRON, DIAMOND])
    start = choose(start_key, (~rock & (terrain == GRASS)).reshape(-1))
    return _turned(side_key, terrain.astype(jnp.int32), jnp.stack(jnp.divmod(start, size)).astype(jnp.int32))


def _with_each(key: Array, terrain: Array, cells: Array, materials: list[int]) -> Array:
    """Places one of each material on different cells of a mask; next to one of grass there is grass, two further."""
    size, free = terrain.shape[0], cells.reshape(-1)
    flat = terrain.reshape(-1)
    for index, material in enumerate(materials):
        cell = choose(jax.random.fold_in(key, index), free)
        flat, free = flat.at[cell].set(material), free.at[cell].set(False)
        if material == GRASS:
            flat, free = flat.at[cell + 2].set(material), free.at[cell + 2].set(False)
    return flat.reshape(size, size)


def _turned(key: Array, terrain: Array, start: Array) -> tuple[Array, Array]:
    """Swaps rows and columns at random: the rock is above or on the left."""
    exchanged = jax.random.bernoulli(key)
    return jnp.where(exchanged, terrain.T, terrain), jnp.where(exchanged, start[::-1], start)

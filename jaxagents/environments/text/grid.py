"""Paths over grids of cells, for the rules and the experts of text worlds."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def flood(start: Array, free: Array) -> Array:
    """Computes which cells can be reached.

    Args:
        start: bool `[H, W]`, start cells.
        free: bool `[H, W]`, cells that can be entered; there are none outside of the grid.

    Returns:
        Bool `[H, W]`, including the start.
    """
    return jnp.isfinite(distances(start, free)) & (free | start)


def distances(target: Array, free: Array) -> Array:
    """Computes the fewest steps from every cell to the nearest target.

    Args:
        target: bool `[H, W]`, target cells.
        free: bool `[H, W]`, cells that can be entered; there are none outside of the grid.

    Returns:
        Float32 `[H, W]`, `inf` if no target can be reached; the distance of a cell that is not free is that after
        leaving it.
    """
    height, width = free.shape
    # One axis: loops over the short axes of a grid are several times slower on XLA:CPU. A border keeps rows apart.
    side = width + 1
    open_ = jnp.pad(free, ((0, 0), (0, 1))).reshape(-1)
    start = jnp.where(jnp.pad(target, ((0, 0), (0, 1))).reshape(-1), 0.0, jnp.inf).astype(jnp.float32)

    def spread(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        found, _ = carry
        entered = jnp.pad(jnp.where(open_ | (start == 0.0), found, jnp.inf), side, constant_values=jnp.inf)
        near = [entered[side + move : side + move + found.size] for move in (-side, side, -1, 1)]
        best = jnp.minimum(found, 1.0 + jnp.minimum(jnp.minimum(near[0], near[1]), jnp.minimum(near[2], near[3])))
        return best, jnp.any(best < found)

    found, _ = jax.lax.while_loop(lambda carry: carry[1], spread, (start, jnp.ones((), bool)))
    return found.reshape(height, side)[:, :width]

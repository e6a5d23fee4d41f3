"""Grids as the agent sees them: centred on the agent, so that nearby cells are always at the same index."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array


class Egocentric(nn.Module):
    """Shifts every grid so that the agent is in the middle, adds a plane that marks cells inside, and encodes it.

    Attributes:
        encoder: `[..., W, W, C + 1] -> features [..., F]`, with W as in `radius`.
        plane: index of the channel that is 1 at the agent's cell and 0 elsewhere.
        radius: number of cells that are kept on each side, `W = 2 radius + 1`; None: everything, `W = 2 S - 1`.
    """

    encoder: nn.Module
    plane: int = 0
    radius: int | None = None

    def __post_init__(self):
        if self.plane < 0:
            raise ValueError(f"`plane` must be the index of a channel, got {self.plane}; try 0.")
        if self.radius is not None and self.radius < 1:
            raise ValueError(f"`radius` must be at least 1, got {self.radius}; try 3, or null for everything.")
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        """Computes features `[..., F]` of square grids `[..., S, S, C]` of any dtype.

        Raises:
            ValueError: the grids are not square, or lack the plane.
        """
        shape = observation.shape
        if len(shape) < 3 or shape[-3] != shape[-2] or shape[-1] <= self.plane:
            raise ValueError(f"`observation` must be [..., S, S, C] with a channel {self.plane}, got {list(shape)}.")
        size = shape[-2]
        radius = size - 1 if self.radius is None else self.radius
        width = 2 * radius + 1

        def centred(grid: Array) -> Array:
            row, column = jnp.divmod(jnp.argmax(grid[..., self.plane].reshape(-1)), size)
            inside = jnp.concatenate([grid, jnp.ones((size, size, 1), grid.dtype)], axis=-1)
            padded = jnp.pad(inside, ((radius, radius), (radius, radius), (0, 0)))
            return jax.lax.dynamic_slice(padded, (row, column, 0), (width, width, inside.shape[-1]))

        for _ in shape[:-3]:
            centred = jax.vmap(centred)
        return self.encoder(centred(jnp.asarray(observation, jnp.float32)))

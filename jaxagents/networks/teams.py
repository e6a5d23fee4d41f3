"""Encoders of observations with several entries, such as those of agents that see their team."""

import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array, PyTree


class Entry(nn.Module):
    """Passes one entry of the observation to an encoder.

    Attributes:
        entry: name of the entry.
        encoder: `entry [..., *shape] -> features [..., F]`.
    """

    entry: str
    encoder: nn.Module

    @nn.compact
    def __call__(self, observation: PyTree) -> Array:
        """Computes features `[..., F]` of a dict of arrays.

        Raises:
            ValueError: there is no such entry.
        """
        if not hasattr(observation, "keys") or self.entry not in observation:
            found = sorted(observation) if hasattr(observation, "keys") else type(observation).__name__
            raise ValueError(
                f"`entry` must be one of the observation's, got {self.entry!r} and {found}; try `team_view` around the "
                "environment."
            )
        return self.encoder(observation[self.entry])


class Joined(nn.Module):
    """Passes all entries of the observation to an encoder, as one vector.

    Attributes:
        encoder: `[..., D] -> features [..., F]`.
    """

    encoder: nn.Module

    @nn.compact
    def __call__(self, observation: PyTree) -> Array:
        """Computes features `[..., F]` of a dict of vectors `[..., D_i]`, concatenated in the order of their names."""
        return self.encoder(jnp.concatenate([observation[name] for name in sorted(observation)], axis=-1))

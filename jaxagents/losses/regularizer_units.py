"""Units in which a regulariser is equally strong with any credit, `learner.regularizer_units=advantage`.

A unit is a slot `(magnitude: Mean of |A| over this device's tokens, *, axis_name) -> factor of all regularisers`.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, Mean, Stateful


@struct.dataclass
class RunningMagnitude:
    """Running mean of the advantages' magnitude: `total / weight`, both float32 and zero before the first batch."""

    total: Array
    weight: Array

    @property
    def value(self) -> Array:
        """Returns the mean, zero before the first magnitude."""
        return self.total / jnp.maximum(self.weight, 1e-9)


def make_of_advantage(decay: float = 0.9) -> Stateful:
    """Makes the unit of the mean |A| of the tokens, so that one coefficient is equally strong with any credit.

    The unit of an update is a running mean of the mean |A| of its batch and of earlier ones, without bias at the start:
    `m <- decay m + (1 - decay) |A|`. A batch whose advantages are all zero, because the episodes of each group have
    equal returns, leaves it unchanged: the unit should be the scale of the credit, about which such a batch says
    nothing. If its own |A| were the unit, neither the KL divergence to the reference nor an entropy bonus would
    restrain the policy in such batches, where nothing else does. Before the first batch with an advantage, the scale is
    unknown and the unit is zero: nothing moves the policy then, so it cannot have left its reference.

    Args:
        decay: decay of earlier batches, per update with advantages, in [0, 1).

    Returns:
        The slot; its memory is a `RunningMagnitude`.
    """

    def add(memory: RunningMagnitude, batch: Mean) -> RunningMagnitude:
        mean = batch.total / jnp.maximum(batch.count, 1.0)
        added = RunningMagnitude(
            total=decay * memory.total + (1.0 - decay) * mean, weight=decay * memory.weight + (1.0 - decay)
        )
        return jax.tree.map(lambda new, old: jnp.where(batch.total > 0.0, new, old), added, memory)

    def init(num_updates: int) -> RunningMagnitude:
        del num_updates
        return RunningMagnitude(total=jnp.zeros(()), weight=jnp.zeros(()))

    def apply(memory: RunningMagnitude, magnitude: Mean, *, axis_name: str | None = None) -> tuple[Array, Mean]:
        batch = magnitude if axis_name is None else jax.lax.psum(magnitude, axis_name)
        return jax.lax.stop_gradient(add(memory, batch).value), magnitude

    return Stateful(init=init, apply=apply, update=add)

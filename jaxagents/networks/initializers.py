"""Initialisers of parameters that are safe under `vmap` on CPUs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.custom_batching import sequential_vmap

from jaxagents.types import Array


def orthogonal(scale: float = 1.0) -> Callable[..., Array]:
    """Makes the initialiser `nn.initializers.orthogonal(scale)`, decomposing one matrix at a time under `vmap`.

    A batched QR decomposition splits its batch over the threads of XLA:CPU and waits for them on one of these threads
    (jaxlib 0.10.2, `jax::ParallelBatchMap`). If every thread waits like this, as in the initialisation of several seeds
    or of an ensemble of critics with many layers, the program hangs forever.

    Args:
        scale: gain.

    Returns:
        `(key, shape, dtype=float32) -> parameters`.
    """
    draw = nn.initializers.orthogonal(scale)

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        return sequential_vmap(lambda key: draw(key, shape, dtype))(key)

    return init

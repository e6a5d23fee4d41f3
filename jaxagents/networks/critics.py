"""Torsos of critics that are trained with many updates per step."""

import math
from collections.abc import Sequence

from flax import linen as nn

from jaxagents.networks.initializers import orthogonal
from jaxagents.networks.torsos import activation_function
from jaxagents.types import Array


class RegularizedMLP(nn.Module):
    """Dense layers like those of `MLP`, with dropout, layer norm and batch norm.

    Attributes:
        hidden_sizes: width of each layer.
        activation: name of an element-wise function of flax.linen, applied after every layer.
        layer_norm: whether to normalise before every activation.
        dropout_rate: fraction of the units of every layer that is dropped before the layer norm, if the caller passes a
            key named "dropout".
        batch_norm: whether to normalise the input of every layer and the features, by their statistics over all
            leading axes if the caller makes "batch_stats" mutable, else by their running statistics (momentum 0.99).

    References:
        Hiraoka et al. (2022), Dropout Q-functions for doubly efficient reinforcement learning, figure 1.
        Bhatt et al. (2024), CrossQ, figure 2.

    Deviation: CrossQ uses batch renormalisation after a warm-up of 100,000 steps; here it is batch normalisation
        throughout. CrossQ's policy also has batch norms, and its Adam uses b1 = 0.5; here neither is the case.
    """

    hidden_sizes: Sequence[int] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False
    dropout_rate: float = 0.0
    batch_norm: bool = False

    def __post_init__(self):
        self.hidden_sizes = tuple(self.hidden_sizes)
        activation_function(self.activation)
        if not 0.0 <= self.dropout_rate < 1.0:
            raise ValueError(f"`dropout_rate` must be in [0, 1), got {self.dropout_rate}; try 0.01, or 0 for none.")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Array, axis_name: str | None = None) -> Array:
        """Computes features `[..., hidden_sizes[-1]]` of `[..., D]`.

        Args:
            x: input `[..., D]`.
            axis_name: mapped axis over which the batch of the statistics is spread.
        """
        known = not self.is_mutable_collection("batch_stats")
        x = nn.BatchNorm(known, axis_name=axis_name)(x) if self.batch_norm else x
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=orthogonal(math.sqrt(2.0)))(x)
            if self.dropout_rate:
                x = nn.Dropout(self.dropout_rate, deterministic=not self.has_rng("dropout"))(x)
            x = nn.LayerNorm()(x) if self.layer_norm else x
            x = activation_function(self.activation)(x)
            x = nn.BatchNorm(known, axis_name=axis_name)(x) if self.batch_norm else x
        return x

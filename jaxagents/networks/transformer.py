"""A small decoder-only transformer: a few thousand parameters on a CPU."""

from jaxagents.networks.decoder import Decoder


class Transformer(Decoder):
    """A `Decoder` with defaults that are fast on a CPU.

    Queries, keys and values are one projection, and the MLP uses squared ReLU, which needs no exponential (So et al.,
    2021).
    """

    num_layers: int = 2
    features: int = 64
    num_heads: int = 4
    hidden_features: int | None = None
    activation: str = "relu_squared"
    gated: bool = False
    fused_qkv: bool = True

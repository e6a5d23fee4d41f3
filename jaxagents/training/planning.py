"""Resources that a language model needs on given devices: bytes per device, and an upper bound of tokens per second."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.networks.decoder import Decoder
from jaxagents.policies.language_model import logits_at_once, make_language_model
from jaxagents.training.sharding import Rule, spec_by_rules
from jaxagents.types import PyTree

_LOGITS_COPIES = 3  # Logits, their exponentials, and the gradient, in float32.


@dataclass(frozen=True)
class Accelerator:
    """One chip, as specified by its maker.

    Attributes:
        flops: peak operations per second, for products in bfloat16.
        memory: memory in bytes.
        bandwidth: bandwidth of that memory, in bytes per second.
        link: bandwidth to the other chips, in bytes per second in one direction, all links together.
    """

    flops: float
    memory: float
    bandwidth: float
    link: float


@dataclass(frozen=True)
class Work:
    """Amount of work that is computed at a time.

    Attributes:
        rows: number of sequences of a microbatch, over all devices.
        tokens: length of a sequence in tokens.
        decoded_rows: number of sequences sampled in parallel, over all devices.
        efficiency: share of the peak that products reach in training.
    """

    rows: int
    tokens: int
    decoded_rows: int = 1
    efficiency: float = 0.4


@dataclass(frozen=True)
class Plan:
    """Bytes of one device, and tokens per second of all devices.

    Attributes:
        parameters: bytes of the model's parameters.
        gradients: bytes of the gradients.
        optimizer: bytes of the optimiser's state.
        activations: peak bytes of the activations of a microbatch.
        cache: bytes of the keys and values of sampled sequences.
        trained_tokens: tokens per second, for training alone.
        decoded_tokens: tokens per second, for sampling alone.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    cache: int
    trained_tokens: float
    decoded_tokens: float

    @property
    def total(self) -> int:
        """Returns the total bytes, if training and sampling take turns."""
        return self.parameters + self.optimizer + max(self.gradients + self.activations, self.cache)


def make_plan(
    network: Decoder,
    optimizer: optax.GradientTransformation,
    work: Work,
    accelerator: Accelerator,
    sizes: Mapping[str, int],
    rules: Mapping[str, Rule],
) -> Plan:
    """Computes the resources that a model needs on a mesh, without making a single array.

    Parameters and the optimiser are counted leaf by leaf, in the shards that the rules give them. Activations are those
    of `Decoder` with attention written as plain products, see `activation_bytes`; fused attention needs less. Training
    is bound by its products, or by the gathering of parameters over `fsdp` and the sums over `tensor`; sampling by
    reading the parameters and the cache once per token.

    Args:
        network: transformer.
        optimizer: an optax transformation.
        work: amount of work at a time.
        accelerator: type of the devices.
        sizes: number of devices along `data`, `fsdp` and `tensor`.
        rules: see `sharding.spec_by_rules`.

    Returns:
        The plan.

    Raises:
        ValueError: the rules or the rows do not fit the mesh.

    References:
        Kaplan et al. (2020), "Scaling Laws for Neural Language Models", section 2.1: `2 N` operations per token in the
        forward pass and `4 N` in the backward pass.
    """
    rows_of = sizes["data"] * sizes["fsdp"]
    for name, rows in (("rows", work.rows), ("decoded_rows", work.decoded_rows)):
        if rows % rows_of:
            raise ValueError(
                f"`work.{name}` must be divisible by data times fsdp, got {rows} and {rows_of}; try "
                f"{-(-rows // rows_of) * rows_of}."
            )
    model = make_language_model(network.vocab_size, network=lambda vocab_size: network)
    params = jax.eval_shape(model.init, jax.random.key(0))
    opt_state = jax.eval_shape(optimizer.init, params)
    parameters = bytes_per_device(params, rules, sizes)
    optimizer_bytes = bytes_per_device({"params": params, "opt_state": opt_state}, rules, sizes) - parameters
    count, devices = sum(leaf.size for leaf in jax.tree.leaves(params)), math.prod(sizes.values())
    width = jnp.dtype(network.dtype).itemsize
    cache = work.decoded_rows // rows_of * work.tokens * _cache_features(network) * width // sizes["tensor"]
    tokens = work.rows * work.tokens
    operations = training_operations(network, count, work.tokens) * tokens
    moved = count * width * (sizes["fsdp"] > 1) * (3 if network.remat else 2) / sizes["tensor"]
    moved += 4 * network.num_layers * tokens / rows_of * network.features * width * (sizes["tensor"] > 1)
    seconds = max(operations / (devices * accelerator.flops * work.efficiency), moved / accelerator.link)
    read = (count * width / sizes["tensor"] + cache) / accelerator.bandwidth
    gathered = count * width / sizes["tensor"] * (sizes["fsdp"] > 1) / accelerator.link
    return Plan(
        parameters=parameters,
        gradients=parameters,
        optimizer=optimizer_bytes,
        activations=activation_bytes(network, work.rows // rows_of, work.tokens, sizes["tensor"], accelerator.memory),
        cache=cache,
        trained_tokens=tokens / seconds,
        decoded_tokens=work.decoded_rows / max(read, gathered),
    )


def plan_devices(
    network: Decoder,
    optimizer: optax.GradientTransformation,
    slices: Sequence[str],
    *,
    accelerators: Mapping[str, Mapping[str, float]],
    tensor: int,
    rules: Mapping[str, Rule],
    rows_per_shard: int,
    decoded_rows_per_shard: int,
    tokens: int,
    efficiency: float,
) -> dict[str, dict[str, Any]]:
    """Makes a plan for every slice of devices; `fsdp` has the devices that `tensor` does not use.

    Args:
        network: transformer.
        optimizer: an optax transformation.
        slices: slices such as `v5ex16`, an accelerator and the number of its chips.
        accelerators: specifications by name: `teraflops`, `gibibytes`, and gigabytes per second of memory (`bandwidth`)
            and of all links (`link`).
        tensor: number of devices along `tensor`.
        rules: see `sharding.spec_by_rules`.
        rows_per_shard: number of sequences of a microbatch, per shard.
        decoded_rows_per_shard: number of sequences sampled in parallel, per shard.
        tokens: length of a sequence in tokens.
        efficiency: share of the peak that products reach.

    Returns:
        For every slice, GiB per device of every part, in total and of the device, whether they fit, and tokens per
        second.

    Raises:
        ValueError: an accelerator is unknown, `tensor` does not divide the devices, or see `make_plan`.
    """
    rows = {}
    for name in slices:
        kind, _, number = name.rpartition("x")
        if kind not in accelerators or not number.isdecimal() or int(number) % tensor or not int(number):
            raise ValueError(
                f"`slices` must be an accelerator and a number that `tensor` ({tensor}) divides, as v5ex16, got "
                f"{name!r}; there are {', '.join(accelerators)}."
            )
        chip = accelerators[kind]
        accelerator = Accelerator(
            flops=chip["teraflops"] * 1e12,
            memory=chip["gibibytes"] * 2**30,
            bandwidth=chip["bandwidth"] * 1e9,
            link=chip["link"] * 1e9,
        )
        sizes = {"data": 1, "fsdp": int(number) // tensor, "tensor": tensor}
        work = Work(
            rows=rows_per_shard * sizes["fsdp"],
            tokens=tokens,
            decoded_rows=decoded_rows_per_shard * sizes["fsdp"],
            efficiency=efficiency,
        )
        plan = make_plan(network, optimizer, work, accelerator, sizes, rules)
        parts = ("parameters", "gradients", "optimizer", "activations", "cache", "total")
        rows[name] = {
            **{f"{part}_gib": getattr(plan, part) / 2**30 for part in parts},
            "device_gib": chip["gibibytes"],
            "fits": plan.total <= 0.9 * accelerator.memory,  # The runtime and fragmentation take the rest.
            "trained_tokens_per_second": plan.trained_tokens,
            "decoded_tokens_per_second": plan.decoded_tokens,
        }
    return rows


def bytes_per_device(tree: PyTree, rules: Mapping[str, Rule], sizes: Mapping[str, int]) -> int:
    """Counts the bytes that one device holds of the shards of a tree.

    Args:
        tree: arrays or `jax.ShapeDtypeStruct`s.
        rules: see `sharding.spec_by_rules`.
        sizes: number of devices along each axis.
    """
    specs = spec_by_rules(tree, rules, sizes)

    def bytes_of(leaf: jax.ShapeDtypeStruct, spec: jax.sharding.PartitionSpec) -> int:
        return leaf.size * leaf.dtype.itemsize // math.prod(sizes[axis] for axis in spec if axis is not None)

    return sum(jax.tree.leaves(jax.tree.map(bytes_of, tree, specs)))


def training_operations(network: Decoder, num_params: int, tokens: int) -> float:
    """Counts floating-point operations per trained token: `6 N + 12 layers H F tokens / 2`, times 4/3 with remat.

    Args:
        network: transformer.
        num_params: N.
        tokens: length of the sequence, half of which a token attends to on average.
    """
    embedded = 0 if network.tied_embeddings else network.vocab_size * network.features  # Looked up, not multiplied.
    attention = 6 * network.num_layers * network.num_heads * network.features_of_head * tokens
    return (6 * (num_params - embedded) + attention) * (4 / 3 if network.remat else 1)


def activation_bytes(network: Decoder, rows: int, tokens: int, tensor: int = 1, memory: float = math.inf) -> int:
    """Computes the peak bytes that a forward and backward pass keeps on one device.

    Attention scores are those of all tokens, or of the `attention_block` queries that a network computes at once.

    With remat, the pass keeps the stream before every layer, and all of one layer or a chunk of logits (see
    `token_statistics`), whichever is larger; without remat, all of every layer, and that chunk.

    Args:
        network: transformer.
        rows: number of sequences of the device.
        tokens: length of a sequence in tokens.
        tensor: number of devices that split heads, hidden features and the vocabulary.
        memory: bytes of the device, which bound the chunk of logits.
    """
    width = jnp.dtype(network.dtype).itemsize
    heads, kv_heads, features = network.num_heads, network.num_key_heads, network.features_of_head
    hidden = (network.hidden_features or 4 * network.features) * (4 if network.gated else 2)
    split = (2 * heads + 4 * kv_heads + heads) * features + hidden  # qkv, rotated, read; MLP up, gate, product.
    stream = 4 * network.features  # Two norms and two sums.
    seen = 3 * heads * tokens * 4  # Scores, weights and one gradient per token, in float32.
    block = min(network.attention_block or tokens, tokens)
    layer = rows * tokens * (stream * width + split * width // tensor) + rows * block * seen // tensor
    kept = rows * tokens * network.features * width * network.num_layers
    positions = min(rows * tokens, max(1, logits_at_once(memory) // network.vocab_size))
    logits = _LOGITS_COPIES * positions * network.vocab_size * 4 // tensor
    # Logits are freed before the layers are recomputed.
    if network.remat:
        return kept + max(layer, logits)
    scores = rows * block * seen // tensor if block < tokens else 0  # Of one block at a time, whatever the layer.
    return (layer - scores) * network.num_layers + scores + logits


def _cache_features(network: Decoder) -> int:
    return 2 * network.num_layers * network.num_key_heads * network.features_of_head

"""A large language model on one accelerator, compared with transformers and PyTorch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.benchmarks.language import generation_subject, supervised_subject, training_flops
from jaxagents.benchmarks.peers.torch_language import torch_generation_subject, torch_training_subject
from jaxagents.benchmarks.timing import matmul_subject, measure
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.language_model import make_language_model

Rows = dict[str, dict[str, float]]


def measure_large(
    settings: Mapping[str, Any], *, repeats: int, peer_device: str | None
) -> tuple[Rows, dict[str, float]]:
    """Measures tokens per second in training and sampling, and the share of peak performance in training.

    Args:
        settings: section `large_lm` of the config.
        repeats: number of repeats of every subject.
        peer_device: device of PyTorch; None: PyTorch is left out.

    Returns:
        `(rows of the table, flat values)`.
    """
    network, vocabulary = settings["network"], settings["vocab_size"]
    model = make_language_model(vocabulary, network=partial(Decoder, **network | settings["settings"]))
    train, generate = settings["train"], settings["generate"]
    more = {"microbatch_tokens": settings["microbatch_tokens"], "flatten": False}
    pairs: dict[str, list[Any]] = {
        "train": [partial(supervised_subject, "train", model, **train, **more)],
        "generate": [partial(generation_subject, "generate", model, **generate, dtype=jnp.bfloat16)],
    }
    if peer_device is not None:
        of_peer = {"sizes": network | {"vocab_size": vocabulary}, "device": peer_device}
        rows_at_once = {"microbatch_rows": settings["microbatch_rows"]}
        pairs["train"].append(partial(torch_training_subject, "train_pytorch", **of_peer, **train, **rows_at_once))
        pairs["generate"].append(partial(torch_generation_subject, "generate_pytorch", **of_peer, **generate))
    peak = matmul_subject(settings["peak_size"], dtype=jnp.bfloat16)
    rows: Rows = {}
    for makers in pairs.values():  # One pair at a time: its states are freed before the next ones are made.
        rows |= measure([peak, *(make() for make in makers)], repeats)
        rows.setdefault("peak", rows[peak.name])
    rows.pop(peak.name)
    params = jax.eval_shape(model.init, jax.random.key(0))
    sizes = {"num_layers": network["num_layers"], "features": network["features"]}
    per_token = training_flops(params, **sizes, sequence_tokens=train["sequence_tokens"])
    peak_flops = rows.pop("peak")["per_second"]
    values = {f"{name}/tokens_per_second": row["per_second"] for name, row in rows.items()}
    values |= {f"{name}/compile_seconds": row["compile_seconds"] for name, row in rows.items()}
    values["peak_gflops"] = peak_flops
    for name in rows:
        if name.startswith("train"):
            values[f"{name}/share_of_peak"] = rows[name]["per_second"] * per_token / 1e9 / peak_flops
    for name in pairs:
        if f"{name}_pytorch" in rows:
            values[f"{name}/ratio_to_pytorch"] = rows[name]["per_second"] / rows[f"{name}_pytorch"]["per_second"]
    return rows, values | {"num_params": sum(leaf.size for leaf in jax.tree.leaves(params))}

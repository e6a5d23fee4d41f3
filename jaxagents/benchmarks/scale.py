"""How training scales with devices and contexts: speed, memory, and the bytes that every device holds."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.networks.decoder import Decoder
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.contexts import Rows, score_tokens
from jaxagents.policies.language_model import make_language_model, token_statistics
from jaxagents.types import Array, LanguageModel, Layout, Params, PyTree

ROOT = Path(__file__).parents[2]
MIB = 2**20


class Contest(NamedTuple):
    """Training on a number of devices, in a separate process.

    Attributes:
        num_devices: number of virtual devices of the CPU.
        overrides: overrides of the composed config.
        num_updates: number of updates per turn.
    """

    num_devices: int
    overrides: tuple[str, ...]
    num_updates: int


def train_in_turns(contests: Mapping[str, Contest], repeats: int) -> dict[str, dict[str, float]]:
    """Trains in several processes that take turns, so that other load on the machine affects all of them equally.

    Args:
        contests: training runs by name.
        repeats: number of turns of each.

    Returns:
        By name, `per_second` (the collector's steps, median), `spread`, `compile_seconds`, `peak_mib` (peak resident
        memory of the process, all devices together), and the bytes of one device: `params_bytes` and `opt_state_bytes`.

    Raises:
        RuntimeError: a process failed; gives its last output.
    """
    with ExitStack() as stack:
        workers = {name: stack.enter_context(_start(contest)) for name, contest in contests.items()}
        facts = {name: _hear(worker) for name, worker in workers.items()}
        rates: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(repeats):
            for name, worker in workers.items():
                worker.stdin.write("\n")
                worker.stdin.flush()
                measured = _hear(worker)
                rates[name].append(measured["steps"] / measured["seconds"])
                facts[name]["peak_mib"] = measured["peak_mib"]
        for worker in workers.values():
            worker.stdin.close()
            worker.wait(timeout=60)
    spreads = {name: (max(values) - min(values)) / statistics.median(values) for name, values in rates.items()}
    return {
        name: {"per_second": statistics.median(rates[name]), "spread": spreads[name], **facts[name]} for name in rates
    }


def _start(contest: Contest) -> subprocess.Popen:
    flag = f"--xla_force_host_platform_device_count={contest.num_devices}"
    # Collectives of virtual devices block each other unless each has a thread.
    settings = {"XLA_FLAGS": flag, "PJRT_NPROC": "32", "JAX_PLATFORMS": "cpu"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "jaxagents.benchmarks.scale_worker", str(contest.num_updates), *contest.overrides],
        env={**os.environ, **settings, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _hear(worker: subprocess.Popen) -> dict[str, float]:
    """Returns the next JSON object that a worker writes."""
    last: list[str] = []
    for line in worker.stdout:
        if line.startswith("{"):
            return json.loads(line)
        last = [*last[-200:], line]
    raise RuntimeError(f"A process of the benchmark has ended: {''.join(last)}")


def scale_values(rows: Mapping[str, Mapping[str, float]], devices: Sequence[int]) -> dict[str, float]:
    """Computes ratios of the results of `train_in_turns` to one device.

    Args:
        rows: results `strong/<n>` and `weak/<n>` for every n in `devices`.
        devices: numbers of devices, the first of which is 1.

    Returns:
        `strong/<n>/speed_to_one_device`: relative speed for the same work; `weak/<n>/speed_to_one_device`: that for n
        times the work, and `weak/<n>/efficiency`: the latter over n (at most cores / n on a machine with fewer cores
        than devices); `<kind>/<n>/peak_mib`; `params/<n>/share_of_a_device` and `opt_state/<n>/share_of_a_device`:
        bytes of one of n devices over those of a single device.
    """
    values: dict[str, float] = {}
    for n in devices:
        for kind in ("strong", "weak"):
            row, one = rows[f"{kind}/{n}"], rows[f"{kind}/{devices[0]}"]
            speed = row["per_second"] / one["per_second"]
            values |= {f"{kind}/{n}/speed_to_one_device": speed, f"{kind}/{n}/peak_mib": row["peak_mib"]}
            if kind == "weak":
                values[f"weak/{n}/efficiency"] = speed / n
                continue
            for part in ("params", "opt_state"):
                values[f"{part}/{n}/share_of_a_device"] = row[f"{part}_bytes"] / one[f"{part}_bytes"]
    return values


def bytes_on_a_device(tree: PyTree) -> int:
    """Returns the bytes that one device holds of arrays, or of `ShapeDtypeStruct`s with shardings."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape), dtype=np.int64)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )


def loss_memory(*, vocab_size: int, features: int, num_layers: int, rows: int, tokens: int) -> dict[str, float]:
    """Asks the compiler for the memory of a gradient with and without the loss over a vocabulary.

    Args:
        vocab_size: vocabulary size of the model.
        features: width of the residual stream.
        num_layers: number of layers, which are recomputed in the backward pass.
        rows: number of rows of the batch.
        tokens: number of tokens per row.

    Returns:
        `mib` of temporaries, `activations_mib` of those without the loss, and their `ratio`.
    """
    settings: dict[str, Any] = {"num_layers": num_layers, "features": features, "num_heads": max(1, features // 64)}
    model = make_language_model(vocab_size, network=partial(Transformer, remat=True, scan_layers=True, **settings))

    def hidden(params: Params, ids: Array) -> Array:
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((tokens, tokens), bool))[None], (rows, tokens, tokens))
        positions = jnp.broadcast_to(jnp.arange(tokens)[None], ids.shape)
        return model.apply(params, ids, positions=positions, mask=mask)

    def log_prob(params: Params, ids: Array) -> Array | None:
        return token_statistics(model, params, hidden(params, ids), ids, fields=("log_prob",)).log_prob

    ids = jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
    whole, activations = (_gradient_mib(function, model, ids) for function in (log_prob, hidden))
    return {"mib": whole, "activations_mib": activations, "ratio": whole / activations}


def context_memory(*, tokens: int, features: int, num_layers: int, attention_block: int | None) -> float:
    """Asks the compiler for the memory of scoring one row with a language model and its gradient, in MiB.

    Args:
        tokens: number of tokens of the row.
        features: width of the residual stream.
        num_layers: number of layers, which are recomputed in the backward pass.
        attention_block: see `Decoder`.
    """
    layout = Layout(prompt=0, observation=tokens // 2, thought=0, action=tokens // 2, num_turns=1, context_turns=1)
    settings: dict[str, Any] = {"num_layers": num_layers, "features": features}
    settings |= {"num_heads": 8, "hidden_features": 4 * features}
    network = partial(Decoder, remat=True, scan_layers=True, attention_block=attention_block, **settings)

    def scores(params: Params, rows: Rows) -> Array | None:
        return score_tokens(model, params, rows, layout, fields=("log_prob",)).log_prob

    model, ids = make_language_model(256, network=network), jax.ShapeDtypeStruct((1, 1, tokens), jnp.int32)
    nothing = jax.ShapeDtypeStruct((1, 0), jnp.int32)
    shapes: dict[str, Any] = {
        "prompt_tokens": nothing,
        "prompt_mask": jax.ShapeDtypeStruct((1, 0), bool),
        "tokens": ids,
        "token_mask": jax.ShapeDtypeStruct(ids.shape, bool),
        "position": ids,
        "agent": ids,
    }
    rows = Rows(**shapes)
    return _gradient_mib(scores, model, rows)


def _gradient_mib(function: Callable[..., Any], model: LanguageModel, inputs: Any) -> float:
    """Returns the MiB of temporaries for the gradient of the sum of a function of parameters and inputs."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    gradient = jax.jit(jax.grad(lambda params, inputs: function(params, inputs).sum()))
    return gradient.lower(params, inputs).compile().memory_analysis().temp_size_in_bytes / MIB

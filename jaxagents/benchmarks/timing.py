"""Measures speed: medians over repeats, compile time separately, alternatives in turns in the same process."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Subject(NamedTuple):
    """Something to time.

    Attributes:
        name: row of the table.
        run: function that runs once and waits for the result; returns the units of work done.
        compile_seconds: time to trace and compile.
        facts: results of the runs so far besides their times.
    """

    name: str
    run: Callable[[], float]
    compile_seconds: float
    facts: Sequence[Mapping[str, float]] = ()


def measure(subjects: list[Subject], repeats: int) -> dict[str, dict[str, float]]:
    """Times subjects in turns, so that other load on the machine affects all of them equally.

    Returns:
        For every subject: `per_second` (median over the repeats), `spread` (interquartile range over the median) and
        `compile_seconds`.
    """
    rates: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for _ in range(repeats):
        for subject in subjects:
            work, seconds = timed(subject.run)
            rates[subject.name].append(work / seconds)
    return {
        subject.name: {
            "per_second": statistics.median(rates[subject.name]),
            "spread": _spread(rates[subject.name]),
            "compile_seconds": subject.compile_seconds,
        }
        for subject in subjects
    }


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Returns the result of a call, after waiting for it, and the seconds that it took."""
    begin = time.perf_counter()
    return jax.block_until_ready(call()), time.perf_counter() - begin


def compiled_subject(name: str, function: Callable[..., Any], *inputs: Any, work: float) -> Subject:
    """Compiles a function of arrays and times its calls.

    Args:
        name: row of the table.
        function: function to compile.
        *inputs: arguments of every call.
        work: units of work per call.

    Returns:
        The subject; `compile_seconds` covers only tracing and compiling.
    """
    compiled, compile_seconds = timed(lambda: jax.jit(function).lower(*inputs).compile())
    jax.block_until_ready(compiled(*inputs))

    def run() -> float:
        jax.block_until_ready(compiled(*inputs))
        return work

    return Subject(name=name, run=run, compile_seconds=compile_seconds)


def matmul_subject(size: int = 1024, repeats: int = 20, dtype: Any = jnp.float32) -> Subject:
    """Times matrix products of `size` x `size` in turns with other subjects; unit: GFLOP."""

    def products(matrix: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, repeats, lambda _, left: left @ matrix, matrix)

    # Its products neither vanish nor grow. Zeros would take less power on a GPU, and thus less time.
    matrix = jax.random.orthogonal(jax.random.key(0), 256)
    matrix = jnp.tile(matrix, (size // 256, size // 256)) / (size // 256) if size % 256 == 0 else jnp.eye(size)
    matrix = matrix.astype(dtype)
    return compiled_subject("matmul_gflops", products, matrix, work=repeats * 2 * size**3 / 1e9)


def cpu_ticks() -> tuple[int, int]:
    """Returns the ticks since boot that other virtual machines took from this one, and all ticks; zeros if unknown."""
    if sys.platform != "linux":
        return 0, 0
    with open("/proc/stat", encoding="ascii") as stream:
        ticks = [int(field) for field in stream.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def describe_machine(before: tuple[int, int]) -> dict[str, float]:
    """Describes the other load on a machine during a measurement.

    Args:
        before: `cpu_ticks` at the beginning.

    Returns:
        `machine/steal`, the share of time that other virtual machines took; `machine/load`, the average number of
        processes running or waiting in the last minute, including our own; and `machine/cores`.
    """
    steal, total = (now - then for now, then in zip(cpu_ticks(), before, strict=True))
    return {
        "machine/steal": steal / max(total, 1),
        "machine/load": os.getloadavg()[0],
        "machine/cores": float(os.cpu_count() or 1),
    }


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / statistics.median(values)

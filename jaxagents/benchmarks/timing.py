"""Speed, measured: medians over repeats, compile time apart, rivals in the same process in alternation."""

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
        run: runs once and waits for the result; returns how many units of work were done.
        compile_seconds: time to trace and compile.
        facts: what every run so far reported beside its time.
    """

    name: str
    run: Callable[[], float]
    compile_seconds: float
    facts: Sequence[Mapping[str, float]] = ()


def measure(subjects: list[Subject], repeats: int) -> dict[str, dict[str, float]]:
    """Times subjects in turns, so that a busy moment of the machine meets all of them.

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
    """Returns what a call gives, waited for, and the seconds that it took."""
    begin = time.perf_counter()
    return jax.block_until_ready(call()), time.perf_counter() - begin


def compiled_subject(name: str, function: Callable[..., Any], *inputs: Any, work: float) -> Subject:
    """Compiles a function of arrays and times its calls.

    Args:
        name: row of the table.
        function: to compile.
        *inputs: of every call.
        work: units of work of a call.

    Returns:
        The subject; `compile_seconds` are of tracing and compiling alone.
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

    # Products of it neither vanish nor grow. One of zeros would take a GPU less power, and so less time.
    matrix = jax.random.orthogonal(jax.random.key(0), 256)
    matrix = jnp.tile(matrix, (size // 256, size // 256)) / (size // 256) if size % 256 == 0 else jnp.eye(size)
    matrix = matrix.astype(dtype)
    return compiled_subject("matmul_gflops", products, matrix, work=repeats * 2 * size**3 / 1e9)


def cpu_ticks() -> tuple[int, int]:
    """Returns the ticks since the start that others took from this virtual machine, and all; zeros where unknown."""
    if sys.platform != "linux":
        return 0, 0
    with open("/proc/stat", encoding="ascii") as stream:
        ticks = [int(field) for field in stream.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def describe_machine(before: tuple[int, int]) -> dict[str, float]:
    """Describes what else a machine did while something was measured.

    Args:
        before: `cpu_ticks` at the beginning.

    Returns:
        `machine/steal`, the share of time that other virtual machines took, `machine/load`, the processes that were
        running or waiting in the last minute, ours included, and `machine/cores`.
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

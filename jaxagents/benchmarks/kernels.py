"""Number of kernels that a compiled program launches, which limits the speed of small networks on accelerators."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.language.generate import generate
from jaxagents.types import Array, LanguageModel, Params

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*)$")
_OPERATION = re.compile(r"([a-z][\w\-]*)\(")
# Operations that only name values and launch nothing.
_FREE = {
    "parameter",
    "constant",
    "bitcast",
    "get-tuple-element",
    "tuple",
    "after-all",
    "partition-id",
    "add-dependency",
}


class Loop(NamedTuple):
    """A loop of a compiled program.

    Attributes:
        trips: number of iterations; None if the program decides it at run time.
        kernels: number of kernels of one iteration, including those of inner loops.
    """

    trips: int | None
    kernels: int


class Kernels(NamedTuple):
    """Kernels that a compiled program launches.

    Attributes:
        total: number of kernels of one run, with one iteration of every loop whose number of iterations is decided at
            run time.
        loops: loops of the program, the inner ones first.
    """

    total: int
    loops: tuple[Loop, ...]


def count_kernels(text: str) -> Kernels:
    """Counts the kernels of an optimised HLO module: fusions, library calls, copies and other unfused operations.

    For a branch, the side with the most kernels counts.

    Args:
        text: `jax.stages.Compiled.as_text()`.

    Returns:
        The kernels.

    Raises:
        ValueError: the text is not an HLO module.
    """
    computations, entry = _read(text)
    if entry is None:
        raise ValueError("`text` must be of an optimised module with an ENTRY, got none; try compiled.as_text().")
    loops: list[Loop] = []

    def count(name: str) -> int:
        return sum(of_one(operation, rest) for operation, rest in computations[name])

    def of_one(operation: str, rest: str) -> int:
        if operation in _FREE or operation.endswith("-done"):
            return 0
        if operation == "call":
            return sum(map(count, _named("to_apply", rest)))
        if operation == "conditional":
            branches = [*_named("branch_computations", rest), *_named("true_computation|false_computation", rest)]
            return max(map(count, branches))
        if operation != "while":
            return 1
        found = re.search(r"known_trip_count\D*(\d+)", rest)
        trips = int(found[1]) if found else None
        per_trip = sum(map(count, _named("body", rest)))
        per_trip += 0 if found else sum(map(count, _named("condition", rest)))
        loops.append(Loop(trips, per_trip))
        return per_trip * (1 if trips is None else trips)

    return Kernels(count(entry), tuple(loops))


def kernels_per_token(
    model: LanguageModel, *, batch_size: int, num_tokens: int, prompt_tokens: int, dtype: Any = jnp.bfloat16
) -> int:
    """Counts the kernels of one sampling step: those of the largest loop whose number of iterations is dynamic.

    Args:
        model: language model; nothing is computed, and its parameters are not needed.
        batch_size: number of rows.
        num_tokens: number of tokens sampled per row.
        prompt_tokens: number of tokens before them.
        dtype: dtype of the parameters.
    """

    def sample(params: Params, prompt: Array, key: Array) -> Array:
        keys, mask = jax.random.split(key, batch_size), jnp.ones(prompt.shape, bool)
        return generate(model, params, prompt, mask, keys=keys, max_new_tokens=num_tokens).tokens

    shapes = jax.eval_shape(model.init, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)
    prompt = jax.ShapeDtypeStruct((batch_size, prompt_tokens), jnp.int32)
    compiled = jax.jit(sample).lower(shapes, prompt, jax.eval_shape(jax.random.key, 0)).compile()
    return max(loop.kernels for loop in count_kernels(compiled.as_text() or "").loops if loop.trips is None)


def _read(text: str) -> tuple[dict[str, list[tuple[str, str]]], str | None]:
    """Returns the instructions of every computation, as operation and line, and the name of the entry computation."""
    computations: dict[str, list[tuple[str, str]]] = {}
    entry, current = None, ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            current = found[2]
            computations[current] = []
            entry = current if found[1] else entry
        elif current and (found := _INSTRUCTION.match(line)):
            rest = found[1]
            operation = _OPERATION.search(_without_type(rest))
            computations[current].append((operation[1] if operation else "", rest))
    return computations, entry


def _without_type(instruction: str) -> str:
    """Removes the type at the start of an instruction, which may be a tuple of types."""
    if not instruction.startswith("("):
        return instruction.partition(" ")[2]
    depth = 0
    for place, character in enumerate(instruction):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return instruction[place + 1 :]
    return ""


def _named(attribute: str, rest: str) -> Iterator[str]:
    """Yields the computations that an attribute names."""
    for one, many in re.findall(rf"(?:{attribute})=(?:%?([\w.\-]+)|\{{([^}}]*)\}})", rest):
        yield from (name.strip().lstrip("%") for name in (many.split(",") if many else [one]))

"""What a traced function computes, whatever its code is called and in which order it says things: a hash of its graph.

Every value is hashed from the operation that makes it and from the hashes of what goes in, down to arguments and
constants. Names of functions and variables, the order of operations that do not depend on each other, operations whose
results nobody uses, and functions compiled within others do not count; nor does the order of two summands or factors,
nor a choice within a side of the same choice.
Names of results do. Equal hashes are the same operations on the same values; unequal ones may still compute the same.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import jax
import numpy as np
from jax.extend import core

_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "closed_call": "call_jaxpr"}
_INLINED |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call"}
_LOOPS = {  # Counts of what is the same in all rounds, and the inner graphs.
    "while": (("cond_nconsts", "body_nconsts"), ("cond_jaxpr", "body_jaxpr")),
    "scan": (("num_consts",), ("jaxpr",)),
    "cond": ((), ("branches",)),
}
_PLACES = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")  # Of a function compiled within another.
_COMMUTATIVE = ("add", "add_any", "mul", "max", "min", "and", "or", "xor", "eq", "ne")
_UNTOLD = ("name", "debug_info", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "ctx_mesh")


def fingerprint(function: Callable[..., Any], *args: Any) -> str:
    """Computes the hash of what a function does with arguments of these shapes.

    Args:
        function: of arrays; it is traced, not run.
        *args: arrays or their shapes.

    Returns:
        16 hexadecimal digits.

    Deviation: functions that are called back on the host count by their kind only, not by what they do.
    """
    closed, outputs = jax.make_jaxpr(function, return_shape=True)(*args)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(outputs)[0]]
    names = [[one.key for one in path if isinstance(one, jax.tree_util.DictKey)] for path in paths]
    return _hash(_of_closed(closed), names)[:16]


def _of_closed(closed: Any) -> str:
    """Hashes a graph as a function of its numbered arguments."""
    jaxpr, consts = _open(closed)
    inputs = [_hash("argument", i, str(var.aval)) for i, var in enumerate(jaxpr.invars)]
    return _hash(*_follow(jaxpr, consts, inputs))


def _open(closed: Any) -> tuple[Any, list[str]]:
    """Returns a graph, and the hashes of its constants: numbers, where these are given elsewhere."""
    if isinstance(closed, core.ClosedJaxpr):
        return closed.jaxpr, [_tell(one) for one in closed.consts]
    return closed, [_hash("constant", i, str(var.aval)) for i, var in enumerate(closed.constvars)]


def _follow(
    jaxpr: Any, consts: Sequence[str], inputs: Sequence[str], depth: int = 0, chosen: Mapping[str, int] | None = None
) -> tuple[list[str], list[str]]:
    """Returns the hashes of the outputs, and of operations with effects, given those of constants and inputs.

    In loops within loops, `depth` tells what changes in the rounds of one from what changes in those of another.
    `chosen` has the sides of the choices that this graph is within, by the hash of what they are chosen by.
    """
    chosen = chosen or {}
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs]))
    effects: list[str] = []

    def look_up(atom: Any) -> str:
        return _tell(atom.val, atom.aval) if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        kind, ingoing = equation.primitive.name, [look_up(atom) for atom in equation.invars]
        inner = equation.params.get(_INLINED.get(kind, ""))
        if kind == "cond" and ingoing[0] in chosen:
            inner, ingoing = equation.params["branches"][chosen[ingoing[0]]], ingoing[1:]
        if inner is not None and not _placed(equation.params):
            outgoing, more = _follow(*_open(inner), ingoing, depth, chosen)
            effects += more
        else:
            ingoing = sorted(ingoing) if kind in _COMMUTATIVE else ingoing
            looping = kind in _LOOPS
            node = (
                _loop(equation, ingoing, depth + 1, chosen) if looping else _hash(kind, _tell(equation.params), ingoing)
            )
            outgoing = [_hash(node, i) for i in range(len(equation.outvars))]
            effects += [node] if equation.effects else []
        known.update(zip(equation.outvars, outgoing))
    return [look_up(atom) for atom in jaxpr.outvars], effects


def _loop(equation: Any, ingoing: Sequence[str], depth: int, chosen: Mapping[str, int]) -> str:
    """Hashes a loop or a choice; what is the same in all rounds counts as if the inner graphs had it themselves."""
    kind, params = equation.primitive.name, _with_counts(equation.params)
    counts, names = _LOOPS[kind]
    invariant = [params[name] for name in counts]
    changing = ingoing[sum(invariant) :] if kind != "cond" else ingoing[:1]
    inner = [graph for name in names for graph in (params[name] if kind == "cond" else [params[name]])]
    told = []
    for number, graph in enumerate(inner):
        begin = sum(invariant[:number])
        given = ingoing[1:] if kind == "cond" else ingoing[begin : begin + invariant[number]]
        changed = graph.jaxpr.invars[len(given) :]
        rounds = [_hash("round", depth, i, str(var.aval)) for i, var in enumerate(changed)]
        within = {**chosen, ingoing[0]: number} if kind == "cond" else chosen
        told.append(_follow(*_open(graph), [*given, *rounds], depth, within))
    others = {name: value for name, value in params.items() if name not in (*names, *counts, "linear")}
    return _hash(kind, _tell(others), told, changing)


def _with_counts(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the parameters of a loop as jax 0.10 has them: a scan of jax 0.11 holds trees in place of counts."""
    if "ft_in" not in params:
        return params
    consts, carry, _ = params["ft_in"].unpack()
    others = {name: value for name, value in params.items() if name not in ("ft_in", "ft_out")}
    return others | {"num_consts": len(consts), "num_carry": len(carry)}


def _placed(params: Mapping[str, Any]) -> bool:
    """Tells whether a compiled function says where its arguments or results are to be."""
    told = [one for name in _PLACES for one in params.get(name) or ()]
    return any("Unspecified" not in repr(one) and one is not None for one in told)


def _tell(value: Any, aval: Any = "") -> str:
    """Describes a parameter of an operation, or a constant, without addresses and names."""
    if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
        return _of_closed(value)
    if isinstance(value, Mapping):
        return _hash(*(f"{name}={_tell(value[name])}" for name in sorted(value) if name not in _UNTOLD))
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return _hash("key", str(value.dtype), _tell(jax.random.key_data(value)))
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return _hash(str(array.dtype), array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest())
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return _hash("sequence", *map(_tell, value))
    if callable(value) and not isinstance(value, type | Enum):
        return "function"
    return _hash(type(value).__name__, str(aval), re.sub(r" at 0x[0-9a-f]+", "", repr(value)))


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()

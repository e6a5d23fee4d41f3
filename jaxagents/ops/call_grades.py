"""Grades of a call against the right one: ToolRL (Qian et al., 2025), and TL-Training's errors (Ye et al., 2024).

A call is `Call(verb, args)` of a grammar: its name consists of the verb and the first field, its parameters are the
other fields. A field of several words holds alternating keys and values, such as `person elm day friday`; other fields
are values whose keys are their positions.
"""

from typing import Literal, NamedTuple, get_args

import jax.numpy as jnp

from jaxagents.types import Array

Detail = Literal["fine", "intermediate", "coarse"]


class Call(NamedTuple):
    """A call of a tool: verb int32 `[]`, and args int32 `[A, W]`, with -1 for empty places."""

    verb: Array
    args: Array


class Match(NamedTuple):
    """How a call matches the right one, float32 `[]`.

    Attributes:
        name: 1 if the name is right.
        keys: common keys divided by all keys of both; 1 if neither has any.
        values: number of keys of the right call with the right value.
        num_keys: number of keys of the right call.
        missing: number of keys of the right call that are missing.
        invented: number of keys that the right call does not have.
    """

    name: Array
    keys: Array
    values: Array
    num_keys: Array
    missing: Array
    invented: Array

    @property
    def exact(self) -> Array:
        """Returns whether both calls are the same, bool `[]`."""
        return (self.name > 0) & (self.values == self.num_keys) & (self.invented == 0)


def match(predicted: Call, right: Call) -> Match:
    """Compares a call with the right one."""
    (keys, values), (wanted, wanted_values) = _parameters(predicted), _parameters(right)
    same = (keys[:, None] == wanted[None]) & (wanted >= 0)[None]  # [P, P], predicted by right
    earlier = jnp.tril(keys[:, None] == keys[None], -1)
    counts = ~jnp.any(earlier, axis=0)  # If a key occurs twice, its last value counts.
    right_values = same & (values[:, None] == wanted_values[None]) & counts[:, None]
    distinct = jnp.sum((keys >= 0) & ~jnp.any(earlier, axis=1))
    count, found = jnp.sum(wanted >= 0), jnp.sum(jnp.any(same, axis=0))
    union = count + distinct - found
    numbers = {
        "name": (predicted.verb == right.verb) & jnp.all(predicted.args[0] == right.args[0]),
        "keys": jnp.where(union > 0, found / jnp.maximum(union, 1), 1.0),
        "values": jnp.sum(jnp.any(right_values, axis=0)),
        "num_keys": count,
        "missing": count - found,
        "invented": distinct - found,
    }
    return Match(**{name: jnp.asarray(number, jnp.float32) for name, number in numbers.items()})


def toolrl(predicted: Call, right: Call, read: Array, *, detail: Detail = "fine", scale: float = 3.0) -> Array:
    """Computes `[read] + 2 scale match / most - scale`, match = name + keys + values, most = 2 + number of keys.

    Args:
        predicted: predicted call.
        right: right call.
        read: bool `[]`, whether the call could be parsed; one that could not gets -scale.
        detail: "fine"; "intermediate" counts 1 for the right name and 1 for the whole call; "coarse" only the whole
            call.
        scale: greatest magnitude of the grade of a parsed call, without the term for its form.

    Returns:
        float32 `[]`.

    Raises:
        ValueError: `detail` is unknown.

    References:
        Qian et al. (2025), "ToolRL: Reward is All Tool Learning Needs", eq. 4 to 9.
    """
    if detail not in get_args(Detail):
        raise ValueError(f"`detail` must be one of {', '.join(get_args(Detail))}, got {detail!r}.")
    found = match(predicted, right)
    exact = found.exact.astype(jnp.float32)
    share = {
        "fine": found.name * (1.0 + found.keys + found.values) / (2.0 + found.num_keys),
        "intermediate": (found.name + exact) / 2.0,
        "coarse": exact,
    }[detail]
    return jnp.where(read, 1.0 + 2.0 * scale * share - scale, -scale)


def errors(predicted: Call, right: Call, read: Array) -> Array:
    """Returns 1 for the right call, and for others a penalty that depends on their worst mistakes.

    -2: not parsed; -1.5: wrong tool; -1.3: invented and missing keys; -0.8: invented keys; -0.5: missing keys; -0.25:
    wrong values.

    Args:
        predicted: predicted call.
        right: right call.
        read: bool `[]`, whether the call could be parsed and its tool exists.

    Returns:
        float32 `[]`.

    References:
        Ye et al. (2024), "TL-Training: A Task-Feature-Based Framework for Training Large Language Models in Tool Use",
        section 4.3.

    Deviation: in the paper, keys that the tool accepts but the right call does not have are redundant (-0.5, with
        others -1 to -1.8); here they count as invented.
    """
    found = match(predicted, right)
    cases = [
        (~jnp.asarray(read), -2.0),
        (found.name == 0, -1.5),
        ((found.invented > 0) & (found.missing > 0), -1.3),
        (found.invented > 0, -0.8),
        (found.missing > 0, -0.5),
        (found.values < found.num_keys, -0.25),
    ]
    return jnp.select([case for case, _ in cases], [jnp.float32(grade) for _, grade in cases], jnp.float32(1.0))


def _parameters(call: Call) -> tuple[Array, Array]:
    """Returns keys and values, int32 `[P]`; keys are -1 in empty places."""
    rows = call.args[1:]
    num_pairs = rows.shape[1] // 2
    if not num_pairs:
        return jnp.where(rows[:, 0] >= 0, jnp.arange(len(rows)), -1), rows[:, 0]
    pairs = rows[:, : 2 * num_pairs].reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]

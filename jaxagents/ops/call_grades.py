"""Grades of a call beside the right one: ToolRL (Qian et al., 2025), and TL-Training's errors (Ye et al., 2024).

A call is `Call(verb, args)` of a grammar: its name are the verb and the first field, its parameters the other fields.
A field of several words holds keys and values in turn, as `person elm day friday`; other fields are values whose keys
are their places.
"""

from typing import Literal, NamedTuple, get_args

import jax.numpy as jnp

from jaxagents.types import Array

Detail = Literal["fine", "intermediate", "coarse"]


class Call(NamedTuple):
    """A call of a tool: verb int32 `[]`, and args int32 `[A, W]`, -1 where there is nothing."""

    verb: Array
    args: Array


class Match(NamedTuple):
    """How a call matches the right one, float32 `[]`.

    Attributes:
        name: 1 where it is the right one.
        keys: common keys by all keys of both; 1 where neither has any.
        values: keys of the right call with the right value.
        num_keys: of the right call.
        missing: keys of the right call that are not there.
        invented: keys that the right call has not.
    """

    name: Array
    keys: Array
    values: Array
    num_keys: Array
    missing: Array
    invented: Array

    @property
    def exact(self) -> Array:
        """Returns whether both are the same, bool `[]`."""
        return (self.name > 0) & (self.values == self.num_keys) & (self.invented == 0)


def match(predicted: Call, right: Call) -> Match:
    """Compares a call with the right one."""
    (keys, values), (wanted, wanted_values) = _parameters(predicted), _parameters(right)
    same = (keys[:, None] == wanted[None]) & (wanted >= 0)[None]  # [P, P], predicted by right
    earlier = jnp.tril(keys[:, None] == keys[None], -1)
    counts = ~jnp.any(earlier, axis=0)  # Of a key that comes twice, the last value counts.
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
        predicted: the call.
        right: the one that is right.
        read: bool `[]`, whether it could be read; what could not gets -scale.
        detail: "fine"; "intermediate" takes 1 for the right name and 1 for the whole call; "coarse" the call alone.
        scale: greatest and least grade of a call that could be read, but for its form.

    Returns:
        float32 `[]`.

    Raises:
        ValueError: another detail.

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
    """Returns 1 for the right call, and for others by their worst mistakes.

    -2 not read, -1.5 another tool, -1.3 invented and missing keys, -0.8 invented ones, -0.5 missing ones, -0.25 wrong
    values.

    Args:
        predicted: the call.
        right: the one that is right.
        read: bool `[]`, whether it could be read, and its tool exists.

    Returns:
        float32 `[]`.

    References:
        Ye et al. (2024), "TL-Training: A Task-Feature-Based Framework for Training Large Language Models in Tool Use",
        section 4.3.

    Deviation: keys that a tool takes and the right call has not would be redundant (-0.5, with others -1 to -1.8); they
    count as invented.
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
    """Returns keys and values, int32 `[P]`; keys are -1 where there is none."""
    rows = call.args[1:]
    num_pairs = rows.shape[1] // 2
    if not num_pairs:
        return jnp.where(rows[:, 0] >= 0, jnp.arange(len(rows)), -1), rows[:, 0]
    pairs = rows[:, : 2 * num_pairs].reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]

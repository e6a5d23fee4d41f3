"""Sharding of parameters, and of leaves with their paths, over the axes of a mesh by regular expressions on names."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagents.training.program import AXIS_NAME, TrainState
from jaxagents.types import REPLICATED, PyTree

AXES = ("fsdp", "tensor")
"""Axes of a mesh that split parameters."""

Rule = str | Sequence[str | None]
"""Axes of the last dimensions, None where one stays whole; or a string of axes, of which each splits the largest
dimension that it divides and that those before it leave: `tensor fsdp`."""

_LARGEST = {".": "fsdp"}


def spec_by_rules(tree: PyTree, rules: Mapping[str, Rule], sizes: Mapping[str, int]) -> PyTree:
    """Computes how a mesh splits the leaves of a tree.

    A rule applies to every leaf whose path its pattern matches (`re.search`), such as
    `params/params/layers_0/up/kernel`: the path of an optimiser's moments, of target networks and of references ends
    with that of their parameter, so that they are split in the same way. A leaf without a rule is replicated on every
    device.

    Args:
        tree: arrays or `jax.ShapeDtypeStruct`s.
        rules: rules by pattern; an empty mapping splits the largest dimension over `fsdp`.
        sizes: number of devices along each axis of the mesh.

    Returns:
        A `PartitionSpec` per leaf.

    Raises:
        ValueError: a rule matches nothing, two rules match the same leaf, an axis does not divide a dimension, or no
            rule uses an axis of the mesh.

    References:
        Beyer et al. (2022), "Big Vision", and MaxText, which name shardings by such rules.
    """
    rules = {pattern: rule if isinstance(rule, str) else tuple(rule) for pattern, rule in (rules or _LARGEST).items()}
    _check(rules, sizes)
    found: set[str] = set()

    def spec_of(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        patterns = [pattern for pattern in rules if leaf.ndim and re.search(pattern, name)]
        found.update(patterns)
        if len(patterns) > 1:
            raise ValueError(
                f"`devices.rules` must name every parameter once, got {patterns[0]!r} and {patterns[1]!r} for {name}; "
                "try patterns that exclude each other."
            )
        return _spec(name, leaf.shape, rules[patterns[0]], sizes) if patterns else PartitionSpec()

    specs = jax.tree_util.tree_map_with_path(spec_of, tree)
    for pattern in rules:
        if pattern not in found:
            names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in _leaves(tree)]
            listed = ", ".join(name for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise ValueError(f"`devices.rules` must find a parameter each, got {pattern!r}; there are {listed}.")
    return specs


def shardings_of_state(abstract: TrainState, axes: PyTree, mesh: Mesh, rules: Mapping[str, Rule]) -> TrainState:
    """Computes the sharding of every leaf of a state: by rows, by the rules, or replicated.

    Args:
        abstract: abstract state.
        axes: row axis of every leaf, see `Program.partition`.
        mesh: see `mesh.make_mesh`.
        rules: rules for the learner's leaves without rows, see `spec_by_rules`.

    Returns:
        `NamedSharding`s, in the structure of the state.

    Raises:
        ValueError: see `spec_by_rules`, or an optimiser works on one vector of all parameters.
    """
    scalar = jax.ShapeDtypeStruct((), np.float32)
    shards = mesh.size // mesh.shape[AXIS_NAME]
    if shards > 1:
        _require_leaves(abstract)
    by_name = jax.tree.map(lambda leaf, axis: leaf if axis == REPLICATED else scalar, abstract.learner, axes.learner)
    specs = jax.tree.map(lambda leaf: PartitionSpec(), abstract)
    specs = specs.replace(learner=spec_by_rules(by_name, rules, mesh.shape))

    def sharding_of(axis: int, spec: PartitionSpec) -> NamedSharding:
        rows = PartitionSpec(*(None,) * axis, (AXIS_NAME, "fsdp"))
        return NamedSharding(mesh, spec if axis == REPLICATED else rows)

    return jax.tree.map(sharding_of, axes, specs)


def _require_leaves(abstract: TrainState) -> None:
    """Refuses an optimiser that flattens all parameters into one vector: no rule could split its moments like them."""
    sizes = [leaf.size for leaf in jax.tree.leaves(abstract.learner.params)]
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract.learner):
        if len(sizes) > 1 and leaf.ndim == 1 and leaf.size == sum(sizes):
            raise ValueError(
                "`optimizer.flatten` must be false where a mesh splits parameters, got moments of all of them in the "
                f"vector {jax.tree_util.keystr(path)} [{leaf.size}]; try optimizer.flatten=false, "
                "and warm_start.learner.optimizer.flatten=false where there is a warm start."
            )


def _spec(name: str, shape: tuple[int, ...], rule: Rule, sizes: Mapping[str, int]) -> PartitionSpec:
    if isinstance(rule, str):
        found: dict[int, str] = {}
        for axis in rule.split():
            free = [i for i, size in enumerate(shape) if i not in found and size % sizes[axis] == 0]
            if free:
                found[max(free, key=lambda i: shape[i])] = axis
        return PartitionSpec(*(found.get(i) for i in range(max(found, default=-1) + 1)))
    if len(rule) > len(shape):
        raise ValueError(
            f"`devices.rules` must not have more axes than a parameter has dimensions, got {list(rule)} for {name} "
            f"of the shape {list(shape)}."
        )
    for size, chosen in zip(shape[len(shape) - len(rule) :], rule, strict=True):
        if chosen is not None and size % sizes[chosen]:
            raise ValueError(
                f"`devices.mesh.{chosen}` must divide the dimensions that it splits, got {sizes[chosen]} and {size} of "
                f"{name} {list(shape)}; try {math.gcd(size, sizes[chosen])}, or null in place of {chosen} in its rule."
            )
    return PartitionSpec(*(None,) * (len(shape) - len(rule)), *rule)


def _check(rules: Mapping[str, Rule], sizes: Mapping[str, int]) -> None:
    used: list[str] = []
    for pattern, rule in rules.items():
        axes = [axis for axis in (rule.split() if isinstance(rule, str) else rule) if axis is not None]
        for axis in axes:
            if axis not in AXES or axes.count(axis) > 1:
                raise ValueError(
                    f"`devices.rules` must name {' and '.join(AXES)} at most once each, got {rule!r} for {pattern!r}."
                )
        used += axes
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`devices.rules` must be regular expressions, got {pattern!r}, where there is {error}."
            ) from error
    for axis in AXES:
        if sizes[axis] > 1 and axis not in used:
            raise ValueError(
                f"`devices.mesh.{axis}` must be 1 where no rule names {axis}, got {sizes[axis]}; try "
                "devices=transformer, or a rule of your own in `devices.rules`."
            )


def _leaves(tree: PyTree) -> list[tuple[Any, Any]]:
    return [(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if leaf.ndim]

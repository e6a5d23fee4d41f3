"""Optimiser steps, and optimisers whose hyper-parameters are arrays in their state, to avoid compiling again."""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.ops.schedules import ScheduleState
from jaxagents.types import Array, Params, PyTree

Trainable = PyTree | Callable[[Params], PyTree] | None
"""A prefix pytree of bool, True = learns, or what makes one of the parameters; None where everything learns."""
_INJECTED = (optax.InjectHyperparamsState, optax.InjectStatefulHyperparamsState)
_OF_A_STAGE = (*_INJECTED, optax.ScaleByScheduleState)
_SCHEDULES = (optax.ScaleByScheduleState, ScheduleState)


def init_optimizer(optimizer: optax.GradientTransformation, params: Params, trainable: Trainable = None) -> PyTree:
    """Returns the initial state of an optimiser, without memory for frozen parameters.

    Args:
        optimizer: an optax transformation.
        params: all parameters.
        trainable: parameters that are trained, see `apply_updates`.
    """
    return optimizer.init(_without_frozen(params, _flags(params, trainable)))


def apply_updates(
    grads: PyTree,
    params: Params,
    opt_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    *,
    axis_name: str | None = None,
    trainable: Trainable = None,
) -> tuple[Params, optax.OptState, Array]:
    """Takes one optimiser step: `params + optimizer(mean over devices of grads)`.

    Args:
        grads: gradients of the loss, like `params`, of this device.
        params: all parameters.
        opt_state: optimiser state from `init_optimizer` with the same `trainable`.
        optimizer: optax transformation, including clipping and schedule.
        axis_name: mapped device axis to average gradients over.
        trainable: prefix pytree of bool, or a function `(params) -> ` of one, see `matching`: parameters with False do
            not change, not even by weight decay, and do not count in the norm. None: everything is trained.

    Returns:
        `(params, opt_state, gradient_norm)`; the norm is that of the mean gradient before clipping.

    Raises:
        ValueError: `trainable` is not a prefix of the parameters.
    """
    flags = _flags(params, trainable)
    grads, learned = _without_frozen(grads, flags), _without_frozen(params, flags)
    if axis_name is not None:
        grads = jax.lax.pmean(grads, axis_name)
    updates, opt_state = optimizer.update(grads, opt_state, learned)
    learned = optax.apply_updates(learned, updates)
    if flags is not None:
        learned = jax.tree.map(lambda flag, old, new: new if flag else old, flags, params, learned)
    if getattr(optimizer, "flat", False):  # Clipping reads this vector, too: one sum for all arrays.
        grads = jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(grads)])
    return learned, opt_state, optax.global_norm(grads)


class Rated(optax.GradientTransformationExtraArgs):
    """An optimiser that exposes its learning rate.

    Attributes:
        rate: `(opt_state) -> float32`, learning rate of the next step, including the schedule.
        flat: whether it works on one vector of all parameters.
    """

    rate: Callable[[optax.OptState], Array]
    flat: bool = False


def learning_rate_of(optimizer: optax.GradientTransformation, opt_state: optax.OptState) -> dict[str, Array]:
    """Returns the metric `learning_rate` of the next step: the rate times the factor of the schedule.

    Args:
        optimizer: an optax transformation.
        opt_state: optimiser state before the step.

    Returns:
        The mean over parts and agents, float32 `[]`; empty for an optimiser that is not `Rated`.
    """
    return {"learning_rate": jnp.mean(optimizer.rate(opt_state))} if isinstance(optimizer, Rated) else {}


def take_if(due: Array, after: PyTree, before: PyTree) -> PyTree:
    """Chooses between the states after and before an update; a skipped update only advances schedules.

    Schedules are made for all updates of a run: they end with the run, however many updates are skipped.

    Args:
        due: bool, whether the update is taken.
        after: parameters, optimiser states or states of learners.
        before: the same before the update.

    Returns:
        `after` if due, else `before` with the schedules of `after`.
    """

    def choose(new: PyTree, old: PyTree) -> PyTree:
        if isinstance(new, _INJECTED):
            return new._replace(inner_state=take_if(due, new.inner_state, old.inner_state))
        return new if isinstance(new, _SCHEDULES) else jnp.where(due, new, old)

    return jax.tree.map(choose, after, before, is_leaf=lambda node: isinstance(node, (*_INJECTED, *_SCHEDULES)))


def parts_of(trainable: Trainable, parts: Mapping[str, Params]) -> dict[str, PyTree | None]:
    """Splits `trainable` over several trees of parameters, each of which has its own optimiser.

    Args:
        trainable: parameters that are trained, see `apply_updates`.
        parts: parameters by name.

    Returns:
        `trainable` for every part.

    Raises:
        ValueError: `trainable` is not a prefix of the parts.
    """
    flags = _flags(parts, trainable)
    return {name: flags[name] if isinstance(flags, Mapping) else flags for name in parts}


def matching(params: Params, *, pattern: str) -> PyTree:
    """Marks the parameters whose path matches a regular expression, such as `actor/head/params/Dense_0/kernel`.

    Args:
        params: parameters.
        pattern: expression that is searched in every path; `^(?!critic)` matches all that do not begin with `critic`.

    Returns:
        A pytree of bool like `params`, for `trainable` or as the mask of a weight decay.

    Raises:
        ValueError: no path matches.
    """

    def path_of(path: tuple[Any, ...]) -> str:
        return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path)

    paths = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    if not any(re.search(pattern, path) for path in paths):
        raise ValueError(f"`pattern` must find a parameter, got {pattern!r}; there are {', '.join(paths)}.")
    return jax.tree_util.tree_map_with_path(lambda path, _: re.search(pattern, path_of(path)) is not None, params)


def carry_over(fresh: optax.OptState, earlier: optax.OptState) -> optax.OptState:
    """Returns the state with which an optimiser continues in another stage.

    Args:
        fresh: initial state in this stage, which gives hyper-parameters and the beginnings of schedules.
        earlier: final state of the previous stage, which gives what was learned about the gradients, such as moments.

    Returns:
        The state; `fresh` unchanged if the two belong to different optimisers or parameters.
    """
    if not same_shapes(fresh, earlier):
        return fresh

    def choose(new: PyTree, old: PyTree) -> PyTree:
        if isinstance(new, _INJECTED):
            return new._replace(inner_state=carry_over(new.inner_state, old.inner_state))
        return new if isinstance(new, optax.ScaleByScheduleState) else old

    return jax.tree.map(choose, fresh, earlier, is_leaf=lambda node: isinstance(node, _OF_A_STAGE))


def same_shapes(first: PyTree, second: PyTree) -> bool:
    """Returns whether two pytrees have the same structure, shapes and dtypes, so that one can replace the other."""
    if jax.tree.structure(first) != jax.tree.structure(second):  # type: ignore[operator]
        return False
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(jnp.shape(a) == jnp.shape(b) and jnp.result_type(a) == jnp.result_type(b) for a, b in pairs)


def make_adam(
    num_updates: int | None = None,
    *,
    learning_rate: float = 2.5e-4,
    anneal: bool = False,
    max_gradient_norm: float | None = None,
    epsilon: float = 1e-5,
    weight_decay: float = 0.0,
    flatten: bool = False,
) -> optax.GradientTransformation:
    """Makes Adam with optional clipping by global norm, decoupled weight decay and a linear decay to zero.

    Args:
        num_updates: number of optimiser steps of the whole run; needed by `anneal` only.
        learning_rate: initial learning rate.
        anneal: whether to decay the learning rate linearly to zero over `num_updates`.
        max_gradient_norm: global norm to which larger gradients are rescaled; null: no rescaling.
        epsilon: number added to Adam's denominator.
        weight_decay: fraction of the parameters subtracted per step, times the learning rate.
        flatten: whether to work on one vector of all parameters: fewer kernels, faster for small networks on one
            device.

    Returns:
        The transformation. For other moments, schedules or masks, see `make_chain`.

    Raises:
        ValueError: the learning rate is below 0, or `anneal` is set without `num_updates`.

    References:
        Kingma & Ba (2015), "Adam"; Loshchilov & Hutter (2019), "Decoupled Weight Decay Regularization".
    """
    _require_rate(learning_rate)
    if anneal and not num_updates:
        raise ValueError(f"`num_updates` must be positive when `anneal` is true, got {num_updates}.")
    steps = [optax.scale_by_adam(eps=epsilon)]
    if max_gradient_norm is not None:
        steps.insert(0, optax.clip_by_global_norm(max_gradient_norm))
    if weight_decay:
        steps.append(optax.add_decayed_weights(weight_decay))
    return _descend(steps, optax.linear_schedule(1.0, 0.0, num_updates) if anneal else None, learning_rate, flatten)


def make_chain(
    num_updates: int | None = None,
    *,
    transforms: Mapping[str, Callable[..., optax.GradientTransformation]],
    learning_rate: float,
    schedule: Callable[[int | None], optax.Schedule] | None = None,
    flatten: bool = False,
) -> optax.GradientTransformation:
    """Makes any chain of optax transformations, times a schedule, times `-learning_rate`.

    Args:
        num_updates: number of optimiser steps of the whole run.
        transforms: optax transformations, in this order and with arbitrary names, or functions that make them, such as
            `_partial_` gives. The float keywords of a partial become arrays in the state.
        learning_rate: learning rate at the maximum of the schedule, stored in the state.
        schedule: `(num_updates) -> (step -> factor)`, such as `warmup`; null keeps the factor at 1.
        flatten: see `make_adam`; cannot be combined with masks by path.

    Returns:
        The transformation.
    """
    _require_rate(learning_rate)
    steps = [_with_arrays(transform) for transform in transforms.values()]
    return _descend(steps, None if schedule is None else schedule(num_updates), learning_rate, flatten)


def make_separate(
    num_updates: int | None = None, *, optimizer: Callable[..., optax.GradientTransformation], names: Sequence[str]
) -> optax.GradientTransformation:
    """Makes an optimiser that treats every part of a mapping of parameters separately, including clipping by norm.

    Args:
        num_updates: number of optimiser steps of the whole run.
        optimizer: `(num_updates) -> optax.GradientTransformation` for each part.
        names: names of the parts.
    """
    parts = {name: optimizer(num_updates) for name in names}
    separate = optax.multi_transform(parts, {name: name for name in names})
    rated = {name: part for name, part in parts.items() if isinstance(part, Rated)}

    def rate(state: Any) -> Array:
        return jnp.stack([part.rate(state.inner_states[name].inner_state) for name, part in rated.items()])

    return _with_rate(separate, rate) if rated else separate


def of_each_agent(optimizer: optax.GradientTransformation, num_agents: int) -> optax.GradientTransformation:
    """Makes an optimiser that treats every agent's parameters separately, including clipping by norm.

    Args:
        optimizer: optimiser of the parameters of one agent.
        num_agents: N, leading axis of all parameters; gradients of the mean loss are multiplied by N for each agent.

    Returns:
        The transformation.
    """

    def update(grads: PyTree, state: PyTree, params: Params | None = None) -> tuple[PyTree, PyTree]:
        own = jax.tree.map(lambda leaf: num_agents * leaf, grads)
        return jax.vmap(optimizer.update)(own, state, params)

    of_agents = optax.GradientTransformation(init=jax.vmap(optimizer.init), update=update)
    return _with_rate(of_agents, jax.vmap(optimizer.rate)) if isinstance(optimizer, Rated) else of_agents


def warmup(
    num_updates: int | None, *, warmup_fraction: float = 0.0, final_factor: float = 0.0, cosine: bool = False
) -> optax.Schedule:
    """Makes a schedule that rises linearly from 0 to 1 and then falls.

    Args:
        num_updates: number of optimiser steps of the whole run.
        warmup_fraction: fraction of these steps in which it rises, in [0, 1).
        final_factor: value in the last step, in [0, 1]; with 1 it stays at the maximum.
        cosine: whether it falls along half a cosine; False: linearly.

    Returns:
        `(step) -> factor`.

    Raises:
        ValueError: the length is not known, or a fraction is out of its range.

    References:
        Loshchilov & Hutter (2017), "SGDR", equation 5.
    """
    if not num_updates:
        raise ValueError(f"`num_updates` must be positive for a schedule, got {num_updates}.")
    if not 0.0 <= warmup_fraction < 1.0 or not 0.0 <= final_factor <= 1.0:
        raise ValueError(
            "`warmup_fraction` must be in [0, 1) and `final_factor` in [0, 1], "
            f"got {warmup_fraction} and {final_factor}; try 0.1 and 0."
        )
    rise = round(warmup_fraction * num_updates)

    def factor(step: Array) -> Array:
        done = jnp.clip((step - rise) / max(num_updates - rise, 1), 0.0, 1.0)
        done = 0.5 * (1.0 - jnp.cos(math.pi * done)) if cosine else done
        return jnp.where(step < rise, step / max(rise, 1), 1.0 - (1.0 - final_factor) * done)

    return factor


def _descend(
    steps: Sequence[optax.GradientTransformation],
    schedule: optax.Schedule | None,
    learning_rate: float,
    flatten: bool,
) -> optax.GradientTransformation:
    """Chains transformations, the factor of a schedule, and `-learning_rate`, which is an array in the state."""
    scheduled = [] if schedule is None else [optax.scale_by_schedule(schedule)]
    descent = optax.inject_hyperparams(optax.scale_by_learning_rate)(learning_rate=learning_rate)
    optimizer = optax.chain(*steps, *scheduled, descent)

    def rate(state: Any) -> Array:
        height = state[-1].hyperparams["learning_rate"]
        return height if schedule is None else height * schedule(state[-2].count)

    return _with_rate(optax.flatten(optimizer) if flatten else optimizer, rate, flat=flatten)


def _with_rate(optimizer: optax.GradientTransformation, rate: Callable[[Any], Array], *, flat: bool = False) -> Rated:
    rated = Rated(*optax.with_extra_args_support(optimizer))
    rated.rate, rated.flat = rate, flat
    return rated


def _require_rate(learning_rate: float) -> None:
    """Refuses negative learning rates, which would ascend the loss; arrays, which may be traced, are not checked."""
    if isinstance(learning_rate, str | bool) or (isinstance(learning_rate, float | int) and learning_rate < 0.0):
        raise ValueError(f"`learning_rate` must be a number and not below 0, got {learning_rate!r}; try 1e-3.")


def _with_arrays(transform: Any) -> optax.GradientTransformation:
    """Makes a transformation from a partial, whose floats become arrays in its state; others are left unchanged."""
    if isinstance(transform, optax.GradientTransformation):
        return transform
    if not isinstance(transform, partial):
        return transform()
    numbers = {name for name, value in transform.keywords.items() if isinstance(value, float)}
    if not numbers:
        return transform()
    static = [name for name in inspect.signature(transform.func).parameters if name not in numbers]
    return optax.inject_hyperparams(transform.func, static_args=static)(*transform.args, **transform.keywords)


def _flags(params: Params, trainable: Trainable) -> PyTree | None:
    if trainable is None:
        return None
    flags = _to_dict(trainable(params) if callable(trainable) else trainable)
    try:
        jax.tree.map(lambda flag, _: bool(flag), flags, params)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"`trainable` must be a prefix pytree of bool of the parameters, got {flags}; their structure is "
            f"{jax.tree.structure(params)}."
        ) from error
    return flags


def _to_dict(tree: PyTree) -> PyTree:
    """Returns mappings of any kind, such as those of configs, as dicts, which are pytrees."""
    return {key: _to_dict(value) for key, value in tree.items()} if isinstance(tree, Mapping) else tree


def _without_frozen(tree: PyTree, flags: PyTree | None) -> PyTree:
    """Puts holes, which optimisers skip, where the flags are False."""
    if flags is None:
        return tree
    return jax.tree.map(lambda flag, subtree: subtree if flag else optax.MaskedNode(), flags, tree)

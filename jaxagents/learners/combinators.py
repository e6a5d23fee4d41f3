"""Learners around other learners, and the starting points of learners."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxagents.types import REPLICATED, Agent, Array, Collector, Learner, Metrics, Params, PyTree, State


def wrap(
    inner: Learner,
    init: Callable[..., State],
    update: Callable[[State, Array, PyTree], tuple[State, Metrics]],
    *,
    acting: Callable[[State, Params], Params] | None = None,
    partition: Callable[[State, PyTree], PyTree] | None = None,
) -> Learner:
    """Makes a learner around another one, whose state is the field `inner` of its own state.

    The inner learner decides who acts and what devices split, however many learners are around it.

    Args:
        inner: inner learner.
        init: see `Learner`.
        update: see `Learner`.
        acting: `(state, params with which the inner learner acts) -> params`; None: acts with the latter.
        partition: `(state, partition of the inner state) -> pytree` of int like the state; None: only what the inner
            learner splits is split.

    Returns:
        The learner.
    """

    def acting_params(state: State) -> Params:
        own = params_to_act(inner, state.inner)
        return own if acting is None else acting(state, own)

    def axes(state: State) -> PyTree:
        of_inner = partition_of(inner, state.inner)
        if partition is not None:
            return partition(state, of_inner)
        return jax.tree.map(lambda leaf: REPLICATED, state).replace(inner=of_inner)

    return Learner(init=init, update=update, acting=acting_params, partition=axes)


def wrapper_agent(
    agent: Agent,
    change: Callable[[Learner, Collector, int], Learner],
    *,
    acting: Callable[[Collector, Params], PyTree] | None = None,
) -> Agent:
    """Makes an agent whose learner wraps that of another agent.

    Args:
        agent: inner agent.
        change: `(learner, collector, number of updates of the run) -> Learner`, which wraps the learner.
        acting: `(collector, params of the inner agent) -> params` with which the collector acts, used when the inner
            learner needs the shapes of batches; None: the same parameters.

    Returns:
        The agent.
    """

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        def collect(state: State, params: Params, key: Array) -> tuple[State, PyTree, Metrics]:
            return collector.collect(state, params if acting is None else acting(collector, params), key)

        return change(agent.make_learner(collector._replace(collect=collect), num_updates), collector, num_updates)

    return agent._replace(make_learner=make_learner)


def rollout_shapes(collector: Collector, policy: Any) -> Any:
    """Returns the shapes of the batches of a collector, as `ShapeDtypeStruct`s, without running it.

    Args:
        collector: collector of rollouts or other batches.
        policy: policy that acts.
    """

    def collect(key: Array) -> PyTree:
        params = policy.init(key)
        return collector.collect(collector.init(key, params), params, key)[1]

    return jax.eval_shape(collect, jax.random.key(0))


def steps_per_update(make_learner: Callable[..., Learner], options: Mapping[str, Any]) -> int:
    """Returns the number of optimiser steps per update: all minibatches of all epochs, by a learner's options."""
    defaults = inspect.signature(make_learner).parameters
    names = [name for name in ("num_epochs", "num_minibatches") if name in defaults]
    return math.prod(options.get(name, defaults[name].default) for name in names)


def params_to_act(learner: Learner, state: State) -> Params:
    """Returns the parameters that the collector acts with."""
    return state.params if learner.acting is None else learner.acting(state)


def partition_of(learner: Learner, state: State) -> PyTree:
    """Returns the axis over which devices split each leaf of a learner's state, `REPLICATED` if they do not."""
    if learner.partition is None:
        return jax.tree.map(lambda leaf: REPLICATED, state)
    return learner.partition(state)


def params_of(start: Any) -> Params | None:
    """Returns the parameters of a starting point: a state of any learner, or parameters themselves."""
    return getattr(start, "params", start)


def start_of_inner(start: Any, kind: type[Any]) -> Any:
    """Returns the starting point of the inner learner: the inner state if the state is of this kind, else the same."""
    return start.inner if isinstance(start, kind) else start


def replace_innermost(state: State, change: Callable[[State], State]) -> State:
    """Changes the state of the innermost learner."""
    if not hasattr(state, "inner"):
        return change(state)
    return state.replace(inner=replace_innermost(state.inner, change))


def side_by_side(learner: Learner, num_members: int) -> Learner:
    """Makes `num_members` copies of a learner, each with a separate state and separate batches.

    Args:
        learner: learner of one member.
        num_members: P, number of copies.

    Returns:
        The learner; leaves of its state, batches and metrics are `[P, ...]`, and so are those of its starting point:
        parameters or states of all members.
    """

    def init(key: Array, start: State | Params | None = None) -> State:
        keys = jax.random.split(key, num_members)
        return jax.vmap(learner.init, in_axes=(0, None if start is None else 0))(keys, start)

    def update(state: State, key: Array, batch: PyTree) -> tuple[State, Metrics]:
        return jax.vmap(learner.update)(state, jax.random.split(key, num_members), batch)

    def partition(state: State) -> PyTree:
        return jax.tree.map(lambda axis: axis if axis == REPLICATED else axis + 1, partition_of(learner, state))

    return Learner(
        init=init,
        update=update,
        partition=partition,
        acting=jax.vmap(lambda state: params_to_act(learner, state)),
    )

"""Curricula around any learner of rollouts, which choose the levels of the next rollout."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import start_of_inner, wrap, wrapper_agent
from jaxagents.learners.optimizers import take_if
from jaxagents.types import Agent, Array, Collector, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class CurriculumState:
    """State of the learner.

    Attributes:
        inner: state of the learner that learns from the rollouts.
        memory: memory of the curriculum, including `levels`, those of the next rollout, leaves `[B, ...]`, over all
            devices.
    """

    inner: Any
    memory: Any

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


def with_curriculum(
    learner: Learner,
    init: Callable[[Array], Any],
    update: Callable[[Any, Params, Rollout, Array], tuple[Any, Array | Literal[True], Metrics]],
    *,
    acting: Callable[[Any, Params], Params] | None = None,
) -> Learner:
    """Makes a learner that chooses the levels of its rollouts, which `rollouts.levels` plays.

    Args:
        learner: learner for rollouts.
        init: `(keys [2]) -> memory`.
        update: `(memory, params, rollout, keys [2]) -> (memory, learns, metrics)`, with the parameters before the
            update; `learns` says whether the learner learns from this rollout.
        acting: `(memory, params) -> params` that play; None: those of the learner.

    Returns:
        The learner; collectors act with `{"params", "levels"}`. A stage that follows one with the same curriculum
        continues with its memory.
    """

    def init_state(key: Array, start: CurriculumState | Params | None = None) -> CurriculumState:
        keys = jax.random.split(key, 3)
        inner, memory = learner.init(keys[0], start_of_inner(start, CurriculumState)), init(keys[1:])
        if isinstance(start, CurriculumState) and _shapes(start.memory) == _shapes(memory):
            memory = start.memory
        return CurriculumState(inner=inner, memory=memory)

    def update_state(state: CurriculumState, key: Array, rollout: Rollout) -> tuple[CurriculumState, Metrics]:
        keys = jax.random.split(key, 3)
        inner, metrics = learner.update(state.inner, keys[0], rollout)
        memory, learns, own = update(state.memory, state.params, rollout, keys[1:])
        inner = take_if(learns, inner, state.inner) if isinstance(learns, jax.Array) else inner
        return CurriculumState(inner=inner, memory=memory), {**metrics, **own}

    def acting_params(state: CurriculumState, own: Params) -> dict[str, PyTree]:
        return {"params": own if acting is None else acting(state.memory, own), "levels": state.memory.levels}

    return wrap(learner, init_state, update_state, acting=acting_params)


def level_agent(
    with_levels: Callable[..., Learner],
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    level: int | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Makes an agent that chooses the levels of its rollouts, for collectors of `rollouts.levels`.

    Args:
        with_levels: `(learner, sample_level, *, num_levels, axis_name, **options) -> Learner`, a curriculum.
        environment: environment of one agent; its tasks are the levels.
        inner: `(environment, *, axis_name) -> Agent`, which learns.
        level: difficulty of new levels, if the world has several.
        axis_name: mapped device axis.
        **options: further arguments of `with_levels`.
    """

    def sample_level(key: Array, level: Any = level) -> PyTree:
        return environment.sample_task(key, level)

    def count_levels(collector: Collector) -> int:
        return jax.eval_shape(collector.init, jax.random.key(0), None).index.size

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        counts = {"num_levels": count_levels(collector), "axis_name": axis_name}
        return with_levels(learner, sample_level, **counts, **options)

    def acting(collector: Collector, params: Params) -> PyTree:
        return {"params": params, "levels": sample_levels(sample_level, jax.random.key(0), count_levels(collector))}

    return wrapper_agent(inner(environment, axis_name=axis_name), change, acting=acting)


def sample_levels(sample_level: Callable[[Array], PyTree], key: Array, count: int) -> PyTree:
    """Samples levels, leaves `[count, ...]`."""
    return jax.vmap(sample_level)(jax.random.split(key, count))


def select(condition: Array, when_true: PyTree, when_false: PyTree) -> PyTree:
    """Chooses between two pytrees of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), when_true, when_false)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.shape, tree)

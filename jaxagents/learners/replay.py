"""Experience replay, as a combinator of learners."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners import normalization as learner_normalization
from jaxagents.learners.checks import check_fractions
from jaxagents.learners.combinators import rollout_shapes, start_of_inner, steps_per_update, wrap
from jaxagents.learners.settings import Number, SettingsState, make_settings
from jaxagents.ops.checks import check_counts
from jaxagents.policies import normalization as policy_normalization
from jaxagents.types import (
    REPLICATED,
    Agent,
    Array,
    Collector,
    Environment,
    Learner,
    Mean,
    Metrics,
    Params,
    PyTree,
    Rollout,
    Sample,
    State,
    Transition,
)

_CARRY = "carry"


@struct.dataclass
class ReplayState:
    """State of a learner and its replay buffer.

    Attributes:
        inner: state of the learner.
        buffer: state of the buffer; every leaf is split over devices.
        settings: importance exponent.
    """

    inner: Any
    buffer: Any
    settings: SettingsState

    @property
    def params(self) -> Params:
        """Returns the parameters of the learner."""
        return self.inner.params


def with_replay(
    learner: Learner,
    buffer: Any,
    batch: Rollout,
    *,
    updates_per_rollout: int = 1,
    importance_exponent: Number = 0.4,
    num_updates: int = 1,
    axis_name: str | None = None,
) -> Learner:
    """Turns a learner of samples into a learner of rollouts.

    An update adds the rollout to the buffer; then, `updates_per_rollout` times, it draws a sample, updates the learner,
    and stores the priorities that the learner reports as `metrics["priority"]` (float `[B]`). Until the buffer can be
    sampled, the learner does not change. Priorities that are not finite do not replace the old ones; the metric
    `priority`, their mean, is then not finite either, which stops a run.

    Args:
        learner: learner for batches of `Sample`s.
        buffer: replay buffer, see `data.buffers.Buffer`.
        batch: rollout of arrays or `ShapeDtypeStruct`s, over all devices, which defines the shapes. See
            `rollout_shapes`.
        updates_per_rollout: number of updates of the learner after each rollout.
        importance_exponent: beta in [0, 1], the exponent of the weights of a prioritised buffer; 1 corrects fully. It
            may be a schedule over rollouts. Schaul et al. (2016): from 0.4 to 1.
        num_updates: number of rollouts in the whole run, for the schedule.
        axis_name: mapped axis over which rollouts and buffer are split.

    Returns:
        The learner. Metrics are means over the updates that took place. For a policy with memory, the carries at the
        time of acting are stored, and samples begin with them (Kapturowski et al., 2019: stored state).

    Raises:
        ValueError: `updates_per_rollout` is less than 1, or the exponent is out of its range.
    """
    check_counts(updates_per_rollout=updates_per_rollout)
    check_fractions(importance_exponent=importance_exponent)
    settings = make_settings({"importance_exponent": importance_exponent})
    kept = jax.eval_shape(_to_store, batch)
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), kept)
    num_envs = batch.transition.reward.shape[1]

    def init(key: Array, start: ReplayState | Params | None = None) -> ReplayState:
        inner = learner.init(key, start_of_inner(start, ReplayState))
        return ReplayState(
            inner=inner,
            buffer=buffer.init(example, num_envs),
            settings=settings.init(num_updates),
        )

    def update(state: ReplayState, key: Array, batch: Rollout) -> tuple[ReplayState, Metrics]:
        buffer_state = buffer.add(state.buffer, _to_store(batch))
        ready = buffer.can_sample(buffer_state)
        if axis_name is not None:
            # These already agree on all devices; this tells the compiler so.
            ready = jax.lax.pmin(ready.astype(jnp.int32), axis_name) > 0
        exponent = settings.open(state.settings)[0]["importance_exponent"]

        def step(state: ReplayState, keys: Array) -> tuple[ReplayState, Metrics]:
            sample_key, update_key = keys
            transition, weight, indices = buffer.sample(state.buffer, sample_key)
            sample = _to_sample(transition, weight**exponent)
            # The buffer stays outside the `cond`, which may copy what it returns.
            inner, metrics = _update_if(ready, learner, state.inner, update_key, sample)
            metrics = dict(metrics)
            priority = metrics.pop("priority", None)
            buffer_state = state.buffer
            if priority is not None:
                kept = jnp.where(ready & jnp.isfinite(priority), priority, -1.0)
                buffer_state = buffer.set_priorities(buffer_state, indices, kept)
                metrics["priority"] = _mean(priority, axis_name)
            return state.replace(inner=inner, buffer=buffer_state), metrics

        keys = jax.random.split(key, (updates_per_rollout, 2))
        state, metrics = jax.lax.scan(step, state.replace(buffer=buffer_state), keys)
        return state.replace(settings=settings.close(state.settings)), _reduce(metrics, ready.astype(jnp.float32))

    def partition(state: ReplayState, of_inner: PyTree) -> ReplayState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated.replace(inner=of_inner, buffer=jax.tree.map(lambda leaf: 0, state.buffer))

    return wrap(learner, init, update, partition=partition)


def _to_store(batch: Rollout) -> Transition:
    """Returns what is stored of a rollout: with memory, also every step's carry, previous action and reward.

    A learner of the samples draws its own noise.
    """
    transition = batch.transition.replace(noise=None)
    if not jax.tree.leaves(batch.carry):
        return transition.replace(previous_action=None, previous_reward=None)
    before = jax.tree.map(lambda leaf: leaf[:-1], batch.carry)
    return transition.replace(extras={**transition.extras, _CARRY: before})


def _to_sample(transition: Transition, weight: Array) -> Sample:
    extras = dict(transition.extras)
    carry = first_step(extras.pop(_CARRY, ()))
    return Sample(transition=transition.replace(extras=extras), weight=weight, carry=carry)


def replay_agent(
    make_learner: Callable[..., Learner],
    policy: Any,
    environment: Environment,
    *,
    optimizer: Callable[..., Any],
    buffer: Any | None = None,
    updates_per_rollout: int = 1,
    importance_exponent: Number = 0.4,
    normalize_observations: bool = False,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Combines a policy with a learner of samples, drawn from its rollouts or from a data set.

    Args:
        make_learner: `(optimizer, *, num_updates, axis_name, **options) -> Learner` of batches of `Sample`s.
        policy: `Policy`, or a `LatentModel` with which a search acts; has the parameters of the learner.
        environment: environment that defines the observation space.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`, or what `make_learner` accepts.
        buffer: replay buffer of raw observations, see `data.buffers.Buffer`; None if batches are samples of a data set.
        updates_per_rollout: see `with_replay`; 1 without a buffer.
        importance_exponent: see `with_replay`.
        normalize_observations: whether to standardise observations by running statistics of the samples.
        axis_name: see `with_replay`.
        **options: further arguments of `make_learner`.

    Returns:
        The agent.

    Raises:
        ValueError: a setting is out of its range, or there are several updates for one sample of a data set; later,
            samples are given to a buffer, or rollouts without a buffer.
    """
    space = environment.observation_space
    make: Callable[..., Learner] = partial(make_learner, axis_name=axis_name, **options)
    check_counts(updates_per_rollout=updates_per_rollout)
    make(optimizer(1))  # Refuses invalid settings before anything is compiled.
    if buffer is None and updates_per_rollout != 1:
        raise ValueError(
            f"`updates_per_rollout` must be 1 without a buffer, got {updates_per_rollout}: every sample is a batch; "
            "try more steps of training."
        )
    if normalize_observations:
        policy = policy_normalization.normalize_observations(policy, space)

    def make_agent_learner(collector: Collector, num_updates: int) -> Learner:
        batch = rollout_shapes(collector, policy)
        if isinstance(batch, Sample) and buffer is not None:
            raise ValueError("`buffer` must be null where batches are samples of a data set; try learner.buffer=null.")
        if not isinstance(batch, Sample) and buffer is None:
            raise ValueError("`buffer` must be given where batches are rollouts, got null; try collector=dataset.")
        num_samples = num_updates * updates_per_rollout
        num_steps = num_samples * steps_per_update(make_learner, options)
        learner = make(optimizer(num_steps), num_updates=num_samples)
        if normalize_observations:
            learner = learner_normalization.normalize_observations(learner, space, axis_name=axis_name)
        if buffer is None:
            return _without_priority(learner)
        return with_replay(
            learner,
            buffer,
            batch,
            updates_per_rollout=updates_per_rollout,
            importance_exponent=importance_exponent,
            num_updates=num_updates,
            axis_name=axis_name,
        )

    return Agent(policy=policy, make_learner=make_agent_learner)


def _without_priority(learner: Learner) -> Learner:
    """Makes a learner of samples that are not drawn by priority."""

    def update(state: State, key: Array, batch: Sample) -> tuple[State, Metrics]:
        state, metrics = learner.update(state, key, batch)
        return state, {name: value for name, value in metrics.items() if name != "priority"}

    return learner._replace(update=update)


def first_step(tree: PyTree) -> PyTree:
    """Returns the first step of sequences: leaves `[n, B, ...]` become `[B, ...]`."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def gather_step(tree: PyTree, index: Array) -> PyTree:
    """Returns steps `index[..., b]` of every sequence b: from leaves `[n, B, ...]`, int `[..., B]`, `[..., B, ...]`."""
    sequence = jnp.broadcast_to(jnp.arange(index.shape[-1]), index.shape)
    return jax.tree.map(lambda leaf: leaf[index, sequence], tree)


def _update_if(
    ready: Array, learner: Learner, state: State, key: Array, sample: Sample
) -> tuple[State, dict[str, Any]]:
    """Updates the learner if `ready`, otherwise returns its state and metrics of zeros."""

    update = jax.jit(learner.update, inline=True)  # Python runs it once for all uses below.

    def skip(state: State, key: Array, sample: Sample) -> tuple[State, Metrics]:
        _, shapes = jax.eval_shape(update, state, key, sample)
        return state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def select(state: State, key: Array, sample: Sample) -> tuple[State, Metrics]:
        updated = update(state, key, sample)
        return jax.tree.map(lambda new, old: jnp.where(ready, new, old), updated, skip(state, key, sample))

    # At a branch, a GPU would wait for the host, and copy everything that the branch returns.
    branch = partial(jax.lax.cond, ready, update, skip)
    return jax.lax.platform_dependent(state, key, sample, cuda=select, rocm=select, default=branch)


def _mean(values: Any, axis_name: str | None) -> Array:
    mean = jnp.mean(values)
    return mean if axis_name is None else jax.lax.pmean(mean, axis_name)


def _reduce(metrics: PyTree, ready: Array) -> Metrics:
    """Computes means over the leading axis of updates, counting none unless `ready`."""

    def is_mean(value: Any) -> bool:
        return isinstance(value, Mean)

    def reduce(value: Any) -> Mean:
        if is_mean(value):
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), value)
        return Mean(total=jnp.sum(value, axis=0), count=ready * value.shape[0])

    return jax.tree.map(reduce, metrics, is_leaf=is_mean)

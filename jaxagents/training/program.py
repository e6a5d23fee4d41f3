"""Programs: a collector and a learner as one step of training, and combinators of programs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import params_to_act, partition_of
from jaxagents.ops.checks import check_counts
from jaxagents.ops.packing import pack, unpack
from jaxagents.types import COUNTERS, REPLICATED, Array, Collector, Count, Learner, Mean, Metrics, PyTree, State

AXIS_NAME = "devices"  # Name of the mapped device axis.


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue.

    Attributes:
        learner: state of the learner.
        collector: state of the collector.
        key: random key of the run; every update folds in its number.
        update: int32, number of updates done.
        diverged: int32, the update that made the parameters NaN or infinite, or -1 if there was none; see `over_seeds`.
    """

    learner: State
    collector: State
    key: Array
    update: Array
    diverged: Array


class Program(NamedTuple):
    """One compiled step of training.

    Attributes:
        init: `(key, start=None) -> TrainState`; see `Learner.init`.
        update: `(TrainState) -> (TrainState, metrics)`; collects one batch and learns from it.
        partition: `(TrainState) -> pytree` of int: the axis over which devices split a leaf, or `REPLICATED`.
        steps_per_update: environment steps of one update, over all devices, per seed.
        divided_option: see `Collector`.
        num_seeds: number of independent copies that run in parallel; metrics have a leading axis of this size unless it
            is 0.
    """

    init: Callable[..., TrainState]
    update: Callable[[TrainState], tuple[TrainState, Metrics]]
    partition: Callable[[TrainState], PyTree]
    steps_per_update: int
    divided_option: str
    num_seeds: int = 0


def make_program(collector: Collector, learner: Learner) -> Program:
    """Composes `learner.update` after `collector.collect`.

    Args:
        collector: collector whose state has the environment axis first in every leaf.
        learner: learner from the collector's batches; `learner.acting` gives the parameters with which the collector
            acts.

    Returns:
        The program. Metrics of the collector are prefixed `rollout/`, those of the learner `train/`.
    """

    def init(key: Array, start: PyTree | None = None) -> TrainState:
        learner_key, collector_key, run_key = jax.random.split(key, 3)
        learner_state = learner.init(learner_key, start)
        return TrainState(
            learner=learner_state,
            collector=collector.init(collector_key, learner_state.params),
            key=run_key,
            update=jnp.zeros((), jnp.int32),
            diverged=jnp.full((), -1, jnp.int32),
        )

    def update(state: TrainState) -> tuple[TrainState, Metrics]:
        collect_key, learn_key = jax.random.split(jax.random.fold_in(state.key, state.update))
        params = params_to_act(learner, state.learner)
        collector_state, batch, rollout_metrics = collector.collect(state.collector, params, collect_key)
        learner_state, train_metrics = learner.update(state.learner, learn_key, batch)
        metrics = {f"rollout/{name}": value for name, value in rollout_metrics.items()}
        metrics |= {f"train/{name}": value for name, value in train_metrics.items()}
        state = state.replace(learner=learner_state, collector=collector_state, update=state.update + 1)
        return state, metrics

    def partition(state: TrainState) -> TrainState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated.replace(
            collector=jax.tree.map(lambda leaf: 0, state.collector), learner=partition_of(learner, state.learner)
        )

    return Program(
        init=init,
        update=update,
        partition=partition,
        steps_per_update=collector.steps_per_collect,
        divided_option=collector.divided_option,
    )


def over_seeds(program: Program, num_seeds: int) -> Program:
    """Runs `num_seeds` independent copies in parallel in one program.

    A copy whose parameters would become NaN or infinite keeps its last finite learner state from then on, and all
    metrics of its learner are NaN; the other copies are not affected.

    Args:
        program: program of one seed.
        num_seeds: number of copies; copy i folds i into the key. Given one key per copy (`[num_seeds]`, see
            `stage_keys`), each starts from its own key, as it would alone.

    Returns:
        A program whose state leaves and metrics have a leading seed axis.

    Raises:
        ValueError: `num_seeds` is not positive.
    """
    check_counts(num_seeds=num_seeds)

    def init(key: Array, start: PyTree | None = None) -> TrainState:
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(num_seeds)) if key.ndim == 0 else key
        return jax.vmap(program.init, in_axes=(0, None if start is None else 0))(keys, start)

    def update(state: TrainState) -> tuple[TrainState, Metrics]:
        after, metrics = program.update(state)
        floats = [x for x in jax.tree.leaves(after.learner.params) if jnp.issubdtype(x.dtype, jnp.inexact)]
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))
        alive = finite & (state.diverged < 0)
        # Replay buffers are large, and of no use to a learner that no longer changes.
        kept = jax.tree.map(
            lambda axis, new, old: jnp.where(alive, new, old) if axis == REPLICATED else new,
            program.partition(after).learner,
            after.learner,
            state.learner,
        )
        diverged = jnp.where(finite | (state.diverged >= 0), state.diverged, state.update)
        dead = Mean(total=jnp.float32(jnp.nan), count=jnp.float32(1.0))
        learned = {name: as_summary(value) for name, value in metrics.items() if name.startswith("train/")}
        learned = {name: jax.tree.map(partial(jnp.where, alive), value, dead) for name, value in learned.items()}
        return after.replace(learner=kept, diverged=diverged), {**metrics, **learned}

    def partition(state: TrainState) -> TrainState:
        return jax.tree.map(lambda axis: axis if axis == REPLICATED else axis + 1, program.partition(state))

    return Program(
        init=init,
        update=jax.vmap(update),
        partition=partition,
        steps_per_update=program.steps_per_update,
        divided_option=program.divided_option,
        num_seeds=num_seeds,
    )


def stage_keys(seed: int | Array, stage: int | Array, num_seeds: int = 0) -> Array:
    """Computes the keys from which the runs of a stage start, `fold_in(key(seed + i), stage)` for run i.

    No two pairs of a seed and a stage share a key, and run i of several equals a single run with the seed `seed + i`,
    up to the order of floating-point sums.

    Args:
        seed: uint32, seed of the first run; or `[num_seeds]`, one for every run.
        stage: index of the stage, counted from 0 over all stages of the experiment.
        num_seeds: number of seeds of the program; 0 without a seed axis.

    Returns:
        Keys `[num_seeds]`, or one key `[]`.
    """
    seeds = jnp.asarray(seed, jnp.uint32)
    if num_seeds and not seeds.ndim:
        seeds = seeds + jnp.arange(num_seeds, dtype=jnp.uint32)
    keys = jax.vmap(jax.random.key)(seeds) if seeds.ndim else jax.random.key(seeds)
    return jax.vmap(jax.random.fold_in, (0, None))(keys, stage) if seeds.ndim else jax.random.fold_in(keys, stage)


def run_updates(
    program: Program,
    state: TrainState,
    num_updates: Array,
    *,
    limits: Mapping[str, Array] | None = None,
    axis_name: str | None = None,
) -> tuple[TrainState, dict[str, Mean | Count]]:
    """Runs updates in one loop and merges their metrics.

    Args:
        program: program to run.
        state: initial state.
        num_updates: int32, number of updates; it may be traced, so that any number uses the same compiled program.
        limits: int32 by unit of experience, one for each seed if there are several: what is left of the budgets. The
            loop ends with the update in which every seed has reached one of them.
        axis_name: mapped device axis over which experience is counted.

    Returns:
        The state after the updates, and the means and counts of all metrics over them, merged exactly.
    """

    traced = _traced_once(program.update)

    def summarised(state: TrainState) -> tuple[TrainState, dict[str, Mean | Count]]:
        state, metrics = traced(state)
        return state, {name: as_summary(value) for name, value in metrics.items()}

    shapes = jax.eval_shape(summarised, state)[1]

    def update(loop: tuple[Array, TrainState, list[Array]]):
        number, state, merged = loop
        state, summaries = summarised(state)
        return number + 1, state, jax.tree.map(jnp.add, merged, pack(summaries))

    def update_within(loop: tuple[Array, TrainState, list[Array], Array]):
        number, state, merged = update(loop[:-1])
        counts = {unit: unpack(merged, shapes)[f"rollout/{unit}"].total for unit in limits}  # type: ignore[union-attr]
        counts = counts if axis_name is None else jax.lax.psum(counts, axis_name)
        reached = [counts[unit] >= limit for unit, limit in limits.items()]  # type: ignore[union-attr]
        return number, state, merged, jnp.all(jnp.any(jnp.stack(reached), axis=0))

    start = (jnp.int32(0), state, _zeros(jax.eval_shape(pack, shapes)))
    if not limits:
        _, state, merged = jax.lax.while_loop(lambda loop: loop[0] < num_updates, update, start)
    else:
        within = (*start, jnp.bool(False))
        _, state, merged, _ = jax.lax.while_loop(
            lambda loop: (loop[0] < num_updates) & ~loop[-1], update_within, within
        )
    return state, unpack(merged, shapes)


def counted_units(program: Program, axis_name: str | None = None) -> list[str]:
    """Returns the units in which a program counts its experience, without computing anything."""

    def update(state: TrainState) -> tuple[TrainState, Metrics]:
        if axis_name is None:
            return _traced_once(program.update)(state)
        return jax.vmap(program.update, axis_name=axis_name)(jax.tree.map(lambda leaf: leaf[None], state))

    logged = jax.eval_shape(update, jax.eval_shape(program.init, jax.random.key(0)))[1]
    return [unit for unit in COUNTERS if f"rollout/{unit}" in logged]


def report(summary: Mean | Count) -> Array:
    """Returns the value of a metric: NaN if nothing was counted, infinite if a counted value was not finite."""
    if isinstance(summary, Count):
        return summary.total
    finite = jnp.where(jnp.isfinite(summary.total), summary.value, jnp.inf)
    return jnp.where(summary.count > 0, finite, jnp.nan)


def _traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a version of the function that Python runs once per shape of its arguments, wherever it is traced."""
    return jax.jit(function, inline=True)


def as_summary(value: Array | Mean | Count) -> Mean | Count:
    """Returns a metric as a summary that can be added over updates and devices; a plain number counts once."""
    if isinstance(value, Mean | Count):
        return value
    return Mean(total=jnp.asarray(value, jnp.float32), count=jnp.ones(jnp.shape(value), jnp.float32))


def _zeros(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)

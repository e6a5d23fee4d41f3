"""Some devices sample while others learn: batches from lagging weights, in an order that only the seed determines."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxagents.learners.combinators import params_to_act
from jaxagents.training.devices import Runner, place, select_devices
from jaxagents.training.program import AXIS_NAME, Program, TrainState, as_summary, make_program, report
from jaxagents.types import Array, Collector, Count, Learner, Mean, Metrics, Params, PyTree, Sampled, Sampler, State

_WHOLE = PartitionSpec()
_NO_LIMITS: Mapping[str, np.ndarray] = MappingProxyType({})


def split_devices(num_devices: int | None, num_actors: int) -> tuple[list[jax.Device], list[jax.Device]]:
    """Returns the devices that sample, which are the last ones, and those that learn.

    Raises:
        ValueError: no device is left to learn, there are several processes, or see `select_devices`.
    """
    devices = select_devices("sharded", num_devices)
    if num_actors >= len(devices) or jax.process_count() > 1:
        raise ValueError(
            f"`devices.actors` must leave one of the devices of one process to learn, got {num_actors} of "
            f"{len(devices)} devices and {jax.process_count()} processes; try fewer actors, or devices=jit."
        )
    return devices[-num_actors:], devices[:-num_actors]


def require_same_lag(devices: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuses to resume a run with another number of waiting batches than it was saved with.

    Args:
        devices: `devices` section of the config.
        saved: the same section of the saved run.

    Raises:
        ValueError: the numbers differ; names both.
    """
    lags = [one.get("lag", 1) if one.get("actors") else None for one in (saved, devices)]
    if lags[0] != lags[1]:
        saved_on, wanted = ("no `devices.actors`" if lag is None else f"a `devices.lag` of {lag}" for lag in lags)
        raise ValueError(
            f"`devices` must keep the batches that wait where a run goes on, got one saved with {saved_on} for "
            f"{wanted}; try the same, on any number of devices."
        )


def make_device_sampler(collector: Collector, learner: Learner, devices: list[jax.Device]) -> Sampler:
    """Makes a sampler that collects on its own devices.

    Args:
        collector: collector made with `axis_name=AXIS_NAME`.
        learner: learner that provides the parameters for acting.
        devices: devices, each of which samples its share of the rows.

    Returns:
        The sampler.

    Raises:
        ValueError: the number of rows is not divisible by the number of devices, or a leaf of the batches has no rows.
    """
    program = make_program(collector, learner)
    abstract = place(program, mode="sharded", devices=devices).abstract.collector
    whole = NamedSharding(jax.tree.leaves(abstract)[0].sharding.mesh, _WHOLE)
    row_axes = _row_axes(collector, *jax.eval_shape(partial(_begin, program, learner), jax.random.key(0)))
    specs = jax.tree.map(_spec, row_axes)
    of_state = jax.tree.map(lambda leaf: leaf.sharding.spec, abstract)

    def collect(state: State, params: Params, key: Array) -> tuple[State, PyTree, Metrics]:
        state, batch, metrics = collector.collect(state, params, key)
        return state, batch, _summarise("rollout", metrics)

    compiled = jax.jit(
        jax.shard_map(
            collect,
            mesh=whole.mesh,
            in_specs=(of_state, _WHOLE, _WHOLE),
            out_specs=(of_state, specs, _WHOLE),
            check_vma=False,
        ),
        donate_argnums=0,
    )

    def sample(state: State, params: Params, version: Array, key: Array) -> tuple[State, Sampled]:
        state, batch, metrics = compiled(state, *jax.device_put((params, key), whole))
        return state, Sampled(batch=batch, metrics=metrics, version=version)

    return Sampler(
        init=lambda state: jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, abstract)),
        sample=sample,
        abstract=abstract,
        row_axes=row_axes,
    )


def place_apart(
    collector: Collector,
    learner: Learner,
    *,
    actors: list[jax.Device],
    learners: list[jax.Device],
    lag: int,
    read_params: Callable[[Array], Params] | None = None,
) -> Runner:
    """Places a program so that some devices sample while others learn.

    Batch u is sampled with the weights after update `max(u - lag, 0)`, while earlier batches are learned from, and is
    used once, in update u, whichever side is faster. The metric `rollout/staleness` is the mean lag of the batches.
    Waiting batches are part of the state, so that a resumed run gives the same results; the `lag` batches that wait at
    the end of a run are discarded and not counted. With a lag of 0, the run is the same as that of `devices.place`.

    Args:
        collector: collector made with `axis_name=AXIS_NAME`; its batches have an axis of rows in every leaf.
        learner: learner made with `axis_name=AXIS_NAME`.
        actors: devices that sample.
        learners: devices that learn.
        lag: K, number of batches that wait.
        read_params: see `devices.place`.

    Returns:
        The runner.

    Raises:
        ValueError: see `devices.place` and `make_device_sampler`.

    References:
        Espeholt et al. (2018), "IMPALA", section 4: actors whose weights lag, and truncated importance weights.
        Noukhovitch et al. (2025), "Asynchronous RLHF", section 3: one batch of lag for language models.
    """
    program = make_program(collector, learner)
    placed = place(program, mode="sharded", devices=learners, read_params=read_params)
    sampler = make_device_sampler(collector, learner, actors)
    whole, of_learner = placed.replicated, jax.tree.map(lambda leaf: leaf.sharding.spec, placed.abstract.learner)
    acting = jax.jit(partial(params_to_act, learner))
    key_of = jax.jit(lambda key, number: jax.random.split(jax.random.fold_in(key, number))[0])
    of_batch = jax.tree.map(_spec, sampler.row_axes)

    def learn(
        state: State, key: Array, update: Array, sampled: Sampled, before: Metrics | None
    ) -> tuple[State, Array, Metrics]:
        learn_key = jax.random.split(jax.random.fold_in(key, update))[1]
        state, metrics = learner.update(state, learn_key, sampled.batch)
        lagged = Mean(total=(update - sampled.version).astype(jnp.float32), count=jnp.float32(1.0))
        metrics = {**sampled.metrics, **_summarise("train", metrics), "rollout/staleness": lagged}
        return state, update + 1, metrics if before is None else jax.tree.map(jnp.add, before, metrics)

    learn_mapped = jax.shard_map(
        learn,
        mesh=whole.mesh,
        in_specs=(of_learner, _WHOLE, _WHOLE, Sampled(batch=of_batch, metrics=_WHOLE, version=_WHOLE), _WHOLE),  # type: ignore[arg-type]
        out_specs=(of_learner, _WHOLE, _WHOLE),
        check_vma=False,
    )
    learn_compiled = jax.jit(learn_mapped, donate_argnums=(0, 4))
    finish = jax.jit(lambda merged: {name: report(summary) for name, summary in merged.items()})

    def sample(state: TrainState, number: Array) -> tuple[State, Sampled]:
        """Starts to sample the batch of an update with the current weights."""
        return sampler.sample(
            state.collector["sampler"], acting(state.learner), state.update, key_of(state.key, number)
        )

    def placements(sampled: Sampled) -> Sampled:
        """Returns the placements of the arrived batches."""
        wholes = jax.tree.map(lambda leaf: whole, sampled)
        return wholes.replace(batch=jax.tree.map(partial(NamedSharding, whole.mesh), of_batch))

    def receive(sampled: Sampled) -> Sampled:
        return jax.device_put(sampled, placements(sampled))

    def init(seed: Any, stage: int = 0, start: PyTree | None = None) -> TrainState:
        state = placed.init(seed, stage, start)
        state = state.replace(collector={"sampler": sampler.init(state.collector), "waiting": ()})
        for number in range(lag):
            ahead, sampled = sample(state, jnp.int32(number))
            waiting = (*state.collector["waiting"], receive(sampled))
            state = state.replace(collector={"sampler": ahead, "waiting": waiting})
        return state

    def run(
        state: TrainState, num_updates: int, limits: Mapping[str, np.ndarray] = _NO_LIMITS
    ) -> tuple[TrainState, dict[str, Array]]:
        merged = None
        for _ in range(num_updates):
            ahead, sampled = sample(state, state.update + lag)
            waiting = state.collector["waiting"]
            # The waiting batch is learned from at once; the one being sampled arrives after it.
            batch, *waiting = waiting if lag else (receive(sampled),)
            if merged is None:
                shapes = jax.eval_shape(learn_mapped, state.learner, state.key, state.update, batch, None)[2]
                merged = jax.device_put(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes), whole)
            own, update, merged = learn_compiled(state.learner, state.key, state.update, batch, merged)
            waiting = (*waiting, receive(sampled)) if lag else ()
            state = state.replace(learner=own, update=update, collector={"sampler": ahead, "waiting": waiting})
            if any(int(merged[f"rollout/{unit}"].total) >= int(limit) for unit, limit in limits.items()):
                break
        return state, finish(merged)

    shapes = jax.eval_shape(lambda state: sample(state, state.update)[1], _with_waiting(placed.abstract, sampler, ()))
    arrived = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        placements(shapes),
    )
    return Runner(
        init=init,
        run=run,
        lower=None,
        params=lambda state: state.learner.params,
        to_global=lambda state: state,
        from_global=lambda state: state,
        abstract=_with_waiting(placed.abstract, sampler, (arrived,) * lag),
        acting=placed.acting,
        replicated=whole,
    )


def _with_waiting(abstract: TrainState, sampler: Sampler, waiting: tuple[Sampled, ...]) -> TrainState:
    return abstract.replace(collector={"sampler": sampler.abstract, "waiting": waiting})


def _begin(program: Program, learner: Learner, key: Array) -> tuple[State, Params, Array]:
    """Returns the first arguments of a collector."""
    state = program.init(key)
    return state.collector, params_to_act(learner, state.learner), key


def _row_axes(collector: Collector, state: State, params: Params, key: Array) -> PyTree:
    """Returns the axis of every leaf of a batch that grows with the rows of the collector."""

    def batch_of(factor: int) -> PyTree:
        def widen(leaf: Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((1, factor * leaf.shape[0], *leaf.shape[1:]), leaf.dtype)

        collect = jax.vmap(lambda *inputs: collector.collect(*inputs)[1], (0, None, None), axis_name=AXIS_NAME)
        return jax.eval_shape(collect, jax.tree.map(widen, state), params, key)

    def axis_of(one: Array, two: Array) -> int:
        grown = [axis for axis, sizes in enumerate(zip(one.shape[1:], two.shape[1:])) if sizes[0] != sizes[1]]
        if not grown:
            raise ValueError(
                "`collector` must give batches with rows in every leaf for `devices.actors`, got a leaf "
                f"{list(one.shape[1:])} without; try devices=sharded."
            )
        return grown[0]

    return jax.tree.map(axis_of, batch_of(1), batch_of(2))


def _summarise(phase: str, metrics: Metrics) -> dict[str, Mean | Count]:
    """Returns the summaries of metrics over devices."""
    return jax.lax.psum({f"{phase}/{name}": as_summary(value) for name, value in metrics.items()}, AXIS_NAME)


def _spec(axis: int) -> PartitionSpec:
    return PartitionSpec(*(None,) * axis, AXIS_NAME)

"""Ray actor processes that play while the learner learns: no chunk of experience is lost or counted twice."""

import atexit
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.environments.host import HostEnvironment
from jaxagents.ops.checks import check_counts
from jaxagents.rollouts.host import make_host_collector, require_host
from jaxagents.types import Array, Collector, Count, Mean, Metrics, Params, Policy, PyTree, Rollout

_MOST_FAILURES = 3  # Of one actor, in a row.
_STARTING = -1  # Takes the place of a chunk number.


class Chunk(NamedTuple):
    """A rollout of one actor.

    Attributes:
        stream: index of the actor that played it, whatever its process.
        number: index of the chunk in its stream, from 0.
        version: version of the weights with which it was played.
        process: id of the process that played it.
        rollout: leaves `[T, B, ...]`, numpy.
        metrics: metrics of the rollout.
    """

    stream: int
    number: int
    version: int
    process: int
    rollout: Rollout
    metrics: Metrics


class Player:
    """The object in an actor's process: its simulators, and the policy on its CPU."""

    def __init__(self, payload: bytes, num_envs: int, num_steps: int, stream: int, life: int) -> None:
        jax.config.update("jax_platforms", "cpu")  # Accelerators are for the learner.
        environment, policy = import_suite("ray", extra="ray").cloudpickle.loads(payload)
        collector = make_host_collector(environment, policy, num_envs=num_envs, num_steps=num_steps)
        self.stream, self.key = stream, jax.random.fold_in(jax.random.key(stream), life)
        self.state = jax.jit(lambda key: collector.init(key, None))(self.key)
        self.collect = jax.jit(collector.collect)

    def ready(self) -> None:
        """Returns once the simulators have started."""

    def play(self, params: Params, number: int, version: int, seed: int) -> Chunk:
        """Plays the next chunk."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, number), seed)
        self.state, rollout, metrics = self.collect(self.state, params, key)
        rollout, metrics = jax.tree.map(np.asarray, (rollout, dict(metrics)))
        return Chunk(self.stream, number, version, os.getpid(), rollout, metrics)


class ActorPool:
    """Actors and the chunks that they owe: every number in every stream is handed out once.

    An actor whose process has died is restarted with new episodes, and plays what it still owes: chunks are counted
    when they arrive, and are not requested again after that.
    """

    def __init__(
        self,
        environment: HostEnvironment,
        policy: Policy,
        *,
        num_actors: int,
        num_envs: int,
        num_steps: int,
        max_waiting: int = 2,
        max_lag: int | None = None,
        timeout_seconds: float = 300.0,
        address: str | None = None,
    ) -> None:
        """See `make_actor_collector`."""
        self.ray = import_suite("ray", extra="ray")
        if not self.ray.is_initialized():
            local = {"num_cpus": num_actors} if address is None else {"address": address}
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
            self.ray.init(**local, **quiet)
            atexit.register(self.ray.shutdown)
        self.payload = self.ray.put(self.ray.cloudpickle.dumps((environment, policy)))
        self.sizes, self.max_waiting, self.timeout_seconds = (num_envs, num_steps), max_waiting, timeout_seconds
        self.max_lag, self.discarded = max_lag, 0
        self.lives, self.failures, self.next_number = [0] * num_actors, [0] * num_actors, [0] * num_actors
        self.ready = [False] * num_actors
        self.backlog: list[list[int]] = [[] for _ in range(num_actors)]  # Chunks to be played again.
        self.owed: dict[Any, tuple[int, int]] = {}  # Stream and number, by the reference of the result.
        self.version, self.params, self.seed = -1, None, 0
        self.actors = [self._start(stream) for stream in range(num_actors)]

    @property
    def restarts(self) -> int:
        """Returns how often an actor was restarted."""
        return sum(self.lives)

    def take(self, params: Params, seed: int, num_chunks: int) -> list[Chunk]:
        """Publishes weights, lets the actors continue, and returns the first chunks to arrive that are not too old.

        Raises:
            TimeoutError: no chunk has arrived for `timeout_seconds`.
            RuntimeError: an actor died three times in a row.
        """
        self.version, self.params, self.seed = self.version + 1, self.ray.put(params), seed
        taken: list[Chunk] = []
        while len(taken) < num_chunks:
            self._submit()
            arrived, _ = self.ray.wait(list(self.owed), num_returns=1, timeout=self.timeout_seconds)
            if not arrived:
                raise TimeoutError(
                    "`collector.timeout_seconds` must be longer than actors take for a chunk, got "
                    f"{self.timeout_seconds} and no chunk of {len(self.actors)} actors; try a longer time, or fewer "
                    "num_steps."
                )
            stream, number = self.owed[arrived[0]]
            try:
                result = self.ray.get(arrived[0])
            except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError) as error:
                self._restart(stream, error)
                continue
            del self.owed[arrived[0]]
            if number == _STARTING:
                self.ready[stream] = True
                continue
            self.failures[stream] = 0
            if self.max_lag is not None and self.version - result.version > self.max_lag:
                self.discarded += 1
                self.backlog[stream] = sorted([number, *self.backlog[stream]])
                continue
            taken.append(result)
        self._submit()
        return taken

    def close(self) -> None:
        """Ends the actors."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.owed.clear()

    def _start(self, stream: int) -> Any:
        """Starts an actor; it gets chunks to play once it is ready, so that it uses the weights of that time."""
        remote = self.ray.remote(Player).options(num_cpus=1, max_restarts=0)
        actor = remote.remote(self.payload, *self.sizes, stream, self.lives[stream])
        self.ready[stream] = False
        self.owed[actor.ready.remote()] = (stream, _STARTING)
        return actor

    def _submit(self) -> None:
        """Gives chunks to every actor that does not owe or hold too many, so that a slow learner is not flooded."""
        for stream in [stream for stream, ready in enumerate(self.ready) if ready]:
            while sum(owner == stream for owner, _ in self.owed.values()) < self.max_waiting:
                if not self.backlog[stream]:
                    self.backlog[stream].append(self.next_number[stream])
                    self.next_number[stream] += 1
                number = self.backlog[stream].pop(0)
                reference = self.actors[stream].play.remote(self.params, number, self.version, self.seed)
                self.owed[reference] = (stream, number)

    def _restart(self, stream: int, error: Exception) -> None:
        self.lives[stream] += 1
        self.failures[stream] += 1
        if self.failures[stream] >= _MOST_FAILURES:
            raise RuntimeError(f"Actor {stream} has died {_MOST_FAILURES} times in a row: {error}") from error
        lost = [number for owner, number in self.owed.values() if owner == stream and number != _STARTING]
        self.backlog[stream] = sorted([*lost, *self.backlog[stream]])
        self.owed = {reference: owed for reference, owed in self.owed.items() if owed[0] != stream}
        self.actors[stream] = self._start(stream)


def make_actor_collector(
    environment: HostEnvironment,
    policy: Policy,
    *,
    num_actors: int,
    num_chunks: int,
    num_envs: int,
    num_steps: int,
    max_waiting: int = 2,
    max_lag: int | None = None,
    timeout_seconds: float = 300.0,
    address: str | None = None,
    axis_name: str | None = None,
) -> Collector:
    """Makes a collector whose batches are the rollouts of the actors that are ready first.

    Actors continue with older weights while the learner learns. The truncated importance weights of V-trace correct for
    this, as in algorithm=impala and algorithm=appo; the metric `staleness` is the mean number of updates by which they
    lag.

    Args:
        environment: environment that runs on the host.
        policy: policy that acts, on the CPU of every actor.
        num_actors: number of processes.
        num_chunks: number of rollouts in a batch.
        num_envs: number of simulators of an actor.
        num_steps: T, number of steps.
        max_waiting: number of chunks that an actor plays ahead of the learner.
        max_lag: greatest number of updates by which the weights of a chunk may lag. Older chunks, for example of a much
            slower actor, are discarded, and their actor plays replacements with the newest weights; the metric
            `discarded` counts them. None: no limit.
        timeout_seconds: longest time that the learner waits for a chunk.
        address: address of a Ray cluster; None starts processes on this machine.
        axis_name: mapped device axis; must be None.

    Returns:
        The collector.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: a size is not positive, more chunks are requested than actors owe, or see `make_host_collector`.

    References:
        Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
        Architectures", section 4.
    """
    check_counts(num_actors=num_actors, num_chunks=num_chunks, max_waiting=max_waiting)
    if max_lag is not None and max_lag < 0:
        raise ValueError(f"`max_lag` must not be negative, got {max_lag}; try null to take old chunks, too.")
    if num_chunks > num_actors * max_waiting:
        raise ValueError(f"`num_chunks` must be at most {num_actors * max_waiting}, what actors owe, got {num_chunks}.")
    require_host(environment, axis_name)
    import_suite("ray", extra="ray")
    one = make_host_collector(environment, policy, num_envs=num_envs, num_steps=num_steps)
    pools: list[ActorPool] = []

    def gather(params: Params, seed: Array) -> tuple[Rollout, Metrics]:
        if not pools:
            sizes = {"num_actors": num_actors, "num_envs": num_envs, "num_steps": num_steps}
            limits = {"max_waiting": max_waiting, "max_lag": max_lag, "timeout_seconds": timeout_seconds}
            options: dict[str, Any] = sizes | limits | {"address": address}
            pools.append(ActorPool(environment, policy, **options))
        pool, before = pools[0], (pools[0].restarts, pools[0].discarded)
        chunks = pool.take(jax.tree.map(np.asarray, params), int(seed), num_chunks)
        since: Any = np.array((pool.restarts, pool.discarded), np.int32) - np.array(before, np.int32)
        rollout, metrics = _merge(chunks, pool.version)
        return rollout, metrics | {"restarts": Count(since[0]), "discarded": Count(since[1])}

    def init(key: Array, params: Params) -> Array:
        del key, params
        return jnp.arange(num_chunks * num_envs, dtype=jnp.int32)  # The actors hold all state.

    def collect(state: Array, params: Params, key: Array) -> tuple[Array, Rollout, Metrics]:
        shapes = _shapes(one, params, num_chunks)
        rollout, metrics = io_callback(gather, shapes, params, jax.random.bits(key, (), jnp.uint32), ordered=True)
        return state, rollout, metrics

    return Collector(init=init, collect=collect, steps_per_collect=num_chunks * num_envs * num_steps)


def _merge(chunks: list[Chunk], version: int) -> tuple[Rollout, dict[str, PyTree]]:
    """Joins chunks along the environment axis, and adds up their counts."""
    rollout = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *(chunk.rollout for chunk in chunks))
    metrics = jax.tree.map(lambda *leaves: np.asarray(sum(leaves)), *(chunk.metrics for chunk in chunks))
    lag: Any = np.float32(sum(version - chunk.version for chunk in chunks))
    count: Any = np.float32(len(chunks))
    metrics["staleness"] = Mean(total=lag, count=count)
    return rollout, metrics


def _shapes(one: Collector, params: Params, num_chunks: int) -> tuple[Rollout, dict[str, PyTree]]:
    """Returns the shapes and dtypes of several joined chunks."""

    def played(params: Params) -> tuple[Rollout, Metrics]:
        return one.collect(one.init(jax.random.key(0), params), params, jax.random.key(0))[1:]

    rollout, metrics = jax.eval_shape(played, params)
    number: Any = jax.ShapeDtypeStruct((), np.float32)
    count: Any = jax.ShapeDtypeStruct((), np.int32)
    metrics = dict(metrics) | {"staleness": Mean(total=number, count=number)}
    metrics |= {"restarts": Count(count), "discarded": Count(count)}

    def widen(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((leaf.shape[0], num_chunks * leaf.shape[1], *leaf.shape[2:]), leaf.dtype)

    return jax.tree.map(widen, rollout), metrics

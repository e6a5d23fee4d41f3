"""ReLIFT (Ma et al., 2025): imitates demonstrations of unsolved tasks between reinforcement updates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import replace_innermost, start_of_inner, steps_per_update, wrap, wrapper_agent
from jaxagents.learners.optimizers import Trainable
from jaxagents.learners.supervised import make_supervised
from jaxagents.ops.conditions import cond
from jaxagents.ops.rows import put_in_front, rows_of_all_devices, share_of_device
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Demonstrated,
    Environment,
    Episode,
    LanguagePolicy,
    Learner,
    Mean,
    Metrics,
    Params,
    State,
)

Choose = Callable[[Array, Array], Array]


@struct.dataclass
class InterleavedState:
    """State of the reinforcement, and demonstrations that wait for a supervised step, the newest ones first.

    Attributes:
        inner: state of the reinforcement.
        waiting: `Episode` of C rows.
        filled: bool `[C]`, which rows hold a demonstration.
        opt_state: optimiser state of the supervised steps.
    """

    inner: State
    waiting: Episode
    filled: Array
    opt_state: optax.OptState

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def make_interleaved(
    reinforcement: Learner,
    supervised: Learner,
    example: Demonstrated,
    *,
    choose: Choose,
    batch_size: int,
    capacity: int,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that also imitates an expert on some of the tasks.

    Every update first puts the demonstrations of the chosen tasks in front of a queue, then learns from the policy's
    own episodes, and then, if at least `batch_size` demonstrations are waiting, removes the newest `batch_size` of them
    and makes one supervised step on them. Both steps change the same parameters, but have separate optimiser states, so
    that the moments of one do not scale the steps of the other.

    Args:
        reinforcement: policy-gradient learner of `Episode` batches, or a wrapper of one.
        supervised: supervised learner of `Episode` batches with the same `axis_name`.
        example: batch of arrays or `ShapeDtypeStruct`s, which defines the shapes.
        choose: `(success bool [n, G], key) -> bool [n]`, the tasks whose demonstrations join the queue.
        batch_size: number of demonstrations per supervised step.
        capacity: C, number of demonstrations that can wait; the oldest ones are dropped.
        axis_name: mapped device axis. Every device stores the demonstrations of all, and takes its share of those of a
            step, or all of them if they do not divide evenly.

    Returns:
        The learner of `Demonstrated` batches. Metrics are those of the reinforcement, `demonstrations` (used in this
        update), `demonstrated_fraction` (tasks whose demonstrations joined the queue), and `waiting`.

    Raises:
        ValueError: counts are not positive, or the capacity is smaller than a batch.

    References:
        Ma et al. (2025), "Learning What Reinforcement Learning Can't: Interleaved Online Fine-Tuning for Hardest
        Questions", algorithm 1.

    Deviation: at most one supervised step per update, as in the paper; demonstrations that do not fit into the queue
        are lost, whereas the paper's queue is unbounded.
    """
    if batch_size < 1 or capacity < batch_size:
        raise ValueError(
            f"`capacity` must be at least `batch_size`, and both positive, got {capacity} and {batch_size}; "
            f"try {4 * max(batch_size, 1)}."
        )

    def init(key: Array, start: InterleavedState | Params | None = None) -> InterleavedState:
        waiting = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape[1:]), leaf.dtype), example.demonstration)
        inner = reinforcement.init(key, start_of_inner(start, InterleavedState))
        opt_state = (
            start.opt_state if isinstance(start, InterleavedState) else supervised.init(key, inner.params).opt_state
        )
        return InterleavedState(inner=inner, waiting=waiting, filled=jnp.zeros(capacity, bool), opt_state=opt_state)

    def imitate(
        inner: State, opt_state: optax.OptState, key: Array, demonstrations: Episode
    ) -> tuple[State, optax.OptState]:
        imitator = supervised.init(key, inner.params).replace(params=inner.params, opt_state=opt_state)
        imitator, _ = supervised.update(imitator, key, share_of_device(demonstrations, axis_name))
        return replace_innermost(inner, lambda state: state.replace(params=imitator.params)), imitator.opt_state

    def update(state: InterleavedState, key: Array, batch: Demonstrated) -> tuple[InterleavedState, Metrics]:
        choice_key, update_key, imitation_key = jax.random.split(key, 3)
        demonstration, success = batch.demonstration, batch.own.success
        success = success.reshape(demonstration.success.shape[0], -1)
        demonstration, success = rows_of_all_devices((demonstration, success), axis_name)
        chosen = choose(success, choice_key)
        waiting, filled = put_in_front(state.waiting, state.filled, demonstration, chosen)
        inner, metrics = reinforcement.update(state.inner, update_key, batch.own)
        enough = jnp.sum(filled) >= batch_size
        newest = jax.tree.map(lambda leaf: leaf[:batch_size], waiting)
        inner, opt_state = cond(
            enough,
            lambda inner, opt_state: imitate(inner, opt_state, imitation_key, newest),
            lambda inner, opt_state: (inner, opt_state),
            inner,
            state.opt_state,
        )
        filled = filled & ~(enough & (jnp.arange(capacity) < batch_size))
        metrics = dict(metrics) | {
            "demonstrations": jnp.where(enough, jnp.float32(batch_size), 0.0),
            "demonstrated_fraction": Mean(total=jnp.sum(chosen, dtype=jnp.float32), count=jnp.float32(chosen.shape[0])),
            "waiting": jnp.sum(filled, dtype=jnp.float32),
        }
        return InterleavedState(inner=inner, waiting=waiting, filled=filled, opt_state=opt_state), metrics

    return wrap(reinforcement, init, update)


def unsolved(success: Array, key: Array) -> Array:
    """Chooses the tasks that no episode of their group solved (algorithm 1): bool `[n]` of bool `[n, G]`."""
    del key
    return ~jnp.any(success, axis=1)


def as_many_as_unsolved(success: Array, key: Array) -> Array:
    """Chooses the same number of tasks as `unsolved`, but at random: its ablation."""
    return jax.random.permutation(key, unsolved(success, key))


def no_task(success: Array, key: Array) -> Array:
    """Chooses no task: reinforcement alone."""
    return jnp.zeros_like(unsolved(success, key))


def make_agent(
    environment: Environment,
    *,
    optimizer: Callable[..., optax.GradientTransformation],
    choose: Choose,
    batch_size: int,
    capacity: int,
    microbatch_tokens: int = 4096,
    trainable: Trainable = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles reinforcement with supervised steps in between for a text world.

    Args:
        environment: text world.
        optimizer: `(optimiser steps of the reinforcement) -> optax.GradientTransformation` for both; each has a
            separate state, and the schedule of supervised steps, which are fewer, does not reach its end.
        choose: see `make_interleaved`.
        batch_size: see `make_interleaved`.
        capacity: see `make_interleaved`.
        microbatch_tokens: approximate number of tokens per pass through the model.
        trainable: parameters that are trained, see `apply_updates`.
        axis_name: see `make_interleaved`.
        **options: further arguments of `learners.policy_gradient.make_agent`.
    """
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "trainable": trainable, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, optimizer=optimizer, **both, **options)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        steps = optimizer(num_updates * steps_per_update(policy_gradient.make_policy_gradient, options))
        counts = {"batch_size": batch_size, "capacity": capacity}
        supervised, example = make_supervised(agent.policy.model, steps, **both), _example(agent.policy, collector)
        return make_interleaved(learner, supervised, example, choose=choose, axis_name=axis_name, **counts)

    return wrapper_agent(agent, change)


def _example(policy: LanguagePolicy, collector: Collector) -> Demonstrated:
    """Returns the shapes of a batch, without playing."""

    def collect(key: Array) -> Demonstrated:
        params = policy.init(key)
        return collector.collect(collector.init(key, params), params, key)[1]

    example = jax.eval_shape(collect, jax.random.key(0))
    if not isinstance(example, Demonstrated):
        raise ValueError(
            f"`collector` must give own episodes and demonstrations, got batches of {type(example).__name__}; "
            "try collector=demonstrated."
        )
    return example

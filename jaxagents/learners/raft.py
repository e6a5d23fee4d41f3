"""RAFT (Dong et al., 2023), ReST-EM, STaR, AgentEvol: imitation of selected own episodes, in iterations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import params_of, rollout_shapes, start_of_inner, wrap
from jaxagents.learners.optimizers import Trainable
from jaxagents.learners.settings import SettingsState, Slot, make_settings
from jaxagents.learners.stores import draw_rows, empty_store
from jaxagents.learners.supervised import make_supervised
from jaxagents.ops.checks import check_counts
from jaxagents.ops.conditions import cond
from jaxagents.ops.imitation import successful
from jaxagents.ops.rows import put_in_front, rows_of_all_devices, share_of_device
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Demonstrated,
    Environment,
    Episode,
    EpisodeView,
    LanguagePolicy,
    Learner,
    Mean,
    Metrics,
    Params,
    State,
)


@struct.dataclass
class IteratedState:
    """State of the imitation, its starting point for new iterations, and the episodes from which it learns.

    Attributes:
        inner: state of the imitation.
        base: parameters from which every iteration starts; None if it continues from the previous one.
        demonstrations: `Episode` of an expert's rows, which are kept; None without demonstrations.
        num_stored: int32, number of filled rows of `demonstrations`.
        store: `Episode` of C own rows, the newest ones first.
        filled: bool `[C]`, which rows hold an episode.
        num_updates: int32, number of batches so far.
        numbers: hyper-parameters of the selection.
        memory: memory of the selection.
    """

    inner: State
    base: Params | None
    demonstrations: Episode | None
    num_stored: Array
    store: Episode
    filled: Array
    num_updates: Array
    settings: SettingsState

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def make_iterated(
    imitation: Learner,
    example: Any,
    *,
    select: Slot = successful,
    num_collects: int,
    num_steps: int,
    batch_size: int,
    capacity: int,
    num_demonstrations: int = 0,
    restart: bool = False,
    forget: bool = True,
    num_updates: int = 1,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that plays `num_collects` batches, imitates the selected episodes, and starts over.

    Iteration m plays with the parameters theta_m, keeps the episodes that `select` chooses in the store D, and makes
    `num_steps` steps towards `theta_{m+1} = argmax E_{tau ~ D} [log pi(tau)]`, from theta_m or from the start.

    Args:
        imitation: supervised learner of `Episode` batches, or a wrapper of one.
        example: batch of arrays or `ShapeDtypeStruct`s, which defines the shapes.
        select: `(view: EpisodeView, *, axis_name) -> bool [B]`, see `ops.imitation`; filters of groups can be used,
            too.
        num_collects: number of batches in an iteration.
        num_steps: number of optimiser steps in an iteration; none is made while nothing is stored.
        batch_size: number of episodes in a step, drawn without repetition; in rotation if the store has fewer.
        capacity: C, number of own episodes that can be stored; the oldest ones are forgotten first.
        num_demonstrations: number of an expert's episodes that are also imitated, the first ones of `Demonstrated`
            batches.
        restart: whether every iteration starts from the initial parameters and optimiser, not from the previous
            iteration.
        forget: whether own episodes are only those of the latest iteration.
        num_updates: number of updates of the whole run, for choices that depend on progress.
        axis_name: mapped device axis. Every device stores the episodes of all, and takes its share of those of a step,
            or all of them if they do not divide evenly.

    Returns:
        The learner of `Episode` batches, or of `Demonstrated` ones with `num_demonstrations`. Metrics are those of the
        imitation, as means over the steps of an iteration, `selected_fraction` of the episodes, and `stored` own ones.

    Raises:
        ValueError: a count is not positive, or batches have no demonstrations.

    References:
        Dong et al. (2023), "RAFT", algorithm 1 (`best_of_group`, one batch an iteration); Singh et al. (2024), "Beyond
        Human Data", algorithm 1 (ReST^EM: `successful`, `restart`); Xi et al. (2024), "AgentGym", algorithm 1
        (AgentEvol: `successful`, `restart`, demonstrations).

    Deviation: every step draws its episodes anew, whereas the papers go through the store in epochs.
    """
    check_counts(num_collects=num_collects, num_steps=num_steps, batch_size=batch_size, capacity=capacity)
    if num_demonstrations < 0 or (num_demonstrations and not isinstance(example, Demonstrated)):
        raise ValueError(
            f"`num_demonstrations` must be 0 without an expert beside, got {num_demonstrations}; try "
            "collector=demonstrated."
        )
    settings = make_settings(slots={"select": select})

    def init(key: Array, start: IteratedState | Params | None = None) -> IteratedState:
        inner = imitation.init(key, start_of_inner(start, IteratedState))
        return IteratedState(
            inner=inner,
            base=jax.tree.map(jnp.copy, params_of(inner)) if restart else None,
            demonstrations=empty_store(example.demonstration, num_demonstrations) if num_demonstrations else None,
            num_stored=jnp.int32(0),
            store=empty_store(_own(example), capacity),
            filled=jnp.zeros(capacity, bool),
            num_updates=jnp.int32(0),
            settings=settings.init(num_updates),
        )

    def keep(state: IteratedState, batch: Any) -> tuple[IteratedState, Array]:
        """Stores the episodes to imitate; returns which own episodes of this device were selected."""
        own = _own(batch)
        chosen, summary = settings.open(state.settings)[1]["select"](EpisodeView(episode=own), axis_name=axis_name)
        rows, all_chosen = rows_of_all_devices((own, chosen), axis_name)
        begins = state.num_updates % num_collects == 0
        filled = state.filled & ~(begins & forget)
        store, filled = put_in_front(state.store, filled, rows, all_chosen)
        closed = settings.close(state.settings, summary, axis_name=axis_name)
        state = state.replace(store=store, filled=filled, settings=closed)
        if num_demonstrations:
            state = _show(state, rows_of_all_devices(batch.demonstration, axis_name))
        return state, chosen

    def imitate(state: IteratedState, key: Array) -> tuple[State, Metrics]:
        filled, rows = state.filled, state.store
        if num_demonstrations:
            filled = jnp.concatenate([jnp.arange(num_demonstrations) < state.num_stored, filled])
            rows = _joined(state.demonstrations, rows)
        start_key, steps_key = jax.random.split(key)
        inner = imitation.init(start_key, state.base) if restart else state.inner

        def step(inner: State, key: Array) -> tuple[State, Metrics]:
            draw_key, update_key = jax.random.split(key)
            chosen = draw_rows(draw_key, filled, batch_size)
            batch = share_of_device(jax.tree.map(lambda leaf: leaf[chosen], rows), axis_name)
            return imitation.update(inner, update_key, batch)

        inner, metrics = jax.lax.scan(step, inner, jax.random.split(steps_key, num_steps))
        return inner, {name: _mean_of_steps(metric) for name, metric in metrics.items()}

    def update(state: IteratedState, key: Array, batch: Episode | Demonstrated) -> tuple[IteratedState, Metrics]:
        state, chosen = keep(state, batch)
        state = state.replace(num_updates=state.num_updates + 1)
        due = (state.num_updates % num_collects == 0) & (jnp.any(state.filled) | (state.num_stored > 0))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(imitate, state, key)[1])
        inner, metrics = cond(due, imitate, lambda state, key: (state.inner, nothing), state, key)
        total = jnp.sum(chosen, dtype=jnp.float32)
        metrics = dict(metrics) | {
            "selected_fraction": Mean(total=total, count=jnp.float32(chosen.shape[0])),
            "stored": jnp.sum(state.filled, dtype=jnp.float32),
        }
        return state.replace(inner=inner), metrics

    return wrap(imitation, init, update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    select: Slot = successful,
    num_collects: int,
    num_steps: int,
    batch_size: int,
    capacity: int,
    num_demonstrations: int = 0,
    restart: bool = False,
    forget: bool = True,
    trainable: Trainable = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles iterated imitation of the policy's own episodes for a text world.

    Args:
        environment: text world.
        policy: `(environment) -> LanguagePolicy`.
        optimizer: `(optimiser steps) -> optax.GradientTransformation`, for the steps of an iteration if it restarts,
            else for those of the whole run.
        select: see `make_iterated`.
        num_collects: see `make_iterated`.
        num_steps: see `make_iterated`.
        batch_size: see `make_iterated`.
        capacity: see `make_iterated`.
        num_demonstrations: see `make_iterated`.
        restart: see `make_iterated`.
        forget: see `make_iterated`.
        trainable: parameters that are trained, see `apply_updates`.
        axis_name: see `make_iterated`.
        **options: further arguments of `learners.supervised.make_supervised`.

    Returns:
        The agent.
    """
    actor = policy(environment)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        steps = num_steps if restart else num_steps * max(1, num_updates // num_collects)
        imitation = make_supervised(
            actor.model,
            optimizer(steps),
            num_updates=steps,
            trainable=trainable,
            axis_name=axis_name,
            **options,
        )
        return make_iterated(
            imitation,
            rollout_shapes(collector, actor),
            select=select,
            num_collects=num_collects,
            num_steps=num_steps,
            batch_size=batch_size,
            capacity=capacity,
            num_demonstrations=num_demonstrations,
            restart=restart,
            forget=forget,
            num_updates=num_updates,
            axis_name=axis_name,
        )

    return Agent(policy=actor, make_learner=make_learner)


def _own(batch: Episode | Demonstrated) -> Episode:
    return batch.own if isinstance(batch, Demonstrated) else batch


def _show(state: IteratedState, demonstrations: Episode) -> IteratedState:
    """Fills the free rows of an expert's episodes."""
    size, num_fresh = state.demonstrations.success.shape[0], demonstrations.success.shape[0]
    place = state.num_stored + jnp.arange(num_fresh)  # Places past the end are dropped.
    stored = jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), state.demonstrations, demonstrations)
    return state.replace(demonstrations=stored, num_stored=jnp.minimum(state.num_stored + num_fresh, size))


def _joined(demonstrations: Episode, own: Episode) -> Episode:
    """Joins an expert's episodes and own ones; values after truncations count for neither."""
    both = [episode.replace(bootstrap_value=None) for episode in (demonstrations, own)]
    return jax.tree.map(lambda one, other: jnp.concatenate([one, other]), *both)


def _mean_of_steps(metric: Any) -> Mean:
    """Adds up a metric over the leading axis of steps."""
    if isinstance(metric, Mean):
        return Mean(total=jnp.sum(metric.total, axis=0), count=jnp.sum(metric.count, axis=0))
    return Mean(total=jnp.sum(metric, axis=0, dtype=jnp.float32), count=jnp.float32(metric.shape[0]))

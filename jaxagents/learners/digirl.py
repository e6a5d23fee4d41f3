"""DigiRL (Bai et al., 2024): imitates own turns that raise the value, in episodes better than their task's value."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import params_of, rollout_shapes, start_of_inner, wrap
from jaxagents.learners.optimizers import Trainable
from jaxagents.learners.stores import draw_rows, empty_store
from jaxagents.learners.supervised import make_supervised
from jaxagents.learners.turn_values import TurnValues, TurnValueState, cross_entropy, make_turn_values
from jaxagents.ops.checks import check_counts, require_between
from jaxagents.ops.episodes import acting_turns, episode_return, kept_rows, return_to_go, to_tokens_of_turn
from jaxagents.ops.rows import put_in_front, rows_of_all_devices, share_of_device
from jaxagents.types import Agent, Array, Collector, Environment, Episode, LanguagePolicy, Learner, Metrics, Params


@struct.dataclass
class DigiRLState:
    """States of the imitation and of the values, and own episodes `[C, ...]`, the newest ones first."""

    inner: Any
    values: TurnValueState
    store: Episode
    filled: Array

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def make_digirl(
    imitation: Learner,
    values: TurnValues,
    example: Episode,
    *,
    capacity: int,
    batch_size: int,
    num_steps: int,
    num_value_steps: int,
    share: float = 0.1,
    threshold: float = 0.05,
    discount: float = 0.5,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that imitates own turns, selected by the values of states.

    Every update stores its episodes, fits V to whether `G_t = sum_k discount^(k - t) r_k` is above 0 by cross-entropy,
    chooses the share of the stored episodes with the largest `R - p(s_0)`, p = sigmoid(V), and imitates those of their
    turns with `A_t = p(s_{t+1}) - p(s_t) - threshold + r_t + G_t > 0`. After the last turn, p is 1 if its reward was
    above 0, else 0.

    Args:
        imitation: supervised learner of `Episode` batches.
        values: model of V.
        example: batch of arrays or `ShapeDtypeStruct`s, which defines the shapes.
        capacity: C, number of stored own episodes; the oldest ones are forgotten first.
        batch_size: number of episodes in a step.
        num_steps: number of steps of the imitation per update.
        num_value_steps: number of steps of the values per update.
        share: share of the stored episodes that are imitated, in (0, 1], at least one of them.
        threshold: number that is subtracted from the advantage of turns, see above.
        discount: per turn, in [0, 1].
        axis_name: mapped device axis. Every device stores the episodes of all, and takes its share of those of a step.

    Returns:
        The learner. Metrics are those of the imitation, `imitated_turns`, the share of the turns in a step,
        `value_loss` (log 2 = 0.69 for a constant guess) and `stored`.

    Raises:
        ValueError: a count is not positive, or a number out of its range.

    References:
        Bai et al. (2024), "DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning".
        DigiRL-agent/digirl@53320f6, digirl/algorithms/digirl/trainer.py:133-148, offpolicy_train_loop.py:53-73.

    Deviation: one model with one head gives the values of both tasks and steps; the paper has two models, and uses the
        smaller of two heads for steps.
    """
    check_counts(capacity=capacity, batch_size=batch_size, num_steps=num_steps, num_value_steps=num_value_steps)
    require_between("discount", discount, 0.0, 1.0)
    if not 0.0 < share <= 1.0:
        raise ValueError(f"`share` must be in (0, 1], got {share}; try 0.1.")

    def init(key: Array, start: DigiRLState | Params | None = None) -> DigiRLState:
        inner = imitation.init(key, start_of_inner(start, DigiRLState))
        earlier = start.values if isinstance(start, DigiRLState) else None
        return DigiRLState(
            inner=inner,
            values=values.init(params_of(inner), earlier),
            store=empty_store(example, capacity),
            filled=jnp.zeros(capacity, bool),
        )

    def fit(state: DigiRLState, key: Array) -> tuple[TurnValueState, Array]:
        def step(fitted: TurnValueState, key: Array) -> tuple[TurnValueState, Array]:
            rows = draw_rows(key, state.filled, batch_size)
            episode = share_of_device(jax.tree.map(lambda leaf: leaf[rows], state.store), axis_name)
            target = return_to_go(episode, discount) > 0.0
            value = values.judge(fitted.params, episode)[0]
            loss, slope = cross_entropy(value, target, acting_turns(episode), axis_name=axis_name)
            return values.step(fitted, episode, slope, 0.0), loss

        fitted, loss = jax.lax.scan(step, state.values, jax.random.split(key, num_value_steps))
        return fitted, jnp.mean(loss)

    def imitate(state: DigiRLState, key: Array) -> tuple[Any, Metrics]:
        value = values.judge(state.values.params, _first_turns(state.store))[0][:, 0]
        chosen = surprising(state.store, value, state.filled, share=share)

        def step(inner: Any, key: Array) -> tuple[Any, Metrics]:
            draw_key, update_key = jax.random.split(key)
            rows = draw_rows(draw_key, chosen, batch_size)
            episode = share_of_device(jax.tree.map(lambda leaf: leaf[rows], state.store), axis_name)
            value = values.judge(state.values.params, episode)[0]
            good = step_advantage(episode, value, threshold=threshold, discount=discount) > 0.0
            weight = to_tokens_of_turn(good, episode).astype(jnp.float32)
            inner, metrics = imitation.update(inner, update_key, episode.replace(loss_weight=weight))
            imitated = jnp.sum(good, dtype=jnp.float32) / jnp.maximum(jnp.sum(acting_turns(episode)), 1)
            return inner, dict(metrics) | {"imitated_turns": imitated}

        inner, metrics = jax.lax.scan(step, state.inner, jax.random.split(key, num_steps))
        return inner, jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), metrics)

    def update(state: DigiRLState, key: Array, batch: Episode) -> tuple[DigiRLState, Metrics]:
        fit_key, imitate_key = jax.random.split(key)
        rows, kept = rows_of_all_devices((batch, kept_rows(batch)), axis_name)
        store, filled = put_in_front(state.store, state.filled, rows, kept)
        state = state.replace(store=store, filled=filled)
        fitted, loss = fit(state, fit_key)
        state = state.replace(values=fitted)
        inner, metrics = imitate(state, imitate_key)
        own = {"value_loss": loss, "stored": jnp.sum(filled, dtype=jnp.float32)}
        return state.replace(inner=inner), dict(metrics) | own

    return wrap(imitation, init, update)


def surprising(episode: Episode, value: Array, filled: Array, *, share: float) -> Array:
    """Chooses the episodes with the largest `return - sigmoid(value)`.

    Args:
        episode: C episodes with one seat.
        value: float32 `[C]`, values of their first states.
        filled: bool `[C]`, which episodes exist.
        share: share of the existing episodes, rounded up.

    Returns:
        bool `[C]`.
    """
    surprise = jnp.where(filled, episode_return(episode) - jax.nn.sigmoid(value), -jnp.inf)
    rank = jnp.argsort(jnp.argsort(-surprise, stable=True))
    return filled & (rank < jnp.ceil(share * jnp.sum(filled) - 1e-4))


def step_advantage(episode: Episode, value: Array, *, threshold: float, discount: float) -> Array:
    """Computes `A_t`, see `make_digirl`, `[B, T]`, -inf for turns without sampled tokens; `value` is V, `[B, T]`."""
    acting = acting_turns(episode)
    probability = jax.nn.sigmoid(value)
    reward = jnp.where(episode.valid, episode.reward, 0.0)
    goes_on = jnp.pad(acting[:, 1:], ((0, 0), (0, 1)))
    following = jnp.where(goes_on, jnp.roll(probability, -1, axis=1), reward > 0.0)
    advantage = following - probability - threshold + reward + return_to_go(episode, discount)
    return jnp.where(acting, advantage, -jnp.inf)


def _first_turns(episode: Episode) -> Episode:
    """Returns episodes that end after their first turn, which suffices to judge their task."""
    first = jnp.arange(episode.valid.shape[1])[None] == 0
    names = ("token_mask", "action_mask", "thought_mask")
    masks = {name: getattr(episode, name) & first[:, :, None] for name in names}
    return episode.replace(valid=episode.valid & first, **masks)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    value_optimizer: Callable[..., optax.GradientTransformation],
    capacity: int,
    batch_size: int,
    num_steps: int,
    num_value_steps: int,
    share: float = 0.1,
    threshold: float = 0.05,
    discount: float = 0.5,
    microbatch_tokens: int = 4096,
    trainable: Trainable = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles DigiRL for a text world with one seat.

    Args:
        environment: a text world with one seat.
        policy: `(environment) -> LanguagePolicy`, with a value head.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        value_optimizer: the same for the values.
        capacity: see `make_digirl`, also for the following arguments.
        batch_size: see there.
        num_steps: see there.
        num_value_steps: see there.
        share: see there.
        threshold: see there.
        discount: see there.
        microbatch_tokens: approximate number of tokens per pass through the model.
        trainable: parameters that the imitation trains, see `apply_updates`.
        axis_name: see `make_digirl`.
        **options: further arguments of `learners.supervised.make_supervised`.
    """
    actor = policy(environment)
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        steps = num_updates * num_steps
        imitation = make_supervised(
            actor.model, optimizer(steps), num_updates=steps, trainable=trainable, **both, **options
        )
        values = make_turn_values(actor.model, actor.layout, value_optimizer(num_updates * num_value_steps), **both)
        return make_digirl(
            imitation,
            values,
            rollout_shapes(collector, actor),
            capacity=capacity,
            batch_size=batch_size,
            num_steps=num_steps,
            num_value_steps=num_value_steps,
            share=share,
            threshold=threshold,
            discount=discount,
            axis_name=axis_name,
        )

    return Agent(policy=actor, make_learner=make_learner)

"""Reward models (Ouyang et al., 2022): the value at the end of an answer, trained on pairs, and used as a reward."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import params_of
from jaxagents.learners.microbatches import make_microbatches, score_episodes, weighted_gradient
from jaxagents.learners.optimizers import Trainable, apply_updates, carry_over, init_optimizer, learning_rate_of
from jaxagents.losses.preference import logistic, margin_of_rows
from jaxagents.ops.pairs import success_against_failure
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    EpisodeView,
    LanguageModel,
    LanguagePolicy,
    Learner,
    Mean,
    Metrics,
    Params,
    PyTree,
    Stateful,
)


@struct.dataclass
class RewardModelState:
    """Parameters and optimiser state."""

    params: Params
    opt_state: optax.OptState


def make_reward_model(
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    *,
    pairs: Callable[[PyTree], Any] = success_against_failure,
    microbatch_tokens: int = 4096,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner of a reward model from pairs of answers.

    Minimises `mean log(1 + exp(-(r(preferred) - r(other))))`, where r is the value at the last sampled token.

    Args:
        model: language model with a value head.
        optimizer: optax transformation, including clipping and schedule.
        pairs: `(batch) -> types.Pairs`, see `ops.pairs`, between rows of the same device.
        microbatch_tokens: approximate number of tokens per pass through the model.
        trainable: prefix pytree of bool of the parameters, see `apply_updates`; None: everything is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. Metrics: `loss`, and for the pairs `margin` and `accuracy` (share of positive margins).

    Raises:
        ValueError: the model has no value head.

    References:
        Ouyang et al. (2022), "Training language models to follow instructions with human feedback", equation 1.
    """
    _require_value(model)

    def init(key: Array, start: Any = None) -> RewardModelState:
        params = model.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        same = isinstance(start, RewardModelState)
        return RewardModelState(params, carry_over(opt_state, start.opt_state) if same else opt_state)

    def update(state: RewardModelState, key: Array, batch: PyTree) -> tuple[RewardModelState, Metrics]:
        del key
        chosen = pairs(batch)
        episode, pair, compared = chosen.episode, chosen.pair, chosen.pair >= 0
        microbatches = make_microbatches(episode.layout, microbatch_tokens=microbatch_tokens)
        score = score_answers(model, state.params, episode, microbatch_tokens=microbatch_tokens)
        count = jnp.sum(compared, dtype=jnp.float32)
        # Gradients are averaged over devices, which may have different numbers of pairs.
        mean_count = count if axis_name is None else jax.lax.pmean(count, axis_name)

        def loss(score: Array) -> Array:
            per_row = logistic(margin_of_rows(score, pair), coefficient=1.0)
            return jnp.sum(jnp.where(compared, per_row, 0.0)) / jnp.maximum(mean_count, 1.0)

        value, slope = jax.value_and_grad(loss)(score)
        weight = jnp.where(last_tokens(episode), slope[:, None, None], 0.0)
        grads = weighted_gradient(model, microbatches, state.params, episode, "value", weight)
        params, opt_state, norm = apply_updates(
            grads, state.params, state.opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        value = value if axis_name is None else jax.lax.pmean(value, axis_name)
        margin = margin_of_rows(score, pair)
        metrics = learning_rate_of(optimizer, state.opt_state) | {
            "margin": Mean(total=jnp.sum(margin), count=count),
            "accuracy": Mean(total=jnp.sum(margin > 0.0, dtype=jnp.float32), count=count),
        }
        return RewardModelState(params, opt_state), metrics | {"loss": value, "gradient_norm": norm}

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    **options: Any,
) -> Agent:
    """Assembles a reward model for a text world.

    Args:
        environment: text world.
        policy: `(environment) -> LanguagePolicy`, whose model has a value head.
        optimizer: `(optimiser steps) -> optax.GradientTransformation`.
        **options: further arguments of `make_reward_model`.
    """
    actor = policy(environment)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        return make_reward_model(actor.model, optimizer(num_updates), **options)

    return Agent(policy=actor, make_learner=make_learner)


def make_model_reward(
    model: LanguageModel, params: Params, *, scale: float = 1.0, world_scale: float = 0.0, microbatch_tokens: int = 4096
) -> Stateful:
    """Makes the reward of a reward model, a slot of policy gradients: `world_scale * reward + scale * r` at the end.

    Args:
        model: language model of the reward model, with the same tokens as the policy.
        params: parameters of the reward model; they become part of the learner's state.
        scale: scale of the model's reward, in the last turn of an episode.
        world_scale: scale of the world's reward.
        microbatch_tokens: approximate number of tokens per pass through the model.

    Returns:
        The slot, `(view, *, axis_name) -> reward [B, T]`.

    Raises:
        ValueError: the model has no value head.
    """
    _require_value(model)

    def apply(params: Params, view: EpisodeView, *, axis_name: Any = None, scale: Any, world_scale: Any) -> Any:
        del axis_name
        episode = view.episode
        score = score_answers(model, params, episode, microbatch_tokens=microbatch_tokens)
        last = jnp.any(last_tokens(episode), axis=2)
        return world_scale * episode.reward + scale * jnp.where(last, score[:, None], 0.0), ()

    return Stateful(
        init=lambda num_updates: jax.tree.map(jnp.asarray, params),
        apply=partial(apply, scale=scale, world_scale=world_scale),
        update=lambda params, summary: params,
    )


def score_answers(model: LanguageModel, params: Params, episode: Episode, *, microbatch_tokens: int = 4096) -> Array:
    """Computes the value at the last sampled token of each of B episodes, float32 `[B]`, without gradient."""
    microbatches = make_microbatches(episode.layout, microbatch_tokens=microbatch_tokens)
    value = score_episodes(model, microbatches, params, episode, fields=("value",)).value
    return jnp.sum(jnp.where(last_tokens(episode), value, 0.0), axis=(1, 2))


def last_tokens(episode: Episode) -> Array:
    """Returns the last sampled token of each episode, bool `[B, T, S]`; none if nothing was sampled."""
    mask = episode.action_mask
    place = jnp.arange(mask[0].size).reshape(1, *mask.shape[1:])
    return mask & (place == jnp.max(jnp.where(mask, place, -1), axis=(1, 2), keepdims=True))


def _require_value(model: LanguageModel) -> None:
    if model.value is None:
        raise ValueError(
            "`model.value_head` must be true for a reward model, got false; try "
            "model.network.value_head=true, or model.value_head=true of a checkpoint."
        )

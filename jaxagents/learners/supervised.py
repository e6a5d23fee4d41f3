"""Supervised training of language models on transcripts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import params_of
from jaxagents.learners.microbatches import make_microbatches
from jaxagents.learners.optimizers import Trainable, apply_updates, carry_over, init_optimizer, learning_rate_of
from jaxagents.learners.settings import Number, SettingsState, Slot, make_settings
from jaxagents.learners.token_losses import make_token_view, zero_where_uncounted
from jaxagents.losses.aggregation import token_mean
from jaxagents.policies.contexts import Rows, fold, score_tokens, to_rows
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    LanguageModel,
    LanguagePolicy,
    Layout,
    Learner,
    Mean,
    Metrics,
    Params,
    Stateful,
)


@struct.dataclass
class SupervisedState:
    """Parameters, optimiser state, and settings."""

    params: Params
    opt_state: optax.OptState
    settings: SettingsState


def make_supervised(
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    *,
    aggregation: Slot = token_mean,
    corruption: Slot | None = None,
    thought_weight: Number = 1.0,
    action_weight: Number = 1.0,
    only_success: bool = False,
    microbatch_tokens: int = 4096,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that raises the likelihood of the action tokens in `Episode` batches.

    Minimises `-sum_i weight_i log p(token_i | context_i)` over the thoughts and actions; observations and prompts are
    only read. Weights may be schedules (see `ops.schedules`), and the aggregation may have memory.

    Args:
        model: language model that is trained.
        optimizer: optax transformation, including clipping and schedule.
        aggregation: `(view: TokenView, *, axis_name) -> weights [B, T, S]`.
        corruption: `(key, episode, *, axis_name, vocab_size) -> tokens [B, T, S]` that the model reads instead of the
            ones to be learned, see `ops.corruption`; None: no corruption.
        thought_weight: factor for the weight of thought tokens.
        action_weight: factor for the weight of action tokens.
        only_success: whether to learn from successful episodes only (rejection sampling).
        microbatch_tokens: approximate number of tokens per pass through the model.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        trainable: prefix pytree of bool of the parameters, see `apply_updates`; null: everything is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. If episodes have a `loss_weight`, it multiplies the weights; the metrics `probability` and
        `entropy` are means over tokens, regardless of the weights.

    Raises:
        ValueError: a weight is negative.
    """
    weights = {"thought_weight": thought_weight, "action_weight": action_weight}
    settings = make_settings(weights, {"aggregation": aggregation, "corruption": corruption})
    for name, weight in weights.items():
        if not isinstance(weight, Stateful) and weight < 0.0:
            raise ValueError(f"`{name}` must not be negative, got {weight}; try 1.")

    def init(key: Array, start: SupervisedState | Params | None = None) -> SupervisedState:
        params = model.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        if isinstance(start, SupervisedState):
            opt_state = carry_over(opt_state, start.opt_state)
        return SupervisedState(params=params, opt_state=opt_state, settings=settings.init(num_updates))

    def loss(params: Params, rows: Rows, mask: Array, weight: Array, layout: Layout) -> tuple[Array, dict[str, Any]]:
        statistics = score_tokens(model, params, rows, layout, fields=("log_prob", "entropy"))
        total = -jnp.sum(weight * statistics.log_prob)
        entropy = jnp.sum(jnp.where(mask, statistics.entropy, 0.0))
        metrics = {
            "loss": total,
            "entropy": Mean(total=entropy, count=jnp.sum(mask, dtype=jnp.float32)),
            "probability": jnp.sum(weight * jnp.exp(statistics.log_prob)),
        }
        return total, metrics

    def update(state: SupervisedState, key: Array, episode: Episode) -> tuple[SupervisedState, Metrics]:
        layout = episode.layout
        microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)
        mask = episode.action_mask & (episode.success | (not only_success))[:, None, None]
        numbers, slots = settings.open(state.settings)
        weight, summary = slots["aggregation"](make_token_view(episode, mask=mask), axis_name=axis_name)
        weight = weight * jnp.where(episode.thought_mask, numbers["thought_weight"], numbers["action_weight"])
        weight = weight if episode.loss_weight is None else weight * episode.loss_weight
        valid = episode.valid & jnp.any(mask, axis=(1, 2))[:, None]
        rows = to_rows(episode)
        if "corruption" in slots:
            inputs, more = slots["corruption"](key, episode, axis_name=axis_name, vocab_size=model.vocab_size)
            rows, summary = rows.replace(inputs=fold(layout, inputs)), summary | more

        def gradient(inputs: tuple[Rows, Array, Array], turns: int):
            rows, *others = inputs
            return jax.grad(loss, has_aux=True)(
                state.params, rows.first_turns(turns), *(leaf[:, :turns] for leaf in others), layout
            )

        grads, metrics = microbatches.total(
            gradient,
            (rows, *fold(layout, (mask, weight))),
            jnp.sum(fold(layout, valid), axis=1, dtype=jnp.int32),
        )
        if axis_name is not None:
            metrics = jax.lax.pmean(metrics, axis_name)
        metrics |= learning_rate_of(optimizer, state.opt_state)
        params, opt_state, metrics["gradient_norm"] = apply_updates(
            grads, state.params, state.opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        closed = settings.close(state.settings, summary, axis_name=axis_name)
        state = state.replace(params=params, opt_state=opt_state, settings=closed)
        return state, zero_where_uncounted(metrics)

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    **options: Any,
) -> Agent:
    """Assembles supervised training for a text world.

    Args:
        environment: text world.
        policy: `(environment) -> LanguagePolicy`.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        **options: further arguments of `make_supervised`.
    """
    actor = policy(environment)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        return make_supervised(actor.model, optimizer(num_updates), num_updates=num_updates, **options)

    return Agent(policy=actor, make_learner=make_learner)

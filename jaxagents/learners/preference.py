"""Preference learning of language models against a reference that may be renewed: DPO, IPO, and SPIN's self-play."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import params_of
from jaxagents.learners.microbatches import Microbatches, make_microbatches
from jaxagents.learners.optimizers import Trainable, carry_over, descend, init_optimizer
from jaxagents.learners.scoring import score_episodes, weighted_gradient
from jaxagents.learners.slots import Numbers, numbers_of
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Demonstrated,
    Environment,
    Episode,
    LanguageModel,
    LanguagePolicy,
    Layout,
    Learner,
    Metrics,
    Params,
)


@struct.dataclass
class PreferenceState:
    """Parameters, optimiser state, reference parameters, numbers of the loss, and updates so far."""

    params: Params
    opt_state: optax.OptState
    reference: Params
    numbers: dict[str, Numbers]
    num_updates: Array


def make_preference(
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    loss: Callable[[Array], Array],
    reference_every: int | None = None,
    microbatch_tokens: int = 4096,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that prefers demonstrations to a policy's own episodes of the same tasks.

    Minimises the mean of `loss(margin)` over the own episodes, `margin = log(policy / reference)(demonstration) -
    log(policy / reference)(own)`, sums over the sampled tokens. The reference is also who acts: own episodes are those
    of the opponent, not of the parameters that are learned.

    Args:
        model: learns.
        layout: of the episodes.
        optimizer: an optax transformation, clipping and schedule included.
        loss: `(margin [B]) -> [B]`, see `losses.preference`.
        reference_every: updates of an iteration, after which the reference becomes what has been learned and the
            optimiser starts anew; None keeps the reference that the run starts from.
        microbatch_tokens: about how many tokens go through the model at once.
        trainable: prefix pytree of bool of the parameters, see `descend`; null: everything learns.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner of `Demonstrated` batches. Metrics: `loss`, `margin`, `accuracy` (share of positive margins),
        `log_prob_gap` (of the policy, demonstration minus own), `demonstration_log_prob`, `gradient_norm`.

    Raises:
        ValueError: `reference_every` is not positive.

    References:
        Chen et al. (2024), "Self-Play Fine-Tuning Converts Weak Language Models to Strong Language Models",
        algorithm 1; without renewal and with fixed pairs, Rafailov et al. (2023), "Direct Preference Optimization".

    Deviation: own episodes are those of the latest reference only; the paper mixes in those of the one before.
    """
    if reference_every is not None and reference_every < 1:
        raise ValueError(f"`reference_every` must be at least 1, got {reference_every}; try null for never.")
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)
    log_prob_of = partial(_log_prob_of_episodes, model, microbatches)
    slots = {"loss": loss}

    def init(key: Array, start: PreferenceState | Params | None = None) -> PreferenceState:
        params = model.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        return PreferenceState(
            params=params,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, PreferenceState) else opt_state,
            reference=jax.tree.map(jnp.copy, params),
            numbers=numbers_of(slots),
            num_updates=jnp.int32(0),
        )

    def update(state: PreferenceState, key: Array, batch: Demonstrated) -> tuple[PreferenceState, Metrics]:
        del key
        num_own, num_shown = batch.own.success.shape[0], batch.demonstration.success.shape[0]
        both = jax.tree.map(lambda shown, own: jnp.concatenate([shown, own]), batch.demonstration, batch.own)
        log_prob = log_prob_of(state.params, both)
        ratio = log_prob - log_prob_of(state.reference, both)
        # The demonstration of each own episode.
        shown = jnp.repeat(jnp.arange(num_shown), num_own // num_shown)
        margin = ratio[shown] - ratio[num_shown:]
        loss_of = partial(loss, **state.numbers.get("loss", {}))
        losses, pull_back = jax.vjp(loss_of, margin)
        slope = pull_back(jnp.full(margin.shape, 1.0 / num_own))[0]
        weight = jnp.concatenate([jnp.zeros(num_shown).at[shown].add(slope), -slope])
        per_token = jnp.where(both.action_mask, weight[:, None, None], 0.0)
        grads = weighted_gradient(model, microbatches, state.params, both, "log_prob", per_token)
        gap = log_prob[shown] - log_prob[num_shown:]
        metrics = {
            "loss": jnp.mean(losses),
            "margin": jnp.mean(margin),
            "accuracy": jnp.mean(margin > 0.0, dtype=jnp.float32),
            "log_prob_gap": jnp.mean(gap),
            "demonstration_log_prob": jnp.mean(log_prob[:num_shown]),
        }
        if axis_name is not None:
            metrics = jax.lax.pmean(metrics, axis_name)
        params, opt_state, metrics["gradient_norm"] = descend(
            grads, state.params, state.opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        state = state.replace(params=params, opt_state=opt_state, num_updates=state.num_updates + 1)
        return _renew(lambda params: init_optimizer(optimizer, params, trainable), state, reference_every), metrics

    return Learner(init=init, update=update, acting=lambda state: state.reference)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    reference_every: int | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles preference learning for a text world.

    Args:
        environment: a text world.
        policy: `(environment) -> LanguagePolicy`.
        optimizer: `(optimiser steps of an iteration) -> optax.GradientTransformation`.
        reference_every: see `make_preference`.
        axis_name: see `make_preference`.
        **options: further arguments of `make_preference`.

    Returns:
        The agent.
    """
    speaker = policy(environment)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        del collector
        return make_preference(
            speaker.model,
            speaker.layout,
            optimizer(num_updates if reference_every is None else min(reference_every, num_updates)),
            reference_every=reference_every,
            axis_name=axis_name,
            **options,
        )

    return Agent(policy=speaker, make_learner=make_learner)


def _log_prob_of_episodes(model: LanguageModel, microbatches: Microbatches, params: Params, episode: Episode) -> Array:
    """Computes the log-probability of all that was said in an episode, `[B]`."""
    per_token = score_episodes(model, microbatches, params, episode, fields=("log_prob",)).log_prob
    return jnp.sum(jnp.where(episode.action_mask, per_token, 0.0), axis=(1, 2))


def _renew(
    init_optimizer: Callable[[Params], optax.OptState], state: PreferenceState, reference_every: int | None
) -> PreferenceState:
    """Begins another iteration where one is over."""
    if reference_every is None:
        return state
    over = state.num_updates % reference_every == 0
    fresh = (state.params, init_optimizer(state.params))
    chosen = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, (state.reference, state.opt_state))
    return state.replace(reference=chosen[0], opt_state=chosen[1])

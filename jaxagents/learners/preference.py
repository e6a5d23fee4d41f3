"""Preference learning for language models: pairs from any source, any loss, and a reference that may be renewed."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import params_of
from jaxagents.learners.microbatches import Microbatches, make_microbatches, score_episodes, weighted_gradient
from jaxagents.learners.optimizers import Trainable, apply_updates, carry_over, init_optimizer, learning_rate_of
from jaxagents.learners.settings import SettingsState, Slot, make_settings
from jaxagents.losses.preference import RowLoss, margin_of_rows
from jaxagents.ops.pairs import expert_against_own
from jaxagents.ops.rows import first_row, rows_of_all_devices
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    LanguageModel,
    LanguagePolicy,
    Learner,
    Mean,
    Metrics,
    Params,
    PyTree,
)


@struct.dataclass
class PreferenceState:
    """Parameters, optimiser state, reference (or None), numbers and memories of the slots, and number of updates."""

    params: Params
    opt_state: optax.OptState
    reference: Params | None
    settings: SettingsState
    num_updates: Array


def make_preference(
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    *,
    loss: Slot,
    pairs: Slot = expert_against_own,
    reference: bool = True,
    reference_acts: bool = False,
    reference_every: int | None = None,
    microbatch_tokens: int = 4096,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner from preferences between episodes of the same task.

    Minimises the mean of `loss` over the rows that it counts. The log-probability of a row is the sum over its sampled
    tokens; its length is their number. Slots may have memory, as in `policy_gradient.make_policy_gradient`.

    Args:
        model: language model that is trained.
        optimizer: optax transformation, including clipping and schedule.
        loss: see `losses.preference`; it sees the rows of all devices, and its memory covers them all.
        pairs: `(batch) -> types.Pairs`, see `ops.pairs`; the kind of batch depends on it and on the collector.
        reference: whether to keep the initial parameters of the run, for losses that need them.
        reference_acts: whether own episodes are played by the reference, the opponent in self-play, instead of the
            parameters that are trained.
        reference_every: number of updates of an iteration, after which the reference becomes the trained parameters and
            the optimiser is reset; None keeps the initial reference.
        microbatch_tokens: approximate number of tokens per pass through the model.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        trainable: prefix pytree of bool of the parameters, see `apply_updates`; None: everything is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. Metrics: `loss`; for the compared rows `margin` (of log-ratios, or of log-probabilities without a
            reference), `accuracy` (share of positive margins), `log_prob_gap` (under the policy, preferred minus other)
            and `preferred_log_prob`; `compared_fraction`, the share of compared rows; `gradient_norm`.

    Raises:
        ValueError: `reference_every` is not positive, or there is no reference that could be renewed or act.

    References:
        Rafailov et al. (2023), "Direct Preference Optimization"; Chen et al. (2024), "Self-Play Fine-Tuning Converts
        Weak Language Models to Strong Language Models", algorithm 1 (SPIN: `reference_acts` and renewed).

    Deviation: own episodes of SPIN come only from the latest reference; the paper mixes in those of the previous one.
    """
    if reference_every is not None and reference_every < 1:
        raise ValueError(f"`reference_every` must be at least 1, got {reference_every}; try null for never.")
    if not reference and (reference_acts or reference_every is not None):
        raise ValueError("`reference` must be true where it acts or is renewed, got false; try learner.reference=true.")
    settings = make_settings(slots={"loss": loss, "pairs": pairs})

    def init(key: Array, start: PreferenceState | Params | None = None) -> PreferenceState:
        params = model.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        return PreferenceState(
            params=params,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, PreferenceState) else opt_state,
            reference=jax.tree.map(jnp.copy, params) if reference else None,
            settings=settings.init(num_updates),
            num_updates=jnp.int32(0),
        )

    def update(state: PreferenceState, key: Array, batch: PyTree) -> tuple[PreferenceState, Metrics]:
        del key
        _, slots = settings.open(state.settings)
        chosen, of_pairs = slots["pairs"](batch)
        of_pairs, episode = _total(of_pairs, axis_name), chosen.episode
        microbatches = make_microbatches(episode.layout, microbatch_tokens=microbatch_tokens)
        score = partial(_log_prob_of_episodes, model, microbatches)
        reference_log_prob = None if state.reference is None else score(state.reference, episode)
        rows = {
            "log_prob": score(state.params, episode),
            "reference_log_prob": reference_log_prob,
            "length": jnp.sum(episode.action_mask, axis=(1, 2)),
            "pair": chosen.pair,
            "desirable": chosen.desirable,
        }
        weight, metrics, of_loss = _slope(slots["loss"], rows, axis_name)
        per_token = jnp.where(episode.action_mask, weight[:, None, None], 0.0)
        grads = weighted_gradient(model, microbatches, state.params, episode, "log_prob", per_token)
        metrics |= learning_rate_of(optimizer, state.opt_state)
        params, opt_state, metrics["gradient_norm"] = apply_updates(
            grads, state.params, state.opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        closed = settings.close(state.settings, of_pairs | of_loss)
        state = state.replace(params=params, opt_state=opt_state, settings=closed, num_updates=state.num_updates + 1)
        return _renew(lambda params: init_optimizer(optimizer, params, trainable), state, reference_every), metrics

    return Learner(init=init, update=update, acting=(lambda state: state.reference) if reference_acts else None)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    reference_every: int | None = None,
    **options: Any,
) -> Agent:
    """Assembles preference learning for a text world.

    Args:
        environment: text world.
        policy: `(environment) -> LanguagePolicy`.
        optimizer: `(optimiser steps of an iteration) -> optax.GradientTransformation`.
        reference_every: see `make_preference`.
        **options: further arguments of `make_preference`.
    """
    actor = policy(environment)
    options["reference_every"] = reference_every

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        steps = optimizer(num_updates if reference_every is None else min(reference_every, num_updates))
        return make_preference(actor.model, steps, num_updates=num_updates, **options)

    return Agent(policy=actor, make_learner=make_learner)


def _slope(
    loss: Callable[..., tuple[RowLoss, dict[str, PyTree]]], rows: Mapping[str, Array | None], axis_name: str | None
) -> tuple[Array, dict[str, Any], dict[str, PyTree]]:
    """Computes the derivative of the mean loss in every row's log-probability on this device, metrics and summary.

    The loss sees the rows of all devices, so that batch statistics are the same on any number of devices.
    """
    size = rows["log_prob"].shape[0]
    first, num_devices = first_row(size, axis_name), 1 if axis_name is None else jax.lax.axis_size(axis_name)
    pair = jnp.where(rows["pair"] >= 0, rows["pair"] + first, -1)
    everyone = dict(rows_of_all_devices({**rows, "pair": pair}, axis_name))
    log_prob = everyone.pop("log_prob")

    def mean_loss(log_prob: Array) -> tuple[Array, dict[str, PyTree]]:
        (per_row, counted), summary = loss(log_prob, **everyone)
        return jnp.sum(per_row) / jnp.maximum(jnp.sum(counted), 1), summary

    (mean, summary), slope = jax.value_and_grad(mean_loss, has_aux=True)(log_prob)
    # Gradients are averaged over devices, each of which has its own rows.
    own = num_devices * jax.lax.dynamic_slice(slope, (first,), (size,))
    return own, {"loss": mean} | _describe(log_prob, everyone["reference_log_prob"], everyone["pair"]), summary


def _total(summaries: PyTree, axis_name: str | None) -> PyTree:
    return summaries if axis_name is None else jax.lax.psum(summaries, axis_name)


def _describe(log_prob: Array, reference_log_prob: Array | None, pair: Array) -> dict[str, Mean]:
    compared = pair >= 0
    margin = margin_of_rows(log_prob if reference_log_prob is None else log_prob - reference_log_prob, pair)
    values = {
        "margin": margin,
        "accuracy": margin > 0.0,
        "log_prob_gap": margin_of_rows(log_prob, pair),
        "preferred_log_prob": log_prob[jnp.maximum(pair, 0)],
    }
    count = jnp.sum(compared, dtype=jnp.float32)
    metrics = {name: Mean(total=jnp.sum(jnp.where(compared, x, 0.0)), count=count) for name, x in values.items()}
    return metrics | {"compared_fraction": Mean(total=count, count=jnp.float32(compared.shape[0]))}


def _log_prob_of_episodes(model: LanguageModel, microbatches: Microbatches, params: Params, episode: Episode) -> Array:
    """Computes the log-probability of all sampled tokens of an episode, `[R]`."""
    per_token = score_episodes(model, microbatches, params, episode, fields=("log_prob",)).log_prob
    return jnp.sum(jnp.where(episode.action_mask, per_token, 0.0), axis=(1, 2))


def _renew(
    init_optimizer: Callable[[Params], optax.OptState], state: PreferenceState, reference_every: int | None
) -> PreferenceState:
    """Starts a new iteration if one is over."""
    if reference_every is None:
        return state
    over = state.num_updates % reference_every == 0
    fresh = (state.params, init_optimizer(state.params))
    chosen = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, (state.reference, state.opt_state))
    return state.replace(reference=chosen[0], opt_state=chosen[1])

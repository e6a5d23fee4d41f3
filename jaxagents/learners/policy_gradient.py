"""Policy gradients for language models: one loop, and one slot per choice of an algorithm."""

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_widths
from jaxagents.learners.combinators import params_of, steps_per_update
from jaxagents.learners.liveness import fields_read
from jaxagents.learners.microbatches import Microbatches, make_microbatches, score_episodes
from jaxagents.learners.minibatches import minibatches_of_device
from jaxagents.learners.optimizers import Trainable, apply_updates, carry_over, init_optimizer, learning_rate_of
from jaxagents.learners.settings import Bound, Number, SettingsState, Slot, make_settings, named
from jaxagents.learners.token_losses import (
    TokenBatch,
    fields_of_losses,
    importance_of,
    make_token_view,
    token_loss,
    zero_where_uncounted,
)
from jaxagents.losses.regularizer_units import make_of_advantage
from jaxagents.ops.checks import check_counts, require_shape
from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import kept_rows, mean_log_ratio
from jaxagents.policies.contexts import is_folded
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    EpisodeView,
    LanguageModel,
    LanguagePolicy,
    Layout,
    Learner,
    Mean,
    Metrics,
    Params,
    PyTree,
    TokenStatistics,
)


@struct.dataclass
class PolicyGradientState:
    """Parameters, optimiser state, frozen reference parameters (or None), and settings."""

    params: Params
    opt_state: optax.OptState
    reference: Params | None
    settings: SettingsState


class _Parts(NamedTuple):
    """Static values that the steps of an update share."""

    model: LanguageModel
    layout: Layout
    microbatches: Microbatches
    temperature: float | None
    importance_cap: float | None
    axis_name: str | None


def make_policy_gradient(
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    advantage: Slot,
    loss: Slot,
    aggregation: Slot,
    regularizers: Mapping[str, Slot] | None = None,
    regularizer_units: str = "loss",
    rewards: Mapping[str, Slot] | None = None,
    group_filter: Slot | None = None,
    credits: Mapping[str, Slot] | None = None,
    reference: bool = False,
    num_epochs: int = 1,
    num_minibatches: int = 1,
    value_coefficient: Number = 0.5,
    temperature: float | None = None,
    importance_cap: float | None = None,
    microbatch_tokens: int = 4096,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a policy-gradient learner over `Episode` batches.

    Minimises `sum_i weight_i (importance_i loss_i + unit sum_k regularizer_ki + value_coefficient (V_i - target_i)^2 /
    2)` over the sampled tokens i. Every slot is a function; if it is a `functools.partial`, its float keywords are kept
    as arrays in the state, so that changing them needs no new compilation. Every slot may also be a `Stateful` of such
    a function, and every number a schedule (see `ops.schedules`). Statistics that no slot reads are not computed.

    Args:
        model: policy, and value function if it has a value head.
        layout: layout of the episodes.
        optimizer: optax transformation, including clipping and schedule.
        advantage: `(view: EpisodeView, *, axis_name) -> ops.credit.Credit`.
        loss: `(view: TokenView) -> [n, t, S]`.
        aggregation: `(view: TokenView, *, axis_name) -> weights [B, T, S]`.
        regularizers: regularisers by name, `(view: TokenView) -> [n, t, S]`.
        regularizer_units: "loss" adds regularisers unchanged; "advantage" multiplies them by the running mean |A| of
            the tokens, so that one coefficient is equally strong with any credit, see `losses.regularizer_units`.
        rewards: functions by name, `(view: EpisodeView, *, axis_name) -> reward [B, T]`, applied one after the other.
        group_filter: `(view: EpisodeView, *, axis_name) -> keep bool [B]`, applied after the rewards; other episodes
            are not counted.
        credits: functions by name, `(view: EpisodeView, advantage [B, T, S], *, axis_name) -> [B, T, S]`, applied one
            after the other.
        reference: whether to keep the initial parameters of the run for the regularisers.
        num_epochs: number of passes over each batch.
        num_minibatches: number of optimiser steps per pass; minibatches consist of whole episodes.
        value_coefficient: weight of the value loss, if the advantage gives targets.
        temperature: temperature of the rollout, at which the policy is scored, too; None scores it at 1.
        importance_cap: cap in the losses' factor `min(exp(behavior_log_prob - sampling_log_prob), cap)`; None: 1.
        microbatch_tokens: approximate number of tokens per pass through the model.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        trainable: prefix pytree of bool of the parameters, see `apply_updates`; None: everything is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. Metrics of the loss terms are weighted like the loss; `entropy`, `approximate_kl` and
        `reference_kl` are means over the sampled tokens that count, and `value_loss` is given without its coefficient.

    Raises:
        ValueError: a count or a `clip_epsilon` is not positive, units are unknown, both a temperature and an importance
            cap are given, or (when the update is traced) episodes do not divide into minibatches.
    """
    check_counts(num_epochs=num_epochs, num_minibatches=num_minibatches)
    _check_numbers(loss, regularizer_units, temperature, importance_cap)
    slots = {"advantage": advantage, "loss": loss, "aggregation": aggregation, "group_filter": group_filter}
    slots |= {"unit": make_of_advantage() if regularizer_units == "advantage" else None}
    for kind, several in (("reward", rewards), ("credit", credits), ("regularizer", regularizers)):
        slots |= {f"{kind}/{name}": slot for name, slot in (several or {}).items()}
    settings = make_settings({"value_coefficient": value_coefficient}, slots)
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)
    parts = _Parts(model, layout, microbatches, temperature, importance_cap, axis_name)

    def init(key: Array, start: PolicyGradientState | Params | None = None) -> PolicyGradientState:
        params = model.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        return PolicyGradientState(
            params=params,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, PolicyGradientState) else opt_state,
            reference=jax.tree.map(jnp.copy, params) if reference else None,
            settings=settings.init(num_updates),
        )

    def update(state: PolicyGradientState, key: Array, episode: Episode) -> tuple[PolicyGradientState, Metrics]:
        numbers, bound = settings.open(state.settings)
        batch, summary = _prepare(parts, bound, state, episode)
        described = _describe(batch)
        unit, measured = 1.0, {}  # type: Any, dict[str, Any]
        if "unit" in bound:
            unit, measured = bound["unit"](described["advantage_magnitude"], axis_name=axis_name)
        loss_of = partial(token_loss, model, layout, bound, numbers["value_coefficient"], unit, temperature)
        gradient = partial(_gradient, parts, bound, loss_of, fields_of_losses(bound, batch.view))

        def minibatch_step(carry: tuple[Params, optax.OptState], index: Array | None):
            params, opt_state = carry
            taken = batch if index is None else jax.tree.map(lambda leaf: leaf[index], batch)
            grads, metrics, summaries = gradient(params, taken)
            metrics = metrics if axis_name is None else jax.lax.pmean(metrics, axis_name)
            metrics.update(learning_rate_of(optimizer, opt_state))
            params, opt_state, metrics["gradient_norm"] = apply_updates(
                grads, params, opt_state, optimizer, axis_name=axis_name, trainable=trainable
            )
            return (params, opt_state), (metrics, summaries)

        carry = (state.params, state.opt_state)
        if num_epochs * num_minibatches == 1:
            carry, (metrics, summaries) = minibatch_step(carry, None)
        else:
            counts = {"num_epochs": num_epochs, "num_minibatches": num_minibatches}
            indices = minibatches_of_device(key, 1, episode.success.shape[0], **counts, axis_name=axis_name)
            carry, (metrics, summaries) = jax.lax.scan(minibatch_step, carry, indices)
            metrics = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), metrics)
            summaries = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), summaries)
        closed = settings.close(state.settings, summary | measured | summaries, axis_name=axis_name)
        state = state.replace(params=carry[0], opt_state=carry[1], settings=closed)
        return state, zero_where_uncounted(metrics | described)

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    temperature: float | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent for a text world.

    Args:
        environment: text world.
        policy: `(environment) -> LanguagePolicy`.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        temperature: see `make_policy_gradient`.
        **options: further arguments of `make_policy_gradient`.
    """
    actor = policy(environment)
    options["temperature"] = temperature

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        _warn_of_tempering(collector, temperature, options.get("importance_cap"))
        steps = optimizer(num_updates * steps_per_update(make_policy_gradient, options))
        return make_policy_gradient(actor.model, actor.layout, steps, num_updates=num_updates, **options)

    return Agent(policy=actor, make_learner=make_learner)


def assign_credit(
    bound: Mapping[str, Bound], view: EpisodeView, axis_name: str | None
) -> tuple[Credit, Episode, dict[str, PyTree]]:
    """Applies rewards, filter, advantage and credits, in this order.

    Args:
        bound: bound slots.
        view: view of the episodes.
        axis_name: mapped device axis.

    Returns:
        The credit, the episodes with their new rewards and the filter's choice, and summaries for the memories.
    """
    summaries = {}

    def call(name: str, *arguments: Any) -> Any:
        result, summary = bound[name](*arguments, axis_name=axis_name)
        summaries.update(summary)
        return result

    for name in named(bound, "reward/"):
        reward = call(name, view)
        require_shape(name.replace("reward/", "rewards."), reward, view.episode.reward.shape)
        view = view.replace(episode=view.episode.replace(reward=reward))
    keep = call("group_filter", view) if "group_filter" in bound else kept_rows(view.episode)
    view = view.replace(episode=view.episode.replace(keep=keep))
    credit = call("advantage", view)
    for name in named(bound, "credit/"):
        credit = credit.replace(advantage=to_tokens(view.episode, call(name, view, credit.advantage)))
    return credit, view.episode, summaries


def _prepare(
    parts: _Parts, bound: Mapping[str, Bound], state: PolicyGradientState, episode: Episode
) -> tuple[TokenBatch, dict[str, PyTree]]:
    """Computes the credit of the episodes, with the statistics that slots read; returns batch and slot summaries."""
    score = partial(score_episodes, parts.model, parts.microbatches, temperature=parts.temperature)
    every = _shapes_of_statistics(episode, value=parts.model.value is not None)

    def assign(policy: TokenStatistics, reference: TokenStatistics | None):
        return assign_credit(bound, EpisodeView(episode=episode, policy=policy, reference=reference), parts.axis_name)

    read = fields_read(assign, every, None if state.reference is None else every)
    policy, reference = score(state.params, episode, fields=read[0]), None
    if state.reference is not None:
        reference = score(state.reference, episode, fields=read[1] | {"log_prob"})
    credit, episode, summaries = assign(policy, reference)
    view = make_token_view(episode, tempered=parts.temperature is not None).replace(
        advantage=credit.advantage, reference_log_prob=None if reference is None else reference.log_prob
    )
    importance = importance_of(episode, view, parts.importance_cap)
    batch = TokenBatch(episode=episode, rows=None, view=view, importance=importance, target=credit.target)
    return batch, summaries


def _gradient(
    parts: _Parts,
    bound: Mapping[str, Bound],
    loss_of: Callable[..., tuple[Array, PyTree]],
    read: Collection[str],
    params: Params,
    batch: TokenBatch,
) -> tuple[PyTree, dict[str, Array | Mean], dict[str, PyTree]]:
    """Sums gradients, metrics and summaries over a minibatch of whole episodes."""
    weight, summary = bound["aggregation"](batch.view, axis_name=parts.axis_name)
    batch = batch.replace(weight=weight)
    if "sequence_log_ratio" in read and is_folded(parts.layout):
        # The turns of a sequence lie in several rows, so that computing its mean takes a separate pass.
        score = partial(score_episodes, parts.model, parts.microbatches, temperature=parts.temperature)
        log_prob = score(params, batch.episode, fields=("log_prob",)).log_prob
        batch = batch.replace(view=batch.view.replace(sequence_log_ratio=mean_log_ratio(batch.view, log_prob)))

    def one(rows: TokenBatch, turns: int) -> PyTree:
        return jax.grad(loss_of, has_aux=True)(params, rows.first_turns(turns))

    rows, num_turns = batch.fold(parts.layout), batch.turns_of_rows(parts.layout)
    grads, (metrics, summaries) = parts.microbatches.total(one, rows, num_turns)
    return grads, metrics, summaries | summary


def _describe(batch: TokenBatch) -> dict[str, Mean]:
    """Computes the metrics that are known before the gradient, exactly over devices and chunks."""
    mask, keep = batch.view.mask, batch.episode.keep
    magnitude = jnp.sum(jnp.abs(batch.view.advantage) * mask)
    return {
        "advantage_magnitude": Mean(total=magnitude, count=jnp.sum(mask, dtype=jnp.float32)),
        "kept_fraction": Mean(total=jnp.sum(keep, dtype=jnp.float32), count=jnp.float32(keep.shape[0])),
    }


def _shapes_of_statistics(episode: Episode, *, value: bool) -> TokenStatistics:
    floats = jax.ShapeDtypeStruct(episode.tokens.shape, jnp.float32)
    return TokenStatistics(log_prob=floats, entropy=floats, value=floats if value else None)  # type: ignore[arg-type]


def _warn_of_tempering(collector: Collector | None, temperature: float | None, importance_cap: float | None) -> None:
    """Warns if the tokens were not sampled from the policy as the learner scores it."""
    tempering = {} if collector is None else dict(collector.tempering)
    drawn_at = tempering.get("temperature", 1.0)
    if temperature is not None and temperature != drawn_at:
        raise ValueError(f"`learner.temperature` must be that of the collector, {drawn_at}, got {temperature}.")
    if temperature is not None:
        tempering.pop("temperature", None)
    if tempering and importance_cap is None:
        warnings.warn(
            f"The samples of `collector` ({tempering}) are not drawn from the policy that the learner scores: they are "
            "never on-policy. Set `learner.temperature` to that of the collector, or `learner.importance_cap` to 2.",
            stacklevel=2,
        )


def _check_numbers(loss: Slot, regularizer_units: str, temperature: float | None, importance_cap: float | None) -> None:
    check_widths(loss=loss)
    if regularizer_units not in ("loss", "advantage"):
        raise ValueError(f"`regularizer_units` must be loss or advantage, got {regularizer_units!r}.")
    if temperature is not None and temperature <= 0.0:
        raise ValueError(f"`temperature` must be positive, got {temperature}; try null for 1.")
    if temperature is not None and importance_cap is not None:
        raise ValueError(
            f"`importance_cap` must be null where the policy is scored at a `temperature`, got {importance_cap}; "
            "there is nothing left to correct."
        )

"""Policy gradients for language models: one loop, and one slot per choice of an algorithm."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_counts
from jaxagents.learners.combinators import params_of
from jaxagents.learners.microbatches import Microbatches, make_microbatches
from jaxagents.learners.optimizers import Trainable, carry_over, descend, init_optimizer
from jaxagents.learners.slots import Numbers, Slot, bind, memory_of, numbers_of, remember
from jaxagents.losses.policy_gradient import approximate_kl
from jaxagents.losses.token_policy_gradient import truncated_importance_weight
from jaxagents.losses.value import squared_loss
from jaxagents.ops.credit import Credit
from jaxagents.ops.episodes import credited_tokens
from jaxagents.ops.group_filters import keep_all
from jaxagents.ops.minibatches import block_size, shuffled_minibatches
from jaxagents.policies.contexts import Rows, RowStatistics, fold, is_folded, judge_rows, to_rows
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
    PyTree,
)


@struct.dataclass
class PolicyGradientState:
    """Parameters, optimiser state, frozen reference parameters (None without), numbers and memories of the slots."""

    params: Params
    opt_state: optax.OptState
    reference: Params | None
    numbers: dict[str, Numbers]
    memory: dict[str, PyTree]


@struct.dataclass
class TokenBatch:
    """What the loss of a token reads, leaves `[N, l]`: rows, weights and constants."""

    rows: Rows
    mask: Array
    weight: Array
    advantage: Array
    behavior_log_prob: Array
    importance: Array
    reference_log_prob: Array | None
    target: Array | None


def make_policy_gradient(
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    advantage: Slot,
    loss: Slot,
    aggregation: Slot,
    regularizers: Mapping[str, Slot] | None = None,
    rewards: Mapping[str, Slot] | None = None,
    group_filter: Slot | None = None,
    reference: bool = False,
    num_epochs: int = 1,
    num_minibatches: int = 1,
    value_coefficient: float = 0.5,
    importance_cap: float | None = None,
    microbatch_tokens: int = 4096,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a policy-gradient learner over `Episode` batches.

    Minimises `sum_i weight_i (importance_i loss_i + sum_k regularizer_ki + value_coefficient (V_i - target_i)^2 / 2)`
    over the sampled tokens i. Every slot is a function whose float keywords, when it is a `functools.partial`, are kept
    in the state as arrays: a changed number is the same program. Advantage, loss and regularisers may also be
    `Remembering`s of such functions.

    Args:
        model: policy, and value where it has a head.
        layout: of the episodes.
        optimizer: an optax transformation, clipping and schedule included.
        advantage: `(episode, value [B, L] | None, *, axis_name) -> ops.credit.Credit`.
        loss: `(log_prob, behavior_log_prob, advantage, mask) -> [n, S]`, a row per turn.
        aggregation: `(mask [B, L], *, axis_name) -> weights [B, L]`.
        regularizers: by name `(log_prob, reference_log_prob, entropy, mask, turn) -> [n, S]`; `turn` int32 `[n, S]`
            counts from the start of the episode.
        rewards: by name `(episode) -> episode`, one after the other.
        group_filter: `(episode) -> keep bool [B]`; episodes that are not kept count nowhere.
        reference: keeps the parameters that the run starts from for the regularisers.
        num_epochs: passes over each batch.
        num_minibatches: optimiser steps per pass; minibatches are of whole episodes.
        value_coefficient: weight of the value loss, where the advantage gives targets.
        importance_cap: multiplies losses by `min(exp(behavior_log_prob - sampling_log_prob), cap)`; None does not.
        microbatch_tokens: about how many tokens go through the model at once.
        num_updates: of the whole run, for slots that ask how far it is.
        trainable: prefix pytree of bool of the parameters, see `descend`; None: everything learns.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner.

    Raises:
        ValueError: a count is not positive, or episodes do not divide into minibatches (when the update is traced).
    """
    check_counts(num_epochs=num_epochs, num_minibatches=num_minibatches)
    slots = {"advantage": advantage, "loss": loss, "aggregation": aggregation, "group_filter": group_filter or keep_all}
    slots |= {f"reward/{name}": slot for name, slot in (rewards or {}).items()}
    slots |= {f"regularizer/{name}": slot for name, slot in (regularizers or {}).items()}
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)
    judge = partial(_judge, model, microbatches)
    average = partial(_average, axis_name)

    def init(key: Array, start: PolicyGradientState | Params | None = None) -> PolicyGradientState:
        params = model.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        return PolicyGradientState(
            params=params,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, PolicyGradientState) else opt_state,
            reference=jax.tree.map(jnp.copy, params) if reference else None,
            numbers=numbers_of(slots) | {"learner": {"value_coefficient": jnp.float32(value_coefficient)}},
            memory=memory_of(slots, num_updates),
        )

    def prepare(state: PolicyGradientState, bound: Mapping[str, Slot], episode: Episode):
        for name, slot in bound.items():
            episode = slot(episode)[0] if name.startswith("reward/") else episode
        episode = episode.replace(keep=bound["group_filter"](episode)[0])
        value = None if model.value is None else _unfold(layout, judge(state.params, episode).value)
        credit, noted = bound["advantage"](episode, value, axis_name=axis_name)
        referee = None if state.reference is None else _unfold(layout, judge(state.reference, episode).log_prob)
        return _make_batch(episode, credit, referee, importance_cap), episode, noted

    def update(state: PolicyGradientState, key: Array, episode: Episode) -> tuple[PolicyGradientState, Metrics]:
        bound = bind(slots, state.numbers, state.memory)
        batch, episode, noted = prepare(state, bound, episode)
        num_turns = jnp.where(jnp.any(batch.mask, axis=1), jnp.sum(episode.valid, axis=1), 0)
        loss_of = partial(_loss, model, bound, state.numbers["learner"]["value_coefficient"])

        def minibatch_step(carry: tuple[Params, optax.OptState], index: Array | None):
            params, opt_state = carry
            taken = _take(layout, (batch, num_turns, episode.valid), index)
            grads, said = _gradient(microbatches, layout, loss_of, bound["aggregation"], axis_name, params, taken)
            metrics = average(said[0])
            params, opt_state, metrics["gradient_norm"] = descend(
                grads, params, opt_state, optimizer, axis_name=axis_name, trainable=trainable
            )
            return (params, opt_state), (metrics, said[1])

        carry = (state.params, state.opt_state)
        if num_epochs * num_minibatches == 1:
            carry, (metrics, summaries) = minibatch_step(carry, None)
        else:
            indices = _shuffle(key, episode, num_epochs, num_minibatches, axis_name)
            carry, (metrics, summaries) = jax.lax.scan(minibatch_step, carry, indices)
            metrics = jax.tree.map(jnp.mean, metrics)
            summaries = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), summaries)
        memory = remember(slots, state.memory, noted | summaries, axis_name=axis_name)
        metrics |= _describe(batch, episode)
        return state.replace(params=carry[0], opt_state=carry[1], memory=memory), metrics

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    num_epochs: int = 1,
    num_minibatches: int = 1,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent for a text world.

    Args:
        environment: a text world.
        policy: `(environment) -> LanguagePolicy`.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        num_epochs: see `make_policy_gradient`.
        num_minibatches: see `make_policy_gradient`.
        axis_name: see `make_policy_gradient`.
        **options: further arguments of `make_policy_gradient`.

    Returns:
        The agent.
    """
    speaker = policy(environment)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        del collector
        return make_policy_gradient(
            speaker.model,
            speaker.layout,
            optimizer(num_updates * num_epochs * num_minibatches),
            num_epochs=num_epochs,
            num_minibatches=num_minibatches,
            num_updates=num_updates,
            axis_name=axis_name,
            **options,
        )

    return Agent(policy=speaker, make_learner=make_learner)


def _make_batch(
    episode: Episode, credit: Credit, reference_log_prob: Array | None, importance_cap: float | None
) -> TokenBatch:
    mask = credited_tokens(episode)
    importance = jnp.ones(mask.shape)
    if importance_cap is not None:
        importance = truncated_importance_weight(
            episode.behavior_log_prob, episode.sampling_log_prob, mask, cap=importance_cap
        )
    return TokenBatch(
        rows=to_rows(episode),
        mask=mask,
        weight=jnp.zeros(mask.shape),
        advantage=credit.advantage,
        behavior_log_prob=episode.behavior_log_prob,
        importance=importance,
        reference_log_prob=reference_log_prob,
        target=credit.target,
    )


def _gradient(
    microbatches: Microbatches,
    layout: Layout,
    loss_of: Callable[..., tuple[Array, tuple[dict[str, Array], dict[str, PyTree]]]],
    aggregation: Slot,
    axis_name: str | None,
    params: Params,
    taken: tuple[TokenBatch, Array, Array],
) -> tuple[PyTree, tuple[dict[str, Array], dict[str, PyTree]]]:
    """Sums gradient, metrics and summaries over a minibatch, whose leaves are `[b, L]` but for its rows' `[n, l]`."""
    batch, num_turns, valid = taken
    batch = batch.replace(weight=aggregation(batch.mask, axis_name=axis_name)[0])
    rows = batch.rows
    folded = jax.tree.map(partial(fold, layout), batch.replace(rows=None)).replace(rows=rows)
    count = jnp.where(num_turns[:, None] > 0, valid, False).reshape(-1) if is_folded(layout) else num_turns

    def one(rows: TokenBatch, layout: Layout) -> PyTree:
        return jax.grad(loss_of, has_aux=True)(params, rows, layout)

    return microbatches.total(one, folded, count.astype(jnp.int32))


def _loss(
    model: LanguageModel,
    bound: Mapping[str, Slot],
    value_coefficient: Array,
    params: Params,
    batch: TokenBatch,
    layout: Layout,
) -> tuple[Array, tuple[dict[str, Array], dict[str, PyTree]]]:
    """Computes the weighted loss, metrics and summaries of a microbatch; rows of the slots' arrays are turns."""
    said = judge_rows(model, params, batch.rows, layout)

    def turns(per_token: Array | None) -> Array | None:
        return None if per_token is None else per_token[:, layout.prompt :].reshape(-1, layout.slot)

    turn = turns(batch.rows.turn)
    batch = batch.replace(rows=None)
    batch = jax.tree.map(turns, batch)
    log_prob, entropy = turns(said.log_prob), turns(said.entropy)
    policy_loss, summaries = bound["loss"](log_prob, batch.behavior_log_prob, batch.advantage, batch.mask)
    per_token = {"policy_loss": batch.importance * policy_loss}
    for name, slot in bound.items():
        if name.startswith("regularizer/"):
            label = name.removeprefix("regularizer/")
            per_token[label], summary = slot(log_prob, batch.reference_log_prob, entropy, batch.mask, turn)
            summaries |= summary
    total = jnp.sum(batch.weight * sum(per_token.values()))
    if batch.target is not None:
        error = squared_loss(turns(said.value), jax.lax.stop_gradient(batch.target))
        per_token["value_loss"] = jnp.where(batch.mask, error, 0.0)
        total += value_coefficient * jnp.sum(batch.weight * per_token["value_loss"])
    metrics = {name: jnp.sum(batch.weight * values) for name, values in per_token.items()}
    difference = jnp.where(batch.mask, approximate_kl(log_prob, batch.behavior_log_prob), 0.0)
    metrics["entropy"] = jnp.sum(batch.weight * jnp.where(batch.mask, entropy, 0.0))
    metrics["approximate_kl"] = jnp.sum(batch.weight * difference)
    if batch.reference_log_prob is not None:
        metrics["reference_kl"] = jnp.sum(
            batch.weight * jnp.where(batch.mask, log_prob - batch.reference_log_prob, 0.0)
        )
    metrics["loss"] = total
    return total, (metrics, summaries)


def _judge(model: LanguageModel, microbatches: Microbatches, params: Params, episode: Episode) -> RowStatistics:
    """Computes statistics of all rows, `[N, l]`, without gradient."""
    num_turns = episode.valid.reshape(-1) if is_folded(episode.layout) else jnp.sum(episode.valid, axis=1)
    return microbatches.each(
        lambda rows, layout: judge_rows(model, params, rows, layout), to_rows(episode), num_turns.astype(jnp.int32)
    )


def _unfold(layout: Layout, per_token: Array) -> Array:
    return per_token.reshape(-1, layout.length)


def _take(layout: Layout, tree: tuple[TokenBatch, Array, Array], index: Array | None) -> PyTree:
    """Gathers episodes `[b]`; None takes all. Folded rows are gathered by episode, too."""
    if index is None:
        return tree
    batch, num_turns, valid = tree
    rows = jax.tree.map(partial(_unfold, layout), batch.rows)
    taken = jax.tree.map(lambda leaf: leaf[index], (batch.replace(rows=rows), num_turns, valid))
    return taken[0].replace(rows=jax.tree.map(partial(fold, layout), taken[0].rows)), *taken[1:]


def _shuffle(key: Array, episode: Episode, num_epochs: int, num_minibatches: int, axis_name: str | None) -> Array:
    num_episodes = episode.success.shape[0]
    block = block_size(1, num_episodes, num_minibatches)
    first_block = jax.lax.axis_index(axis_name) * (num_episodes // block) if axis_name else 0
    return shuffled_minibatches(
        key, num_episodes, block, num_epochs=num_epochs, num_minibatches=num_minibatches, first_block=first_block
    )


def _describe(batch: TokenBatch, episode: Episode) -> dict[str, Mean]:
    """Computes what is known before the gradient, exactly over devices and chunks."""
    count = jnp.sum(batch.mask, dtype=jnp.float32)
    keep = episode.keep
    return {
        "advantage_magnitude": Mean(total=jnp.sum(jnp.abs(batch.advantage) * batch.mask), count=count),
        "kept_fraction": Mean(total=jnp.sum(keep, dtype=jnp.float32), count=jnp.float32(keep.shape[0])),
    }


def _average(axis_name: str | None, tree: PyTree) -> PyTree:
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)

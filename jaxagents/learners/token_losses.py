"""The loss of a microbatch of tokens: the learner's slots, the value loss, and their metrics."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.liveness import fields_read
from jaxagents.learners.settings import Bound, named
from jaxagents.losses.policy_gradient import approximate_kl, clip_fraction
from jaxagents.losses.token_policy_gradient import truncated_importance_weight
from jaxagents.losses.value import squared_loss
from jaxagents.ops.episodes import credited_tokens, group_success, mean_log_ratio
from jaxagents.ops.seats import num_seats
from jaxagents.policies.contexts import EVERYTHING, Rows, fold, score_tokens, to_rows
from jaxagents.types import Array, Episode, LanguageModel, Layout, Mean, Metrics, Params, PyTree, TokenView

_CLIP_EPSILON = 0.2  # For the metric `clip_fraction`, whatever the clipping range of the loss.


@struct.dataclass
class TokenBatch:
    """Episodes to learn from, leaves `[B, T, S]` except `episode`; when folded, `[N, t, S]` and `rows` instead.

    Attributes:
        episode: the episodes; None when folded.
        rows: inputs of the model; None before folding.
        view: view of the tokens before the model has read them.
        weight: float32, weights of the token losses, see `losses.aggregation`.
        importance: float32, factors for the loss of the slot `loss`; None is 1.
        target: float32, targets of the value head; None without one.
    """

    episode: Episode | None
    rows: Rows | None
    view: TokenView
    weight: Array | None = None
    importance: Array | None = None
    target: Array | None = None

    def first_turns(self, num_turns: int) -> "TokenBatch":
        """Returns folded rows without later turns."""
        cut = jax.tree.map(lambda leaf: leaf[:, :num_turns], self.replace(rows=None))
        return cut.replace(rows=self.rows.first_turns(num_turns))

    def fold(self, layout: Layout) -> "TokenBatch":
        """Returns the rows of the episodes."""
        return fold(layout, self.replace(episode=None)).replace(rows=to_rows(self.episode))

    def turns_of_rows(self, layout: Layout) -> Array:
        """Counts the turns of each row that must be processed, int32 `[N]`: none if no token of the row counts."""
        counts = jnp.any(self.view.mask, axis=(1, 2))[:, None] & self.episode.valid
        return jnp.sum(fold(layout, counts), axis=1, dtype=jnp.int32)


def make_token_view(episode: Episode, *, mask: Array | None = None, tempered: bool = False) -> TokenView:
    """Makes the view of the tokens of episodes, without credit.

    Args:
        episode: B episodes.
        mask: bool `[B, T, S]`, tokens that count; None: the sampled tokens of kept rows.
        tempered: whether the behaviour's log-probabilities are those under the sampling distribution.

    Returns:
        The view, leaves `[B, T, S]`.
    """
    shape = episode.tokens.shape

    def of_rows(per_row: Array) -> Array:
        return jnp.broadcast_to(per_row[:, None, None], shape)

    return TokenView(
        mask=credited_tokens(episode) if mask is None else mask,
        turn=jnp.broadcast_to(jnp.arange(shape[1])[None, :, None], shape),
        sequence=episode.agent,
        behavior_log_prob=episode.sampling_log_prob if tempered else episode.behavior_log_prob,
        success=of_rows(episode.success),
        group_success=of_rows(group_success(episode)),
        demonstrated=None if episode.control is None else of_rows(episode.control),
        num_sequences=num_seats(episode),
    )


def importance_of(episode: Episode, view: TokenView, cap: float | None) -> Array | None:
    """Computes weights that correct token losses for the sampling distribution; None without a cap."""
    if cap is None:
        return None
    return truncated_importance_weight(episode.behavior_log_prob, episode.sampling_log_prob, view.mask, cap=cap)


def token_loss(
    model: LanguageModel,
    layout: Layout,
    bound: Mapping[str, Bound],
    value_coefficient: Array,
    unit: Array | float,
    temperature: float | None,
    params: Params,
    batch: TokenBatch,
) -> tuple[Array, tuple[dict[str, Array | Mean], dict[str, PyTree]]]:
    """Computes the weighted loss, metrics and summaries of a microbatch."""
    fields = ("log_prob", "entropy") if batch.target is None else EVERYTHING
    statistics = score_tokens(model, params, batch.rows, layout, fields=fields, temperature=temperature)
    view = batch.view.replace(log_prob=statistics.log_prob, entropy=statistics.entropy)
    if view.sequence_log_ratio is None:
        view = view.replace(sequence_log_ratio=mean_log_ratio(view, view.log_prob))
    policy_loss, summaries = bound["loss"](view)
    terms = {"policy_loss": policy_loss if batch.importance is None else batch.importance * policy_loss}
    for name in named(bound, "regularizer/"):
        term, summary = bound[name](view)
        terms[name.removeprefix("regularizer/")] = unit * term
        summaries |= summary
    metrics = {name: jnp.sum(batch.weight * term) for name, term in terms.items()}
    total = sum(metrics.values())  # type: PyTree
    if batch.target is not None:
        error = squared_loss(statistics.value, jax.lax.stop_gradient(batch.target))
        metrics["value_loss"] = jnp.sum(batch.weight * jnp.where(view.mask, error, 0.0))
        total += value_coefficient * metrics["value_loss"]
    metrics["loss"] = total
    return total, (metrics | _means_of_tokens(view), summaries)


def _means_of_tokens(view: TokenView) -> dict[str, Mean]:
    """Computes means over the tokens that count, regardless of the weights of the loss."""
    values = {
        "entropy": view.entropy,
        "approximate_kl": approximate_kl(view.log_prob, view.behavior_log_prob),
        "clip_fraction": clip_fraction(view.log_prob, view.behavior_log_prob, clip_epsilon=_CLIP_EPSILON),
    }
    if view.reference_log_prob is not None:
        values["reference_kl"] = view.log_prob - view.reference_log_prob
    count = jnp.sum(view.mask, dtype=jnp.float32)
    return {name: Mean(total=jnp.sum(jnp.where(view.mask, x, 0.0)), count=count) for name, x in values.items()}


def fields_of_losses(bound: Mapping[str, Bound], view: TokenView) -> frozenset[str]:
    """Returns the fields of a view that the loss and the regularisers read."""
    floats = jax.ShapeDtypeStruct(view.mask.shape, jnp.float32)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), view)
    shapes = shapes.replace(log_prob=floats, entropy=floats, sequence_log_ratio=floats)
    names = ["loss", *named(bound, "regularizer/")]
    return fields_read(lambda view: [bound[name](view) for name in names], shapes)[0]


def zero_where_uncounted(metrics: Metrics) -> Metrics:
    """Sets means over no elements to zero: a batch in which nothing counts must not look like a run that diverged."""
    return {
        name: x.replace(count=jnp.where(x.count > 0.0, x.count, 1.0)) if isinstance(x, Mean) else x
        for name, x in metrics.items()
    }

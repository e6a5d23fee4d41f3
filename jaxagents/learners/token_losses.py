"""The loss of a microbatch of tokens: slots of the learner, the value loss, and what is logged of them."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxagents.learners.liveness import fields_read
from jaxagents.learners.settings import Bound, named
from jaxagents.learners.token_batches import TokenBatch
from jaxagents.losses.policy_gradient import approximate_kl
from jaxagents.losses.value import squared_loss
from jaxagents.ops.sequences import mean_log_ratio
from jaxagents.policies.contexts import EVERYTHING, score_tokens
from jaxagents.types import Array, LanguageModel, Layout, Mean, Metrics, Params, PyTree, TokenView


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
    """Computes means over the tokens that count, whatever the weights of the loss are."""
    values = {"entropy": view.entropy, "approximate_kl": approximate_kl(view.log_prob, view.behavior_log_prob)}
    if view.reference_log_prob is not None:
        values["reference_kl"] = view.log_prob - view.reference_log_prob
    count = jnp.sum(view.mask, dtype=jnp.float32)
    return {name: Mean(total=jnp.sum(jnp.where(view.mask, x, 0.0)), count=count) for name, x in values.items()}


def fields_of_losses(bound: Mapping[str, Bound], view: TokenView) -> frozenset[str]:
    """Says which fields of a view the loss and the regularisers read."""
    floats = jax.ShapeDtypeStruct(view.mask.shape, jnp.float32)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), view)
    shapes = shapes.replace(log_prob=floats, entropy=floats, sequence_log_ratio=floats)
    names = ["loss", *named(bound, "regularizer/")]
    return fields_read(lambda view: [bound[name](view) for name in names], shapes)[0]


def zero_where_uncounted(metrics: Metrics) -> Metrics:
    """Makes means over nothing zero: a batch of which nothing counts must not look like a run that diverged."""
    return {
        name: x.replace(count=jnp.where(x.count > 0.0, x.count, 1.0)) if isinstance(x, Mean) else x
        for name, x in metrics.items()
    }

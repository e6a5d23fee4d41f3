"""What a model says about the tokens of episodes, a microbatch at a time."""

from collections.abc import Collection

import jax

from jaxagents.learners.microbatches import Microbatches
from jaxagents.policies.contexts import Rows, fold, score_tokens, to_rows, turns_of_rows, unfold
from jaxagents.types import Array, Episode, LanguageModel, Params, PyTree, TokenStatistics


def score_episodes(
    model: LanguageModel,
    microbatches: Microbatches,
    params: Params,
    episode: Episode,
    *,
    fields: Collection[str],
    temperature: float | None = None,
) -> TokenStatistics:
    """Computes statistics of all tokens that were sampled.

    Args:
        model: scores.
        microbatches: of the layout of the episodes.
        params: of the model.
        episode: B episodes.
        fields: what is computed, see `policies.contexts.score_tokens`; nothing costs nothing.
        temperature: divides the logits; None is 1.

    Returns:
        The statistics, `[B, T, S]`, without gradient.
    """
    if not fields:
        return TokenStatistics()
    layout = episode.layout

    def score(rows: Rows, turns: int) -> TokenStatistics:
        return score_tokens(model, params, rows.first_turns(turns), layout, fields=fields, temperature=temperature)

    return unfold(layout, microbatches.each(score, to_rows(episode), turns_of_rows(episode)))


def weighted_gradient(
    model: LanguageModel, microbatches: Microbatches, params: Params, episode: Episode, field: str, weight: Array
) -> PyTree:
    """Computes the gradient of `sum(weight * field)` over the tokens of episodes, a microbatch at a time.

    Args:
        model: scores.
        microbatches: of the layout of the episodes.
        params: of the model.
        episode: B episodes.
        field: of `TokenStatistics`.
        weight: `[B, T, S]`.

    Returns:
        As `params`.
    """
    layout = episode.layout

    def gradient(inputs: tuple[Rows, Array], turns: int) -> PyTree:
        rows, row_weight = inputs

        def total(params: Params) -> Array:
            statistics = score_tokens(model, params, rows.first_turns(turns), layout, fields=(field,))
            return (row_weight[:, :turns] * getattr(statistics, field)).sum()

        return jax.grad(total)(params)

    return microbatches.total(gradient, (to_rows(episode), fold(layout, weight)), turns_of_rows(episode))

"""Scores and gradients of episodes' tokens in pieces that fit into memory, without empty rows and empty turns."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.ops.conditions import max_of_batch
from jaxagents.policies.contexts import Rows, fold, row_turns, score_tokens, to_rows, turns_of_rows, unfold
from jaxagents.types import Array, Episode, LanguageModel, Layout, Params, PyTree, TokenStatistics

_NUM_LENGTHS = 4
_OfRows = Callable[[PyTree, int], PyTree]


class Microbatches(NamedTuple):
    """How rows are processed.

    Rows are sorted by their number of turns; empty rows come last and are never processed, and a microbatch of rows
    that ended early needs only a quarter, half or three quarters of the turns. `function(rows [n, ...], turns)` gets
    one microbatch and the number of turns of its rows to process; `num_turns` int32 `[N]` is the number of turns that
    took place in each row; leaves of `rows` are `[N, ...]`.

    Attributes:
        total: `(function, rows, num_turns) -> pytree`, the sum of the function's results; the function must return zero
            for rows of zeros.
        each: `(function, rows, num_turns) -> pytree`, leaves `[N, t, ...]`, the function's results for every row, `[n,
            turns, ...]`; zero for empty rows and turns that were not processed.
    """

    total: Callable[[_OfRows, PyTree, Array], PyTree]
    each: Callable[[_OfRows, PyTree, Array], PyTree]


def make_microbatches(layout: Layout, *, microbatch_tokens: int = 4096) -> Microbatches:
    """Makes microbatches of the rows of episodes.

    Args:
        layout: layout of the episodes.
        microbatch_tokens: approximate number of tokens in a microbatch.

    Returns:
        The functions.

    Raises:
        ValueError: `microbatch_tokens` is not positive.
    """
    if microbatch_tokens < 1:
        raise ValueError(f"`microbatch_tokens` must be at least 1, got {microbatch_tokens}; try 4096.")
    full = row_turns(layout)
    choices = sorted({-(-full * i // _NUM_LENGTHS) for i in range(1, _NUM_LENGTHS + 1)})

    def visit(
        function: _OfRows, rows: PyTree, num_turns: Array, combine: Callable[..., PyTree], zeros: PyTree
    ) -> PyTree:
        num_rows = num_turns.shape[0]
        size = _size(num_rows)
        order = jnp.argsort(-num_turns)
        order = jnp.where(num_turns[order] > 0, order, num_rows)  # Out of range: read as zeros, not written.
        order = jnp.pad(order, (0, -num_rows % size), constant_values=num_rows)

        def branch(turns: int) -> Callable[[tuple], PyTree]:
            def work(inputs: tuple) -> PyTree:
                result, chosen, taken = inputs
                return combine(result, function(taken, turns), chosen)

            return work

        branches = [branch(turns) for turns in choices]

        def step(index: Array, result: PyTree) -> PyTree:
            chosen = jax.lax.dynamic_slice(order, (index * size,), (size,))
            taken = jax.tree.map(lambda leaf: leaf.at[chosen].get(mode="fill", fill_value=0), rows)
            longest = num_turns.at[chosen[0]].get(mode="fill", fill_value=0)
            which = jnp.sum(jnp.asarray(choices[:-1], jnp.int32) < longest)
            return jax.lax.switch(max_of_batch(which), branches, (result, chosen, taken))

        count = (jnp.sum(num_turns > 0) + size - 1) // size
        return jax.lax.fori_loop(0, count, step, zeros)

    def _size(num_rows: int) -> int:
        return min(num_rows, max(1, microbatch_tokens // (layout.prompt + full * layout.turn)))

    def total(function: _OfRows, rows: PyTree, num_turns: Array) -> PyTree:
        zeros = _zeros_like(function, rows, _size(num_turns.shape[0]), full)
        return visit(function, rows, num_turns, lambda result, value, _: jax.tree.map(jnp.add, result, value), zeros)

    def each(function: _OfRows, rows: PyTree, num_turns: Array) -> PyTree:
        def put(result: Array, value: Array, chosen: Array) -> Array:
            return result.at[chosen, : value.shape[1]].set(value, mode="drop")

        def combine(result: PyTree, value: PyTree, chosen: Array) -> PyTree:
            return jax.tree.map(lambda old, new: put(old, new, chosen), result, value)

        return visit(function, rows, num_turns, combine, _zeros_like(function, rows, num_turns.shape[0], full))

    return Microbatches(total=total, each=each)


def _zeros_like(function: _OfRows, rows: PyTree, size: int, turns: int) -> PyTree:
    taken = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), rows)
    shapes = jax.eval_shape(lambda rows: function(rows, turns), taken)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def score_episodes(
    model: LanguageModel,
    microbatches: Microbatches,
    params: Params,
    episode: Episode,
    *,
    fields: Collection[str],
    temperature: float | None = None,
) -> TokenStatistics:
    """Computes statistics of all sampled tokens.

    Args:
        model: language model that scores the tokens.
        microbatches: microbatches of the layout of the episodes.
        params: parameters of the model.
        episode: B episodes.
        fields: names of the statistics to compute, see `policies.contexts.score_tokens`; an empty set costs nothing.
        temperature: number by which the logits are divided; None is 1.

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
    """Computes the gradient of `sum(weight * field)` over the tokens of episodes, one microbatch at a time.

    Args:
        model: language model that scores the tokens.
        microbatches: microbatches of the layout of the episodes.
        params: parameters of the model.
        episode: B episodes.
        field: name of a field of `TokenStatistics`.
        weight: `[B, T, S]`.

    Returns:
        A pytree like `params`.
    """
    layout = episode.layout

    def gradient(inputs: tuple[Rows, Array], turns: int) -> PyTree:
        rows, row_weight = inputs

        def total(params: Params) -> Array:
            statistics = score_tokens(model, params, rows.first_turns(turns), layout, fields=(field,))
            return (row_weight[:, :turns] * getattr(statistics, field)).sum()

        return jax.grad(total)(params)

    return microbatches.total(gradient, (to_rows(episode), fold(layout, weight)), turns_of_rows(episode))

"""Episodes as rows of a language model's input, and what the model says about the sampled tokens."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.policies.language_model import token_statistics
from jaxagents.types import Array, Episode, LanguageModel, Layout, Params


@struct.dataclass
class Rows:
    """Input of a model, `[N, l]`; see `Episode`."""

    tokens: Array
    token_mask: Array
    position: Array
    turn: Array
    agent: Array


@struct.dataclass
class RowStatistics:
    """What a model says about tokens, `[N, l]`; zero where nothing is sampled.

    Attributes:
        log_prob: float32, of the token.
        entropy: float32, of the distribution that it comes from, in nats.
        value: float32, of the context that it is sampled from; None without a value head.
    """

    log_prob: Array
    entropy: Array
    value: Array | None


def is_folded(layout: Layout) -> bool:
    """Tells whether every turn is a row of its own: nothing of other turns is seen in it."""
    return layout.context_turns == 1 and layout.prompt == 0


def row_layout(layout: Layout) -> Layout:
    """Returns the layout of the rows of episodes."""
    return layout._replace(num_turns=1) if is_folded(layout) else layout


def fold(layout: Layout, per_token: Array) -> Array:
    """Cuts `[B, L, ...]` into rows `[N, l, ...]`: one per turn if turns do not see each other, else one per episode."""
    if not is_folded(layout):
        return per_token
    return per_token.reshape(-1, layout.slot, *per_token.shape[2:])


def turns_of_rows(episode: Episode) -> Array:
    """Counts the turns of each row that took place, int32 `[n]`: a row is a turn where the layout is folded."""
    valid = episode.valid
    return (valid.reshape(-1) if is_folded(episode.layout) else jnp.sum(valid, axis=1)).astype(jnp.int32)


def to_rows(episode: Episode) -> Rows:
    """Returns the rows that a model reads to judge the tokens of episodes, exactly as when it acted."""
    names = ("tokens", "token_mask", "position", "turn", "agent")
    return Rows(**{name: fold(episode.layout, getattr(episode, name)) for name in names})


def see(rows: Rows, context_turns: int) -> Array:
    """Says which tokens see which: those before them in the context of the same agent, of recent turns and the prompt.

    Args:
        rows: of one or more turns.
        context_turns: turns that are seen, the present one included.

    Returns:
        bool `[N, l, l]`, queries then keys.
    """
    causal = jnp.tril(jnp.ones((rows.tokens.shape[1],) * 2, bool))[None]
    query, key = rows.turn[:, :, None], rows.turn[:, None, :]
    prompt = key < 0
    own = prompt | (rows.agent[:, :, None] == rows.agent[:, None, :])
    return rows.token_mask[:, None, :] & causal & own & (prompt | (query - key < context_turns))


def judge_rows(model: LanguageModel, params: Params, rows: Rows, layout: Layout) -> RowStatistics:
    """Computes log-probability, entropy and value at the tokens that a policy may have sampled.

    Args:
        model: judges.
        params: of the model.
        rows: `[N, l]`.
        layout: of the rows, `row_layout` of that of the episodes, or of fewer turns.

    Returns:
        The statistics. Logits are made only for the part of every slot that follows the observation.
    """
    hidden = model.apply(params, rows.tokens, positions=rows.position, mask=see(rows, layout.context_turns))
    num_rows = rows.tokens.shape[0]

    def slots(per_token: Array) -> Array:
        shape = (num_rows, layout.num_turns, layout.slot, *per_token.shape[2:])
        return per_token[:, layout.prompt :].reshape(shape)

    hidden, begin = slots(hidden), layout.observation
    if layout.thought:
        # A thought may end before its part of the slot does: look back to the last token there is.
        column = jnp.where(slots(rows.token_mask), jnp.arange(layout.slot)[None, None], 0)
        last = jax.lax.cummax(column, axis=2)[:, :, begin - 1 : -1]
        hidden = jnp.take_along_axis(hidden, last[..., None], axis=2)
    else:
        hidden = hidden[:, :, begin - 1 : -1]
    statistics = token_statistics(model, params, hidden, slots(rows.tokens)[:, :, begin:])

    def spread(sampled: Array) -> Array:
        padded = jnp.pad(sampled, ((0, 0), (0, 0), (begin, 0))).reshape(num_rows, -1)
        return jnp.pad(padded, ((0, 0), (layout.prompt, 0)))

    return RowStatistics(
        log_prob=spread(statistics.log_prob),
        entropy=spread(statistics.entropy),
        value=None if model.value is None else spread(model.value(params, hidden)),
    )

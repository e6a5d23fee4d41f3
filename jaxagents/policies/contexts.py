"""Episodes as rows of a language model's input, their attention masks, and the model's statistics of their tokens."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.policies.language_model import token_statistics
from jaxagents.types import Array, CausalMask, Episode, LanguageModel, Layout, Params, PyTree, TokenStatistics

EVERYTHING = ("log_prob", "entropy", "value")


@struct.dataclass
class Rows:
    """Input of a model: prompts `[N, P]`, then turns `[N, t, S]`; see `Episode`.

    Attributes:
        inputs: int32 `[N, t, S]`, tokens that are read instead of `tokens`, which are scored; None: these are read,
            too.
    """

    prompt_tokens: Array
    prompt_mask: Array
    tokens: Array
    token_mask: Array
    position: Array
    agent: Array
    inputs: Array | None = None

    def first_turns(self, num_turns: int) -> "Rows":
        """Returns the rows without later turns."""
        names = ("tokens", "token_mask", "position", "agent", "inputs")
        turns = {name: getattr(self, name) for name in names}
        return self.replace(**jax.tree.map(lambda leaf: leaf[:, :num_turns], turns))


def is_folded(layout: Layout) -> bool:
    """Returns whether every turn is a separate row, in which nothing of other turns is visible."""
    return layout.context_turns == 1 and layout.prompt == 0


def row_turns(layout: Layout) -> int:
    """Returns the number of turns in a row."""
    return 1 if is_folded(layout) else layout.num_turns


def fold(layout: Layout, tree: PyTree) -> PyTree:
    """Cuts leaves `[B, T, ...]` into rows `[N, t, ...]`: turns if they do not see each other, else episodes."""
    if not is_folded(layout):
        return tree
    return jax.tree.map(lambda leaf: leaf.reshape(-1, 1, *leaf.shape[2:]), tree)


def unfold(layout: Layout, tree: PyTree) -> PyTree:
    """Returns rows `[N, t, ...]` as episodes `[B, T, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, layout.num_turns, *leaf.shape[2:]), tree)


def turns_of_rows(episode: Episode) -> Array:
    """Counts the turns of each row that took place, int32 `[N]`."""
    return jnp.sum(fold(episode.layout, episode.valid), axis=1, dtype=jnp.int32)


def to_rows(episode: Episode) -> Rows:
    """Returns the rows that a model reads to score the tokens of episodes, exactly as at the time of acting."""
    names = ("tokens", "token_mask", "position", "agent")
    turns = fold(episode.layout, {name: getattr(episode, name) for name in names})
    num_rows = turns["tokens"].shape[0]
    return Rows(
        prompt_tokens=episode.prompt_tokens.reshape(num_rows, -1),
        prompt_mask=episode.prompt_mask.reshape(num_rows, -1),
        **turns,
    )


def score_tokens(
    model: LanguageModel,
    params: Params,
    rows: Rows,
    layout: Layout,
    *,
    fields: Collection[str] = EVERYTHING,
    temperature: Array | float | None = None,
) -> TokenStatistics:
    """Computes log-probability, entropy and value at the tokens that a policy may have sampled.

    Args:
        model: language model that scores the tokens.
        params: parameters of the model.
        rows: N rows of t turns.
        layout: layout of the episodes.
        fields: names of the statistics to compute, from `EVERYTHING`; without `log_prob` and `entropy`, no logits are
            computed. Models without a value head give no values.
        temperature: number by which the logits are divided; None is 1.

    Returns:
        The statistics, `[N, t, S]`. Logits are only computed for the part of every turn that follows the observation.
    """
    num_rows, num_turns, size = rows.tokens.shape
    hidden = _read(model, params, rows, layout).reshape(num_rows, num_turns, size, -1)
    begin = layout.observation
    if layout.thought:
        # A thought may end before its part of the turn does: look back to the last existing token.
        column = jnp.where(rows.token_mask, jnp.arange(size)[None, None], 0)
        last = jax.lax.cummax(column, axis=2)[:, :, begin - 1 : -1]
        hidden = jnp.take_along_axis(hidden, last[..., None], axis=2)
    else:
        hidden = hidden[:, :, begin - 1 : -1]
    of_tokens = [field for field in ("log_prob", "entropy") if field in fields]
    statistics = TokenStatistics()
    if of_tokens:
        tokens = rows.tokens[:, :, begin:]
        statistics = token_statistics(model, params, hidden, tokens, fields=of_tokens, temperature=temperature)
    if "value" in fields and model.value is not None:
        statistics = statistics.replace(value=model.value(params, hidden))
    return jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, 0), (begin, 0))), statistics)


def _read(model: LanguageModel, params: Params, rows: Rows, layout: Layout) -> Array:
    """Returns the hidden states after the tokens of the turns, `[N, t * S, D]`."""
    num_rows, num_turns, size = rows.tokens.shape
    prompt = rows.prompt_mask.shape[1]

    def join(of_prompt: Array, of_turns: Array) -> Array:
        return jnp.concatenate([of_prompt.astype(of_turns.dtype), of_turns.reshape(num_rows, -1)], axis=1)

    mask = join(rows.prompt_mask, rows.token_mask)
    acting_agent = rows.agent[:, :, 0]
    own_turn = jnp.sum(jnp.tril(acting_agent[:, :, None] == acting_agent[:, None, :], -1), axis=2)
    turn = join(jnp.full((num_rows, prompt), -1), jnp.repeat(own_turn, size, axis=1))
    agent = join(jnp.zeros_like(rows.prompt_tokens), rows.agent)
    hidden = model.apply(
        params,
        join(rows.prompt_tokens, rows.tokens if rows.inputs is None else rows.inputs),
        positions=join(jnp.cumsum(rows.prompt_mask, axis=1) - rows.prompt_mask, rows.position),
        mask=CausalMask(turn=turn, agent=agent, present=mask, context_turns=layout.context_turns),
    )
    return hidden[:, prompt:]


def hidden_after_turns(model: LanguageModel, params: Params, episode: Episode) -> Array:
    """Computes the hidden state of a model after the last token of every turn, for probes.

    Args:
        model: language model that reads the episodes.
        params: parameters of the model.
        episode: B episodes of T turns.

    Returns:
        `[B, T, D]`; for turns that did not take place, the state of an arbitrary token.
    """
    rows, layout = to_rows(episode), episode.layout
    num_rows, num_turns, size = rows.tokens.shape
    hidden = _read(model, params, rows, layout).reshape(num_rows, num_turns, size, -1)
    last = jnp.max(jnp.where(rows.token_mask, jnp.arange(size)[None, None], 0), axis=2)
    return unfold(layout, jnp.take_along_axis(hidden, last[:, :, None, None], axis=2)[:, :, 0])

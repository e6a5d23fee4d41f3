"""What the loss of tokens reads: views of episodes, and batches of them that can be cut into microbatches."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.losses.token_policy_gradient import truncated_importance_weight
from jaxagents.ops.episodes import credited_tokens, group_success
from jaxagents.ops.seats import num_seats
from jaxagents.policies.contexts import Rows, fold, to_rows
from jaxagents.types import Array, Episode, Layout, TokenView


@struct.dataclass
class TokenBatch:
    """Episodes to learn from, leaves `[B, T, S]` but for `episode`; once folded, `[N, t, S]` and `rows` in its place.

    Attributes:
        episode: the episodes; None when folded.
        rows: input of the model; None before it is folded.
        view: what is known before the model has read the tokens.
        weight: float32, of the loss of a token, see `losses.aggregation`.
        importance: float32, multiplies the loss of the slot `loss`; None is 1.
        target: float32, of the value head; None without one.
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
        """Counts the turns of each row that have to be looked at, int32 `[N]`: none where no token of it counts."""
        counts = jnp.any(self.view.mask, axis=(1, 2))[:, None] & self.episode.valid
        return jnp.sum(fold(layout, counts), axis=1, dtype=jnp.int32)


def make_token_view(episode: Episode, *, mask: Array | None = None, tempered: bool = False) -> TokenView:
    """Makes the view of the tokens of episodes, without credit.

    Args:
        episode: B episodes.
        mask: bool `[B, T, S]`, tokens that count; None takes the sampled ones of rows that are kept.
        tempered: takes the log-probabilities under the distribution that tokens were drawn from as the behaviour's.

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
    """Computes what corrects the losses of tokens for how they were drawn; None without a cap."""
    if cap is None:
        return None
    return truncated_importance_weight(episode.behavior_log_prob, episode.sampling_log_prob, view.mask, cap=cap)

"""What PAE imitates (Zhou et al., 2024): the shortest of the own episodes that were paid."""

import jax.numpy as jnp

from jaxagents.ops.episodes import episode_return, kept_rows, same_group
from jaxagents.types import Array, EpisodeView


def shortest_rewarded(view: EpisodeView, *, axis_name: str | None = None, share: Array | float = 0.2) -> Array:
    """Chooses the episodes of a task that were paid and are no longer than a percentile of the paid ones.

    With the turns `l_1 <= ... <= l_n` of the n episodes of a task whose return is more than 0, those are chosen with
    `l_i <= l_(1 + share (n - 1))`, interpolated linearly. Rewards decide, not `success`: who pays may err.

    Args:
        view: of B episodes in groups of the same task.
        axis_name: not used; groups lie on one device as a whole.
        share: the percentile as a fraction, in [0, 1]; 1 chooses all that were paid.

    Returns:
        bool `[B]`.

    Raises:
        ValueError: it is a game of several seats.

    References:
        Zhou et al. (2024), "Proposer-Agent-Evaluator (PAE)"; amazon-science/PAE@f40715b,
        pae/algorithms/utils.py:52-72.
    """
    paid = kept_rows(view.episode) & (episode_return(view.episode) > 0.0)
    length = jnp.sum(view.episode.valid, axis=1).astype(jnp.float32)
    same = same_group(view.episode)[:, :, 0] & paid[None, :]
    lengths = jnp.sort(jnp.where(same, length[None, :], jnp.inf), axis=1)
    place = share * jnp.maximum(jnp.sum(same, axis=1) - 1, 0)
    low = jnp.floor(place).astype(jnp.int32)
    below, above = (
        jnp.take_along_axis(lengths, one[:, None], axis=1)[:, 0] for one in (low, jnp.ceil(place).astype(int))
    )
    cutoff = jnp.where(above > below, below + (place - low) * (above - below), below)
    return paid & (length <= cutoff)

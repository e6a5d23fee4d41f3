"""What PAE imitates (Zhou et al., 2024): the shortest rewarded episodes of the policy."""

import jax.numpy as jnp

from jaxagents.ops.episodes import episode_return, kept_rows, same_group
from jaxagents.types import Array, EpisodeView


def shortest_rewarded(view: EpisodeView, *, axis_name: str | None = None, share: Array | float = 0.2) -> Array:
    """Chooses the rewarded episodes of a task that are no longer than a percentile of all rewarded ones.

    With `l_1 <= ... <= l_n` the numbers of turns of the n episodes of a task with positive returns, those with `l_i <=
    l_(1 + share (n - 1))` are chosen, interpolated linearly. Rewards decide, not `success`: the evaluator may err.

    Args:
        view: view of B episodes in groups of the same task.
        axis_name: not used; groups lie on one device as a whole.
        share: the percentile as a fraction, in [0, 1]; 1 chooses all rewarded episodes.

    Returns:
        bool `[B]`.

    Raises:
        ValueError: the episodes are of a game with several seats.

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

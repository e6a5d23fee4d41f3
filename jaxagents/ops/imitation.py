"""Choices of the policy's own episodes that it imitates: `(view, *, axis_name, ...) -> bool [B]`, True = imitate.

The filters of groups (`ops.group_filters`) can be used here, too.
"""

import jax.numpy as jnp

from jaxagents.ops.episodes import episode_return, kept_rows, same_group
from jaxagents.ops.rows import first_row, rows_of_all_devices
from jaxagents.types import Array, EpisodeView


def successful(view: EpisodeView, *, axis_name: str | None = None) -> Array:
    """Chooses the episodes that succeeded: rejection sampling.

    Args:
        view: view of B episodes.
        axis_name: not used; success does not depend on other episodes.

    Returns:
        bool `[B]`.

    References:
        Zelikman et al. (2022), "STaR: Bootstrapping Reasoning With Reasoning"; Singh et al. (2024), "Beyond Human Data:
        Scaling Self-Training for Problem-Solving with Language Models" (ReST^EM), algorithm 1.
    """
    return kept_rows(view.episode) & view.episode.success


def best_of_group(view: EpisodeView, *, axis_name: str | None = None, count: Array | int = 1) -> Array:
    """Chooses the episodes with the largest returns in every group, whether they succeeded or not.

    Args:
        view: view of B episodes in groups of the same task.
        axis_name: not used; groups lie on one device as a whole.
        count: number of episodes per group; the first ones if returns are equal.

    Returns:
        bool `[B]`.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Dong et al. (2023), "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", algorithm 1.
    """
    returns, same = episode_return(view.episode), same_group(view.episode)[:, :, 0]
    index = jnp.arange(returns.shape[0])
    equal_before = (returns[None, :] == returns[:, None]) & (index[None, :] < index[:, None])
    ahead = (returns[None, :] > returns[:, None]) | equal_before
    return kept_rows(view.episode) & (jnp.sum(same & ahead, axis=1) < count)


def top_share(view: EpisodeView, *, axis_name: str | None = None, share: Array | float = 0.125) -> Array:
    """Chooses the share of all episodes in a batch with the largest returns, regardless of their tasks.

    Args:
        view: view of B episodes in groups of the same task.
        axis_name: mapped device axis, over whose episodes the share is taken.
        share: share of the episodes, in (0, 1], rounded down, but at least one of them. If returns are equal, the first
            ones of every group come before the second ones, so that as many tasks as possible are imitated.

    Returns:
        bool `[B]`.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Dong et al. (2023), "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", global ranking;
        OptimalScale/LMFlow@f3597db, src/lmflow/pipeline/raft_aligner.py:257-360.
    """
    returns, kept = episode_return(view.episode), kept_rows(view.episode)
    same, index = same_group(view.episode)[:, :, 0], jnp.arange(returns.shape[0])
    equal = same & kept[None, :] & (returns[None, :] == returns[:, None])
    turn = jnp.sum(equal & (index[None, :] < index[:, None]), axis=1)
    place = index + first_row(index.shape[0], axis_name)
    counts, other, other_turn, other_place = rows_of_all_devices((kept, returns, turn, place), axis_name)
    earlier = (other_turn[None, :] < turn[:, None]) | (
        (other_turn[None, :] == turn[:, None]) & (other_place[None, :] < place[:, None])
    )
    ahead = (other[None, :] > returns[:, None]) | ((other[None, :] == returns[:, None]) & earlier)
    rank = jnp.sum(counts[None, :] & ahead, axis=1)
    return kept & (rank < jnp.maximum(jnp.floor(share * jnp.sum(counts)), 1.0))


def turning_points(view: EpisodeView, *, axis_name: str | None = None) -> Array:
    """Chooses, among episodes that begin later and later, those that succeed where the one before failed.

    Args:
        view: view of B episodes, with those of a group in order, see `language.eef`.
        axis_name: not used; groups lie on one device as a whole.

    Returns:
        bool `[B]`; the first episode of a group is chosen if it succeeds.

    References:
        Lan et al. (2025), "Exploring Expert Failures Improves LLM Agent Tuning" (EEF), section 3: R_k = 0, R_(k+1) = 1.
    """
    episode, chosen = view.episode, successful(view)
    same = jnp.concatenate([jnp.zeros(1, bool), episode.group[1:] == episode.group[:-1]])
    lost_before = jnp.concatenate([jnp.zeros(1, bool), ~chosen[:-1]])
    return chosen & (~same | lost_before)

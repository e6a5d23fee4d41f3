"""Which of its own episodes a policy imitates: `(view, *, axis_name, ...) -> bool [B]`, True = imitate.

The filters of groups (`ops.group_filters`) are such choices, too.
"""

import jax.numpy as jnp

from jaxagents.ops.episodes import episode_return, kept_rows, same_group
from jaxagents.types import Array, EpisodeView


def successful(view: EpisodeView, *, axis_name: str | None = None) -> Array:
    """Chooses the episodes that succeeded: rejection sampling.

    Args:
        view: of B episodes.
        axis_name: not used; an episode says itself whether it succeeded.

    Returns:
        bool `[B]`.

    References:
        Zelikman et al. (2022), "STaR: Bootstrapping Reasoning With Reasoning"; Singh et al. (2024), "Beyond Human Data:
        Scaling Self-Training for Problem-Solving with Language Models" (ReST^EM), algorithm 1.
    """
    return kept_rows(view.episode) & view.episode.success


def best_of_group(view: EpisodeView, *, axis_name: str | None = None, count: Array | int = 1) -> Array:
    """Chooses the episodes of the largest returns in every group, whether they succeeded or not.

    Args:
        view: of B episodes in groups of the same task.
        axis_name: not used; groups lie on one device as a whole.
        count: of a group; of equal returns those that come first.

    Returns:
        bool `[B]`.

    Raises:
        ValueError: it is a game of several seats.

    References:
        Dong et al. (2023), "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", algorithm 1.
    """
    returns, same = episode_return(view.episode), same_group(view.episode)[:, :, 0]
    index = jnp.arange(returns.shape[0])
    equal_before = (returns[None, :] == returns[:, None]) & (index[None, :] < index[:, None])
    ahead = (returns[None, :] > returns[:, None]) | equal_before
    return kept_rows(view.episode) & (jnp.sum(same & ahead, axis=1) < count)


def turning_points(view: EpisodeView, *, axis_name: str | None = None) -> Array:
    """Chooses, of episodes that begin ever later, those that succeed where the one before did not.

    Args:
        view: of B episodes, those of a group one after the other, see `language.eef`.
        axis_name: not used; groups lie on one device as a whole.

    Returns:
        bool `[B]`; the first episode of a group is chosen where it succeeds.

    References:
        Lan et al. (2025), "Exploring Expert Failures Improves LLM Agent Tuning" (EEF), section 3: R_k = 0, R_(k+1) = 1.
    """
    episode, chosen = view.episode, successful(view)
    same = jnp.concatenate([jnp.zeros(1, bool), episode.group[1:] == episode.group[:-1]])
    lost_before = jnp.concatenate([jnp.zeros(1, bool), ~chosen[:-1]])
    return chosen & (~same | lost_before)

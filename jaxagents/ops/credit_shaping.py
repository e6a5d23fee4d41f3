"""Changes of advantages after they were estimated: `(view, advantage [B, T, S], *, axis_name, ...) -> [B, T, S]`.

They are the slots `learner.credits`, applied one after the other. What they give to tokens that do not count (nothing
sampled, or a dropped row) is set to zero after them.
"""

import jax.numpy as jnp

from jaxagents.types import Array, EpisodeView


def controlled(
    view: EpisodeView, advantage: Array, *, axis_name: str | None = None, value: Array | float = 1.0
) -> Array:
    """Gives all tokens of the rows of `view.episode.control` one advantage.

    Args:
        view: of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.
        value: of the advantage; 1 is plain REINFORCE of successful rows.

    Returns:
        The advantages.

    References:
        Wang et al. (2025), "Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement
        Fine-tuning" (samples of another temperature).
    """
    if view.episode.control is None:
        return advantage
    return jnp.where(view.episode.control[:, None, None], value, advantage)


def weighted_parts(
    view: EpisodeView,
    advantage: Array,
    *,
    axis_name: str | None = None,
    thought: Array | float = 1.0,
    action: Array | float = 1.0,
) -> Array:
    """Multiplies the advantages of thoughts and of actions by weights of their own; 0 leaves a part out.

    Args:
        view: of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.
        thought: weight of tokens of thoughts.
        action: weight of all other tokens.

    Returns:
        The advantages.
    """
    return advantage * jnp.where(view.episode.thought_mask, thought, action)


def without_truncated(view: EpisodeView, advantage: Array, *, axis_name: str | None = None) -> Array:
    """Sets the advantages of episodes that a limit cut to zero; the others were compared with them.

    Args:
        view: of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.

    Returns:
        The advantages.

    References:
        Lu et al. (2025), "Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management" (SUPO):
        without it, policies learn to write no summaries.
    """
    return jnp.where(jnp.any(view.episode.truncated, axis=1)[:, None, None], 0.0, advantage)

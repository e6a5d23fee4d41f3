"""Changes of estimated advantages: `(view, advantage [B, T, S], *, axis_name, ...) -> [B, T, S]`.

They are used in the slot `learner.credits`, applied one after the other. Afterwards, tokens that do not count (not
sampled, or in a dropped row) are set to zero.
"""

import jax.numpy as jnp

from jaxagents.ops.episodes import acting_turns, kept_rows
from jaxagents.types import Array, EpisodeView


def controlled(
    view: EpisodeView, advantage: Array, *, axis_name: str | None = None, value: Array | float = 1.0
) -> Array:
    """Gives all tokens in the rows of `view.episode.control` the same advantage.

    Args:
        view: view of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.
        value: advantage of these tokens; 1 is plain REINFORCE of successful rows.

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
    """Multiplies the advantages of thoughts and of actions by separate weights; 0 leaves a part out.

    Args:
        view: view of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.
        thought: weight of tokens of thoughts.
        action: weight of all other tokens.

    Returns:
        The advantages.
    """
    return advantage * jnp.where(view.episode.thought_mask, thought, action)


def without_truncated(view: EpisodeView, advantage: Array, *, axis_name: str | None = None) -> Array:
    """Sets the advantages of truncated episodes to zero; the other episodes have been compared with them before.

    Args:
        view: view of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.

    Returns:
        The advantages.

    References:
        Lu et al. (2025), "Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management" (SUPO):
        without this, policies learn to write no summaries.
    """
    return jnp.where(jnp.any(view.episode.truncated, axis=1)[:, None, None], 0.0, advantage)


def uncertain_turns(
    view: EpisodeView, advantage: Array, *, axis_name: str | None = None, share: Array | float = 0.8
) -> Array:
    """Keeps the advantages of the turns with the highest entropy in every group, and sets all others to zero.

    `H_t` is the mean entropy of the tokens of turn t. Of the n turns in the kept rows of a group, `ceil(share * n)` are
    kept; the first ones if entropies are equal.

    Args:
        view: view of B episodes; reads `policy.entropy`.
        advantage: `[B, T, S]`.
        axis_name: not used; groups lie on one device.
        share: share of the turns that are kept, in (0, 1].

    Returns:
        The advantages.

    References:
        Li et al. (2025), "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation"
        (DART-GUI), high-entropy steps (0.8).
    """
    episode = view.episode
    sampled = episode.action_mask
    total = jnp.sum(jnp.where(sampled, jnp.asarray(view.policy.entropy), 0.0), axis=2)
    entropy = total / jnp.maximum(jnp.sum(sampled, axis=2), 1)
    counted = (acting_turns(episode) & kept_rows(episode)[:, None]).reshape(-1)
    group = jnp.repeat(episode.group, entropy.shape[1])
    # Turns sorted by group, then those that count first, by decreasing entropy.
    order = jnp.lexsort((-entropy.reshape(-1), ~counted, group))
    ordered = group[order]
    first, beyond = (jnp.searchsorted(ordered, ordered, side=side) for side in ("left", "right"))
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counted[order], dtype=jnp.int32)])
    count = (before[beyond] - before[first]).astype(jnp.float32)
    among = jnp.arange(order.shape[0]) - first < jnp.ceil(share * count - 1e-4)
    kept = jnp.zeros_like(counted).at[order].set(among).reshape(entropy.shape)
    return jnp.where(kept[:, :, None], advantage, 0.0)


def without_part(view: EpisodeView, advantage: Array, *, axis_name: str | None = None, part: str) -> Array:
    """Sets the advantages of turns to zero for which the world reports some part, such as that an action was refused.

    Args:
        view: view of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.
        part: name of an entry of `episode.extras`, float `[B, T]`, see `collector.parts`.

    Returns:
        The advantages.

    Raises:
        ValueError: the episodes have no such part; the message lists the existing ones.

    References:
        Banerjee et al. (2026), "SEVerA: Verified Synthesis of Self-Evolving Agents" (only accepted draws).
    """
    extras = view.episode.extras
    if part not in extras:
        there = ", ".join(sorted(extras)) or "none"
        raise ValueError(f"`part` must be an entry of `episode.extras`, got {part!r}; there is {there}.")
    return jnp.where(extras[part][:, :, None] > 0, 0.0, advantage)


def only_seat(view: EpisodeView, advantage: Array, *, axis_name: str | None = None, seat: int) -> Array:
    """Sets the advantages of all seats but one to zero: rewards train this seat only, and the others do not change.

    Args:
        view: view of B episodes.
        advantage: `[B, T, S]`.
        axis_name: not used.
        seat: seat that learns.

    Returns:
        The advantages.

    References:
        Yao et al. (2024), "Retroformer: Retrospective Large Language Agents with Policy Gradient Optimization" (the
        actor is frozen).
    """
    return jnp.where(view.episode.agent == seat, advantage, 0.0)

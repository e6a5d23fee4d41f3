"""Rewards for thoughts: `(view, *, axis_name, ...) -> reward [B, T]`. Turns that did not happen are unchanged."""

import jax.numpy as jnp

from jaxagents.types import Array, EpisodeView


def self_certainty(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    coefficient: Array | float = 0.005,
    num_tokens: Array | float = 100.0,
) -> Array:
    """Adds `coefficient mean_j KL(p_j || uniform)` over the tokens j of the thought to the reward of every turn.

    `KL(p || uniform) = log |V| - H(p)`; nothing is added to a turn without a thought.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.
        coefficient: alpha, in units of the reward.
        num_tokens: |V|; a round number is enough, because its logarithm is the same for all thoughts.

    Returns:
        The rewards.

    References:
        Zhang et al. (2025), "Shop-R1: Rewarding LLMs to Simulate Human Behavior in Online Shopping via Reinforcement
        Learning", eq. 3.

    Deviation: the paper divides by |V| once more.
    """
    episode = view.episode
    certainty = jnp.where(episode.thought_mask, jnp.log(num_tokens) - jnp.asarray(view.policy.entropy), 0.0)
    mean = jnp.sum(certainty, axis=2) / jnp.maximum(jnp.sum(episode.thought_mask, axis=2), 1)
    return episode.reward + jnp.where(episode.valid, coefficient * mean, 0.0)


def thought_length(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    low: Array | float,
    from_length: Array | float,
    to_length: Array | float,
    high: Array | float,
    above: Array | float = 0.0,
    length_weight: Array | float = 0.8,
    end_weight: Array | float = 0.2,
) -> Array:
    """Adds `length_weight g(L) + end_weight [the thought ended by itself]` to turns whose reward is above `above`.

    L is the number of tokens of the thought, including its end mark; g is 1 from `from_length` to `to_length`, falls
    along half a cosine to 0 at `low` and `high`, and is 0 beyond.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used.
        low: length up to which a thought is much too short.
        from_length: shortest ideal length.
        to_length: longest ideal length.
        high: length from which a thought is much too long.
        above: reward that a turn must exceed.
        length_weight: weight of the length, in units of the reward.
        end_weight: weight of the end mark, in units of the reward; not added to empty thoughts, or if the thought fills
            all of its room.

    Returns:
        The rewards.

    References:
        Lian et al. (2025), "UI-AGILE: Advancing GUI Agents with Effective Reinforcement Learning and Precise
        Inference-Time Grounding", section 3.1.
    """
    episode = view.episode
    length = jnp.sum(episode.thought_mask, axis=2, dtype=jnp.float32)
    rise, fall = (length - low) / (from_length - low), (high - length) / (high - to_length)
    share = jnp.clip(jnp.minimum(rise, fall), 0.0, 1.0)
    room = 0 if episode.layout is None else episode.layout.thought
    added = length_weight * (1.0 - jnp.cos(jnp.pi * share)) / 2 + end_weight * ((length > 1) & (length < room))
    return episode.reward + jnp.where(episode.valid & (episode.reward > above), added, 0.0)

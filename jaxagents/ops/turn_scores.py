"""Turn scores (WebGen-Agent, IPA, iStar, IGPO): the score of a turn, standardised over the turns of its group."""

import jax.numpy as jnp

from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import (
    difference_from_group,
    group_deviation,
    of_seat,
    return_to_go,
    same_group,
    seat_returns,
    to_tokens_of_turn,
)
from jaxagents.ops.gigpo import difference_from_anchor, sort_anchors
from jaxagents.types import Array, Episode, EpisodeView


def turn_scores(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 0.0,
    standardize: bool = True,
    same_turn: bool = False,
    accumulate: Array | float = 0.0,
    clip_low: Array | float = -jnp.inf,
    clip_high: Array | float = jnp.inf,
    episode_weight: Array | float = 0.0,
    scores: str | None = None,
    joint: bool = False,
    skip_last: bool = False,
    epsilon: Array | float = 1e-6,
) -> Credit:
    """Computes the score of a turn relative to all turns of its group, for all tokens of the turn.

    With x the rewards of turns, `s_it = sum_{k >= t} discount^(k - t) x_ik` is standardised over the turns of the
    group, `z_it = (s_it - mean) / (std + epsilon)`, and with the returns R of the episodes of the group,
    `A_it = clip(sum_{k >= t} accumulate^(k - t) z_ik, low, high) + episode_weight (R_i - mean) / (std + epsilon)`.
    In games, a seat is compared with the same seat.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used; groups lie on one device.
        discount: per turn, for later scores, before they are compared; 0 uses every score by itself.
        standardize: whether to divide by standard deviations; False only subtracts means, also for returns.
        same_turn: whether to compare a turn only with the same turn of the other episodes.
        accumulate: discount per turn for later compared scores; 0 ignores them.
        clip_low: least credit of a turn.
        clip_high: greatest credit of a turn.
        episode_weight: weight of the episode's outcome, beside the credit of the turn.
        scores: name of an entry of `episode.extras`, float `[B, T]`, that replaces the rewards as x.
        joint: whether x is the sum of rewards and `scores`.
        skip_last: whether the last turn of an episode has no score, and is left out of means and deviations.
        epsilon: number added to standard deviations, in units of x.

    Returns:
        The credit, without targets; zero for tokens that were not sampled and, apart from the outcome, in groups of
        equal scores.

    Raises:
        ValueError: the episodes have no such scores; the message lists the existing ones.

    References:
        Lu et al. (2025), "WebGen-Agent" (discount 0; its cumulative ablation accumulates with 1). Wang et al. (2025),
        "Let It Flow" (IPA; discount below 1, clipped). Liu et al. (2025), "Agentic Reinforcement Learning with Implicit
        Step Rewards" (iStar; scores, episode_weight). Wang et al. (2025), "Information Gain-based Policy Optimization"
        (IGPO; scores, skip_last, accumulate 1, episode_weight 1).

    Deviation: standard deviations are those of the population; the authors' code uses those of the sample.
    """
    episode = view.episode
    turns = jnp.broadcast_to(jnp.arange(episode.reward.shape[1]), episode.reward.shape)
    scored = episode.replace(
        reward=_scores(episode, scores, joint),
        fingerprint=turns.astype(jnp.uint32) * same_turn,
        valid=episode.valid & ~(skip_last & _is_last(episode, turns)),
    )
    own = difference_from_anchor(
        return_to_go(scored, discount), sort_anchors(scored), standardize=standardize, epsilon=epsilon
    )
    credit = jnp.clip(return_to_go(episode.replace(reward=own), accumulate), clip_low, clip_high)
    same = same_group(episode)
    outcome, _ = difference_from_group(seat_returns(episode), same)
    if standardize:
        outcome = outcome / (group_deviation(outcome, same) + epsilon)
    per_turn = credit + episode_weight * of_seat(outcome, episode)
    return Credit(advantage=to_tokens(episode, to_tokens_of_turn(per_turn, episode)))


def _scores(episode: Episode, name: str | None, joint: bool) -> Array:
    if name is None:
        return episode.reward
    if name not in episode.extras:
        there = ", ".join(sorted(episode.extras)) or "none"
        raise ValueError(f"`scores` must be an entry of `episode.extras`, got {name!r}; there is {there}.")
    return episode.extras[name] + episode.reward * joint


def _is_last(episode: Episode, turns: Array) -> Array:
    return episode.valid & (turns == jnp.max(jnp.where(episode.valid, turns, -1), axis=1, keepdims=True))

"""GiGPO (Feng et al., 2025): values of turns relative to turns of their group that acted in the same anchor state.

Turns are sorted by group and fingerprint, so that memory grows linearly with their number and not quadratically. All
rows of a group are on the same device; turns without sampled tokens and rows that were dropped are not counted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import (
    acting_turns,
    difference_from_group,
    group_deviation,
    kept_rows,
    of_seat,
    return_to_go,
    same_group,
    seat_returns,
    to_tokens_of_turn,
)
from jaxagents.ops.seats import seat_of_turn
from jaxagents.types import Array, Episode, EpisodeView


class Anchors(NamedTuple):
    """Turns sorted into runs of the same seat, which acted in the same state of the same group; `n = B * T`.

    Attributes:
        order: int32 `[n]`, sorted turns (`row * T + turn`); those that do not count come last.
        run: int32 `[n]`, run of every sorted turn.
        start: int32 `[n]`, place of the first turn in the run of every sorted turn.
        counted: bool `[n]`, whether each sorted turn counts.
    """

    order: Array
    run: Array
    start: Array
    counted: Array


@within_groups
def gigpo(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 0.95,
    episode_weight: Array | float = 1.0,
    step_weight: Array | float = 1.0,
    standardize: bool = False,
    epsilon: Array | float = 1e-6,
) -> Credit:
    """Computes the advantage of the episode in its group plus that of the turn among turns in the same state.

    `A_it = episode_weight (R_i - mean_j R_j) / F + step_weight (G_it - mean_{(j, k) in S} G_jk) / F_S`, where `R` is
    the undiscounted return, `G_it = sum_{k >= t} discount^(k - t) reward_ik`, and S are the turns of the group of row i
    whose fingerprint is that of turn t. In games, both are compared with the same seat only. `F = 1`, or the standard
    deviation of the same set plus `epsilon`.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1], of the returns of turns.
        episode_weight: weight of the advantage of the episode; 0 leaves only that of the turns.
        step_weight: weight of the advantage of the turn; 0 is `dr_grpo`, or `grpo` if standardised.
        standardize: whether to divide by standard deviations.
        epsilon: number added to the standard deviations, in units of the reward.

    Returns:
        The credit, without targets, the same for all tokens of a turn. A state that occurs once has no step advantage.

    References:
        Feng et al. (2025), "Group-in-Group Policy Optimization for LLM Agent Training", section 4.

    Deviation: the mean return of a group is over its episodes, as in the paper; the authors' code takes it over all
        turns.
    """
    episode = view.episode
    same = same_group(episode)
    of_episode, _ = difference_from_group(seat_returns(episode), same)
    if standardize:
        of_episode = of_episode / (group_deviation(of_episode, same) + epsilon)
    of_turn = difference_from_anchor(
        return_to_go(episode, discount), sort_anchors(episode), standardize=standardize, epsilon=epsilon
    )
    per_turn = episode_weight * of_seat(of_episode, episode) + step_weight * of_turn
    return Credit(advantage=to_tokens(episode, to_tokens_of_turn(per_turn, episode)))


def sort_anchors(episode: Episode) -> Anchors:
    """Sorts turns by group, seat and fingerprint.

    Args:
        episode: B episodes of T turns.

    Returns:
        The runs of turns that acted in the same state.
    """
    counted = (acting_turns(episode) & kept_rows(episode)[:, None]).reshape(-1)
    group = jnp.broadcast_to(episode.group[:, None], episode.reward.shape).reshape(-1)
    keys = (~counted, group, seat_of_turn(episode).reshape(-1), episode.fingerprint.reshape(-1))
    order = jnp.lexsort(keys[::-1]).astype(jnp.int32)
    place = jnp.arange(order.shape[0], dtype=jnp.int32)
    unlike = jnp.stack([jnp.diff(key[order].astype(jnp.uint32)) != 0 for key in keys]).any(axis=0)
    begins = jnp.pad(unlike, (1, 0), constant_values=True)
    return Anchors(
        order=order,
        run=jnp.cumsum(begins, dtype=jnp.int32) - 1,
        start=jax.lax.cummax(jnp.where(begins, place, 0)),
        counted=counted[order],
    )


def difference_from_anchor(
    score: Array, anchors: Anchors, *, standardize: bool = False, epsilon: Array | float = 1e-6
) -> Array:
    """Computes `score - mean` over the turns that acted in the same state.

    Args:
        score: float `[B, T]`.
        anchors: anchors of the same turns.
        standardize: whether to divide by `epsilon` plus the population standard deviation.
        epsilon: number added to the standard deviation, in units of the score.

    Returns:
        float32 `[B, T]`; exactly zero if scores are equal, a state occurs once, or a turn does not count.
    """
    # Differences from one of the scores: with equal scores, their sum is exactly zero.
    ordered = jnp.where(anchors.counted, score.reshape(-1)[anchors.order], 0.0)
    shifted = ordered - ordered[anchors.start]
    difference = shifted - _mean_of_run(shifted, anchors)
    if standardize:
        difference = difference / (jnp.sqrt(_mean_of_run(jnp.square(difference), anchors)) + epsilon)
    return _unsort(jnp.where(anchors.counted, difference, 0.0), anchors, score.shape)


def anchor_sizes(episode: Episode) -> Array:
    """Counts the turns of the group that acted in the same state, the turn itself included.

    Args:
        episode: B episodes of T turns.

    Returns:
        int32 `[B, T]`, zero for turns that do not count.
    """
    anchors = sort_anchors(episode)
    count = jax.ops.segment_sum(anchors.counted.astype(jnp.int32), anchors.run, num_segments=anchors.run.shape[0])
    return _unsort(jnp.where(anchors.counted, count[anchors.run], 0), anchors, episode.reward.shape)


def _mean_of_run(ordered: Array, anchors: Anchors) -> Array:
    num_segments = anchors.run.shape[0]
    total = jax.ops.segment_sum(ordered, anchors.run, num_segments=num_segments)
    count = jax.ops.segment_sum(jnp.ones_like(ordered), anchors.run, num_segments=num_segments)
    return (total / jnp.maximum(count, 1.0))[anchors.run]


def _unsort(ordered: Array, anchors: Anchors, shape: tuple[int, ...]) -> Array:
    return jnp.zeros_like(ordered).at[anchors.order].set(ordered, unique_indices=True).reshape(shape)

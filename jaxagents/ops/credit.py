"""Credit assignment for episodes of text: `(view, *, axis_name, ...) -> Credit`, see `types.EpisodeView`.

`view.policy.value[b, t, s]`, where an estimator uses it, is V of the context that the token was sampled from. No
gradient flows through credit. All rows of a group are on the same device; rows that a filter dropped (`keep`) are not
counted. In games, every seat has separate returns and is compared with the same seat in other rows; estimators that
cannot distinguish seats refuse games.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.advantages import normalize_advantage
from jaxagents.ops.checks import within_groups
from jaxagents.ops.episodes import (
    acting_turns,
    credited_tokens,
    difference_from_group,
    first_action_token_mask,
    group_deviation,
    kept_rows,
    last_action_token_mask,
    of_seat,
    require_one_seat,
    return_to_go,
    reward_of_acting_turns,
    same_group,
    seat_returns,
    to_tokens_of_turn,
)
from jaxagents.types import Array, Episode, EpisodeView


@struct.dataclass
class Credit:
    """Credit of every sampled token.

    Attributes:
        advantage: float32 `[B, T, S]`, zero for tokens that were not sampled and in rows that were dropped.
        target: float32 `[B, T, S]`, target of the value head, zero in the same places; None for estimators without
            values.
    """

    advantage: Array
    target: Array | None = None


def reinforce(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
    baseline: Array | float | None = None,
    normalize: bool = False,
) -> Credit:
    """Computes the return to go of every turn minus a baseline, for all tokens of the turn.

    `A_t = sum_{k >= t} discount^(k - t) reward_k - baseline`.

    Args:
        view: view of B episodes of T turns.
        axis_name: mapped device axis to take means over.
        discount: per turn, in [0, 1].
        baseline: subtracted number; null: the mean return to go over the turns of the batch; 0: no baseline.
        normalize: whether to standardise over the sampled tokens of the batch (REINFORCE++).

    Returns:
        The credit, without targets.

    References:
        Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning".
        Hu et al. (2025), "REINFORCE++", for `normalize`.
    """
    episode = view.episode
    returns = return_to_go(episode, discount)
    if baseline is None:
        counted = acting_turns(episode) & kept_rows(episode)[:, None]
        total, count = jnp.sum(jnp.where(counted, returns, 0.0)), jnp.sum(counted, dtype=jnp.float32)
        if axis_name is not None:
            total, count = jax.lax.psum((total, count), axis_name)
        baseline = total / jnp.maximum(count, 1.0)
    advantage = to_tokens_of_turn(returns - baseline, episode)
    return Credit(advantage=to_tokens(episode, advantage, normalize=normalize, axis_name=axis_name))


@within_groups
def rloo(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
) -> Credit:
    """Computes `R_i` minus the mean return of the other episodes of the group, for all tokens of episode i.

    In games, R is the return of the seat to which the token belongs; this also holds for the functions below.

    Args:
        view: view of B episodes.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1].

    Returns:
        The credit, without targets; zero in groups of one, which have no other episodes.

    References:
        Kool, van Hoof and Welling (2019), "Buy 4 REINFORCE Samples, Get a Baseline for Free!".
        Ahmadian et al. (2024), "Back to Basics: Revisiting REINFORCE Style Optimization for RLHF".
    """
    episode = view.episode
    difference, count = difference_from_group(seat_returns(episode, discount), same_group(episode))
    return _outcome_credit(episode, difference * count / jnp.maximum(count - 1.0, 1.0))


@within_groups
def grpo(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
    epsilon: Array | float = 1e-6,
) -> Credit:
    """Computes `(R_i - mean(R)) / (std(R) + epsilon)` over the group, for all tokens of episode i.

    Args:
        view: view of B episodes.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1].
        epsilon: number added to the standard deviation, in units of the reward.

    Returns:
        The credit, without targets; zero in groups whose returns are equal.

    References:
        Shao et al. (2024), "DeepSeekMath", section 4.1.2.

    Deviation: the paper has no epsilon and does not say which standard deviation it means. Here, it is that of the
        population; TRL and verl use that of the sample, which makes advantages sqrt(1 - 1 / G) times as large.
    """
    episode = view.episode
    same = same_group(episode)
    difference, _ = difference_from_group(seat_returns(episode, discount), same)
    return _outcome_credit(episode, difference / (group_deviation(difference, same) + epsilon))


@within_groups
def dr_grpo(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
) -> Credit:
    """Computes `R_i - mean(R)` over the group, for all tokens of episode i.

    Args:
        view: view of B episodes.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1].

    Returns:
        The credit, without targets. The other half of the method is `losses.aggregation.constant`.

    References:
        Liu et al. (2025), "Understanding R1-Zero-Like Training: A Critical Perspective", section 3.2.
    """
    episode = view.episode
    difference, _ = difference_from_group(seat_returns(episode, discount), same_group(episode))
    return _outcome_credit(episode, difference)


@within_groups
def opo(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
) -> Credit:
    """Computes `R_i - sum_j l_j R_j / sum_j l_j` over the group, for all tokens of episode i; l_j is the length of j.

    Lengths count sampled tokens. This baseline has the least variance, if the squared gradient of an episode is
    proportional to its length.

    Args:
        view: view of B episodes.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1].

    Returns:
        The credit, without targets; zero in groups whose returns are equal.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Hao et al. (2025), "On-Policy RL with Optimal Reward Baseline" (OPO), eq. 9.

    Deviation: the credit is zero in groups of one, where verl (`compute_opo_outcome_advantage`) uses the return itself.
    """
    episode = view.episode
    require_one_seat(episode, "opo")
    returns, same = seat_returns(episode, discount), same_group(episode)
    length = jnp.sum(credited_tokens(episode), axis=(1, 2), dtype=jnp.float32)
    weight = jnp.where(same, length[None, :, None], 0.0)
    difference = jnp.sum(weight * (returns[:, None] - returns[None]), axis=1)
    return _outcome_credit(episode, difference / jnp.maximum(jnp.sum(weight, axis=1), 1.0))


def gae_token(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
    trace_decay: Array | float = 1.0,
    normalize: bool = False,
    bootstrap: bool = False,
) -> Credit:
    """Computes generalised advantage estimates over the sampled tokens of an episode, skipping all other tokens.

    `delta_l = r_l + discount V_{l'} - V_l`, `A_l = delta_l + discount trace_decay A_{l'}`, where `l'` is the next
    sampled token, in this turn or a later one. The reward of a turn goes to its last sampled token.

    Args:
        view: view of B episodes of T turns; reads `policy.value`.
        axis_name: mapped device axis to normalise over.
        discount: per sampled token, in [0, 1].
        trace_decay: lambda per sampled token, in [0, 1].
        normalize: whether to standardise advantages over the sampled tokens of the batch; targets are not standardised.
        bootstrap: whether the value after an episode counts if a limit on turns cut it. False: the limit is an end, and
            an episode that runs out of turns earns nothing more. With True, a `discount` of 1 and a reward for reaching
            the goal, all states from which the goal is reachable are worth the same, however long it takes.

    Returns:
        The credit; targets are lambda-returns. With `bootstrap`, the value after the last token of a truncated episode
        is `Episode.bootstrap_value`; without it, that value is zero, as if the episode had terminated.

    Raises:
        ValueError: there are no values, or the episodes are of a game with several seats.

    References:
        Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.
        Ouyang et al. (2022), "Training language models to follow instructions with human feedback".
    """
    value, episode = _require_value(view, "gae_token"), view.episode
    reward = jnp.where(last_action_token_mask(episode), reward_of_acting_turns(episode)[:, :, None], 0.0)
    advantage, target = _skipping_advantage(  # type: ignore[misc]
        *(leaf.reshape(leaf.shape[0], -1) for leaf in (reward, value, episode.action_mask)),
        _bootstrap_value(episode, bootstrap),
        discount=discount,
        trace_decay=trace_decay,
    )
    advantage, target = (leaf.reshape(episode.tokens.shape) for leaf in (advantage, target))
    return Credit(
        advantage=to_tokens(episode, advantage, normalize=normalize, axis_name=axis_name),
        target=to_tokens(episode, target),
    )


def gae_turn(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
    trace_decay: Array | float = 1.0,
    normalize: bool = False,
    bootstrap: bool = False,
) -> Credit:
    """Computes generalised advantage estimates over turns, for all tokens of the turn.

    `delta_t = r_t + discount V_{t'} - V_t`, `A_t = delta_t + discount trace_decay A_{t'}`, where `V_t` is the value at
    the first sampled token of turn t and `t'` is the next turn with a sampled token.

    Args:
        view: view of B episodes of T turns; reads `policy.value` at the first sampled token of each turn.
        axis_name: mapped device axis to normalise over.
        discount: per turn, in [0, 1].
        trace_decay: lambda per turn, in [0, 1].
        normalize: whether to standardise advantages over the sampled tokens of the batch; targets are not standardised.
        bootstrap: see `gae_token`.

    Returns:
        The credit; the target of every token of a turn is the turn's lambda-return. Bootstrapping is as in `gae_token`.

    Raises:
        ValueError: there are no values, or the episodes are of a game with several seats.

    References:
        Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.
        Zhou et al. (2024), "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL" (values of turns).
    """
    value, episode = _require_value(view, "gae_turn"), view.episode
    advantage, target = _skipping_advantage(
        reward_of_acting_turns(episode),
        jnp.sum(jnp.where(first_action_token_mask(episode), value, 0.0), axis=2),
        acting_turns(episode),
        _bootstrap_value(episode, bootstrap),
        discount=discount,
        trace_decay=trace_decay,
    )
    advantage, target = to_tokens_of_turn(advantage, episode), to_tokens_of_turn(target, episode)
    return Credit(
        advantage=to_tokens(episode, advantage, normalize=normalize, axis_name=axis_name),
        target=to_tokens(episode, target),
    )


def _require_value(view: EpisodeView, name: str) -> Array:
    require_one_seat(view.episode, name)
    if view.policy.value is None:
        raise ValueError(f"`view.policy.value` must be there for {name}, got None; try a model with a value head.")
    return jax.lax.stop_gradient(view.policy.value)


def _bootstrap_value(episode: Episode, bootstrap: bool) -> Array:
    """Returns the value `[B]` after the last turn; zero if not truncated, not requested, or not available."""
    value = episode.bootstrap_value
    if value is None or not bootstrap:
        return jnp.zeros(episode.success.shape, jnp.float32)
    truncated = jnp.any(episode.truncated & episode.valid, axis=1)
    return jnp.where(truncated, jax.lax.stop_gradient(value), 0.0)


def _skipping_advantage(
    reward: Array,
    value: Array,
    mask: Array,
    bootstrap_value: Array,
    *,
    discount: Array | float,
    trace_decay: Array | float,
) -> tuple[Array, Array]:
    """Computes advantages and lambda-returns along the second axis over the elements of the mask only; 0 elsewhere."""

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array, Array]):
        next_advantage, next_value = carry
        reward, value, mask = inputs
        advantage = reward + discount * next_value - value + discount * trace_decay * next_advantage
        carry = jnp.where(mask, advantage, next_advantage), jnp.where(mask, value, next_value)
        return carry, (jnp.where(mask, advantage, 0.0), jnp.where(mask, advantage + value, 0.0))

    initial = jnp.zeros_like(bootstrap_value), bootstrap_value
    _, (advantage, target) = jax.lax.scan(step, initial, (reward.T, value.T, mask.T), reverse=True)
    return advantage.T, target.T


def _outcome_credit(episode: Episode, advantage: Array) -> Credit:
    """Assigns the advantage of each seat of an episode, `[B, P]`, to all of the seat's tokens."""
    return Credit(advantage=to_tokens(episode, to_tokens_of_turn(of_seat(advantage, episode), episode)))


def to_tokens(episode: Episode, per_token: Array, *, normalize: bool = False, axis_name: str | None = None) -> Array:
    """Restricts credit to the tokens that count.

    Args:
        episode: B episodes.
        per_token: `[B, T, S]`.
        normalize: whether to standardise over the tokens that count.
        axis_name: mapped device axis to normalise over.

    Returns:
        float32 `[B, T, S]`, without gradient; zero for tokens that were not sampled and in rows that were dropped.
    """
    mask = credited_tokens(episode)
    per_token = jnp.where(mask, jax.lax.stop_gradient(per_token), 0.0)
    return normalize_advantage(per_token, mask, axis_name=axis_name) if normalize else per_token

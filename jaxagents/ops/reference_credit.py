"""Credit of tokens from a reference policy's probabilities: REINFORCE++ and distillation on own episodes."""

import jax.numpy as jnp

from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import (
    credited_tokens,
    difference_from_group,
    episode_return,
    require_one_seat,
    same_group,
    to_tokens_of_turn,
)
from jaxagents.types import Array, EpisodeView


def reinforce_plus_plus(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    kl_coefficient: Array | float = 0.01,
    group_baseline: bool = False,
) -> Credit:
    """Computes `A_l = R - b - kl_coefficient sum_{k >= l} (log pi_k - log ref_k)`, standardised over the batch.

    Args:
        view: view of B episodes, with the statistics of a reference.
        axis_name: mapped device axis to standardise over.
        kl_coefficient: coefficient of the log-ratio to the reference; a token is charged for itself and all later
            tokens.
        group_baseline: whether b is the mean return of the group (REINFORCE++-baseline) instead of 0.

    Returns:
        The credit, without targets.

    Raises:
        ValueError: there is no reference, or the episodes are of a game with several seats.

    References:
        Hu et al. (2025), "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage
        Normalization", section 3.
    """
    episode = view.episode
    require_one_seat(episode, "reinforce_plus_plus")
    returns = episode_return(episode)[:, None]
    if group_baseline:
        returns = difference_from_group(returns, same_group(episode))[0]
    ratio = _log_ratio(view, "reinforce_plus_plus").reshape(returns.shape[0], -1)
    following = jnp.cumsum(ratio[:, ::-1], axis=1)[:, ::-1].reshape(episode.tokens.shape)
    outcome = to_tokens_of_turn(jnp.broadcast_to(returns, episode.reward.shape), episode)
    return Credit(
        advantage=to_tokens(episode, outcome - kl_coefficient * following, normalize=True, axis_name=axis_name)
    )


def distillation(view: EpisodeView, *, axis_name: str | None = None) -> Credit:
    """Computes `A_l = log teacher_l - log pi_l`: on its own episodes, the policy learns to imitate the reference.

    With `losses.token_policy_gradient.plain`, the expected gradient at a token is that of `KL(pi || teacher)`.

    Args:
        view: view of B episodes, with the statistics of a reference, which is the teacher.
        axis_name: not used.

    Returns:
        The credit, without targets.

    Raises:
        ValueError: there is no reference.

    References:
        Agarwal et al. (2024), "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes" (GKD),
        eq. 5, on own episodes only and with the reverse divergence.

    Deviation: the divergence is estimated from the sampled token, where the paper sums over the vocabulary.
    """
    return Credit(advantage=to_tokens(view.episode, -_log_ratio(view, "distillation")))


def _log_ratio(view: EpisodeView, name: str) -> Array:
    """Computes `log pi - log reference` for the tokens that count, zero for others."""
    own, other = view.policy.log_prob, view.reference.log_prob if view.reference else None
    if own is None or other is None:
        raise ValueError(f"`reference` must be kept for advantage={name}; try learner.reference=true.")
    return jnp.where(credited_tokens(view.episode), own - other, 0.0)

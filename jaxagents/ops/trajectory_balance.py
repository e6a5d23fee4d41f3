"""Trajectory balance (GFlowNets; Kang et al., 2025): `(view, *, axis_name, ...) -> Credit`.

A trajectory can come about in only one way, so the backward policy is 1, and `P_F` is the policy itself.
"""

import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import credited_tokens, difference_from_group, episode_return, require_one_seat, same_group
from jaxagents.types import Array, EpisodeView


@within_groups
def trajectory_balance(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    temperature: Array | float = 0.05,
    thought_weight: Array | float = 1.0,
) -> Credit:
    """Computes the credit whose policy gradient is that of the trajectory balance's variance over a group.

    `zeta_k = sum_s w_s log pi(token_s) - r_k / temperature`, for a reward `R = exp(r / temperature)` that is positive
    even if the return r is 0, with w = 1 for actions and `thought_weight` for thoughts. `L = mean_k (zeta_k - mean
    zeta)^2` is zero if the policy draws trajectories in proportion to R; the mean replaces the negative logarithm of
    the sum of all R. Its gradient is that of `-mean_k sum_s A_s log pi(token_s)` with `A_s = -2 (zeta_k - mean zeta)
    w_s`: the policy gradient with `loss=plain` and `aggregation=constant`.

    Args:
        view: view of B episodes; reads `policy.log_prob`.
        axis_name: not used; groups lie on one device.
        temperature: positive number, in units of the return: the return that is worth one nat of log-probability.
        thought_weight: lambda, in [0, 1].

    Returns:
        The credit, without targets; zero in groups of one.

    Raises:
        ValueError: the episodes are of a game with several seats.

    References:
        Kang et al. (2025), "GFlowVLM: Enhancing Multi-step Reasoning in Vision-Language Models with Generative Flow
        Networks", section 4 (Var-TB); Zhang et al. (2023), "Robust Scheduling with GFlowNets" (its variance).

    Deviation: the paper weights the log-probability of thoughts and does not say how rewards of zero are made positive.
    """
    episode = view.episode
    require_one_seat(episode, "trajectory_balance")
    weight = jnp.where(episode.thought_mask, thought_weight, 1.0) * credited_tokens(episode)
    log_prob = jnp.sum(weight * jnp.where(episode.action_mask, view.policy.log_prob, 0.0), axis=(1, 2))  # type: ignore[arg-type]
    zeta = log_prob - episode_return(episode) / temperature
    difference, _ = difference_from_group(zeta[:, None], same_group(episode))
    return Credit(advantage=to_tokens(episode, -2.0 * difference[:, 0, None, None] * weight))

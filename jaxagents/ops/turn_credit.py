"""Credit of turns beside the same turn of other episodes, and credit that is given to some episodes in any case."""

from collections.abc import Callable

import jax.numpy as jnp

from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import return_to_go, same_group, turn_of_token
from jaxagents.types import Array, Episode


def rloo_turn(
    episode: Episode,
    value: Array | None = None,
    *,
    axis_name: str | None = None,
    discount: Array | float = 0.0,
) -> Credit:
    """Computes the return to go of a turn minus the mean of that of the same turn in the other episodes of the group.

    `A_it = G_it - mean_{j != i} G_jt` with `G_it = sum_{k >= t} discount^(k - t) reward_ik`, over the episodes j of the
    group in which turn t took place; zero where there is none.

    Args:
        episode: B episodes of T turns.
        value: not used.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1]; 0 credits every turn with its own reward only.

    Returns:
        The credit, without targets.

    References:
        Kumar et al. (2024), "Training Language Models to Self-Correct via Reinforcement Learning", section 5 (discount
        0). Ahmadian et al. (2024), "Back to Basics" (the baseline).
    """
    returns = return_to_go(episode, discount)
    other = same_group(episode) & ~jnp.eye(returns.shape[0], dtype=bool)
    present = other[:, :, None] & episode.valid[None, :, :] & episode.valid[:, None, :]
    difference = jnp.where(present, returns[:, None, :] - returns[None, :, :], 0.0)
    advantage = jnp.sum(difference, axis=1) / jnp.maximum(jnp.sum(present, axis=1), 1)
    return Credit(advantage=to_tokens(episode, turn_of_token(advantage, episode.turn)))


def controlled(
    episode: Episode,
    value: Array | None = None,
    *,
    axis_name: str | None = None,
    credit: Callable[..., Credit],
    advantage: Array | float = 1.0,
) -> Credit:
    """Gives the episodes of `control` one advantage, and all others that of another estimator.

    Args:
        episode: B episodes.
        value: of the other estimator.
        axis_name: of the other estimator.
        credit: `(episode, value, *, axis_name) -> Credit`, the other estimator.
        advantage: of all tokens of the controlled episodes; 1 is plain REINFORCE of successful ones.

    Returns:
        The credit, with the targets of the other estimator.

    References:
        Wang et al. (2025), "Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement
        Fine-tuning" (samples of another temperature).
    """
    others = credit(episode, value, axis_name=axis_name)
    if episode.control is None:
        return others
    given = to_tokens(episode, jnp.full(others.advantage.shape, advantage, others.advantage.dtype))
    return others.replace(advantage=jnp.where(episode.control[:, None], given, others.advantage))

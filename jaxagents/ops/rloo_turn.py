"""Turn-wise RLOO (Kumar et al., 2024): credit of turns relative to the same turn of other episodes."""

import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import acting_turns, kept_rows, return_to_go, to_tokens_of_turn
from jaxagents.ops.seats import seat_of_turn
from jaxagents.types import Array, EpisodeView


@within_groups
def rloo_turn(view: EpisodeView, *, axis_name: str | None = None, discount: Array | float = 0.0) -> Credit:
    """Computes the return to go of a turn minus its mean over the same turn in the other episodes of the group.

    `A_it = G_it - mean_{j != i} G_jt` with `G_it = sum_{k >= t} discount^(k - t) reward_ik`, over the episodes j of the
    group in which turn t took place (in games, as a turn of the same seat); zero if there are none.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used; groups lie on one device.
        discount: per turn, in [0, 1]; with 0, every turn is credited with its own reward only.

    Returns:
        The credit, without targets.

    References:
        Kumar et al. (2024), "Training Language Models to Self-Correct via Reinforcement Learning", section 5 (discount
        0). Ahmadian et al. (2024), "Back to Basics" (the baseline).
    """
    episode = view.episode
    returns, seat, acted = return_to_go(episode, discount), seat_of_turn(episode), acting_turns(episode)
    same = (episode.group[:, None] == episode.group[None, :]) & kept_rows(episode)[None, :]
    other = same & ~jnp.eye(returns.shape[0], dtype=bool)
    present = other[:, :, None] & acted[None, :, :] & acted[:, None, :] & (seat[None, :, :] == seat[:, None, :])
    difference = jnp.where(present, returns[:, None, :] - returns[None, :, :], 0.0)
    advantage = jnp.sum(difference, axis=1) / jnp.maximum(jnp.sum(present, axis=1), 1)
    return Credit(advantage=to_tokens(episode, to_tokens_of_turn(advantage, episode)))

"""UserRL (Qian et al., 2025): the advantage of an episode, divided among its turns."""

from collections.abc import Callable

import jax.numpy as jnp

from jaxagents.ops.checks import require_one_of, within_groups
from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import (
    acting_turns,
    credited_tokens,
    difference_from_group,
    episode_return,
    group_deviation,
    return_to_go,
    reward_of_acting_turns,
    same_group,
    to_tokens_of_turn,
)
from jaxagents.types import Array, Episode, EpisodeView

SCORES = ("mean", "discounted")
CREDITS: dict[str, Callable[[Episode, Array, Array | float], Array]] = {
    "equal": lambda episode, reward, discount: jnp.ones_like(reward),
    "reward": lambda episode, reward, discount: reward,
    "return_to_go": lambda episode, reward, discount: return_to_go(episode.replace(reward=reward), discount),
    "exponential": lambda episode, reward, discount: 0.5 + 0.5 * jnp.expm1(-2.0 * reward) / jnp.expm1(-2.0),
}
"""Credit of turns by name: `(episode, reward [B, T], discount) -> [B, T]`."""


@within_groups
def userrl(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    score: str = "mean",
    credit: str = "equal",
    discount: Array | float = 0.8,
    epsilon: Array | float = 1e-6,
) -> Credit:
    """Computes the standardised score of an episode times the credit of the turn, whose mean over tokens is 1.

    `A_il = (S_i - mean(S)) / (std(S) + epsilon) c_t N / sum_l' c_l'` for the tokens l of turn t, over the N tokens of
    the episode whose credit is not 0.

    Args:
        view: view of B episodes of T turns.
        axis_name: not used; groups lie on one device.
        score: S: the "mean" of the rewards of turns, or "discounted", `sum_t discount^t r_t`.
        credit: c: "equal", 1; "reward", r_t (naive); "return_to_go", `r_t + discount c_{t + 1}`; or "exponential",
            `1 / 2 + (1 - exp(-2 r_t)) / (2 - 2 exp(-2))`.
        discount: per turn, in [0, 1].
        epsilon: number added to the standard deviation, in units of the reward.

    Returns:
        The credit, without targets; zero in episodes whose credits add up to 0, as in the authors' code.

    Raises:
        ValueError: the score or credit is unknown, or the episodes are of a game with several seats.

    References:
        Qian et al. (2025), "UserRL: Training Interactive User-Centric Agent via Reinforcement Learning", section 3.3.

    Deviation: the standard deviation is that of the population; the authors' code uses that of the sample.
    """
    require_one_of("score", score, SCORES)
    require_one_of("credit", credit, tuple(CREDITS))
    episode = view.episode
    if score == "mean":
        num_turns = jnp.maximum(jnp.sum(acting_turns(episode), axis=1), 1)
        total = episode_return(episode) / num_turns
    else:
        total = episode_return(episode, discount)
    same = same_group(episode)
    difference, _ = difference_from_group(total[:, None], same)
    advantage = difference / (group_deviation(difference, same) + epsilon)
    per_turn = CREDITS[credit](episode, reward_of_acting_turns(episode), discount)
    share = jnp.where(credited_tokens(episode), to_tokens_of_turn(per_turn, episode), 0.0)
    whole, count = jnp.sum(share, axis=(1, 2)), jnp.sum(share != 0.0, axis=(1, 2))
    scale = jnp.where(whole == 0.0, 0.0, advantage[:, 0] * count / jnp.where(whole == 0.0, 1.0, whole))
    return Credit(advantage=to_tokens(episode, share * scale[:, None, None]))

"""SPIRAL (Liu et al., 2025): role-conditioned advantages, with a running baseline for each seat of a game."""

from functools import partial

import jax.numpy as jnp

from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import acting_turns, kept_rows, to_tokens_of_turn
from jaxagents.ops.seats import own_return_to_go, seat_of_turn
from jaxagents.types import Array, EpisodeView, Stateful


def make_role_conditioned(
    *, num_seats: int = 2, decay: float = 0.95, discount: float = 1.0, by_role: bool = True
) -> Stateful:
    """Makes role-conditioned advantage estimation: the running mean return of each seat is subtracted from its returns.

    After n games of a seat with mean return m, `b <- decay^n b + (1 - decay^n) m`; b starts at zero.

    Args:
        num_seats: P, number of seats of the game.
        decay: decay of a baseline per game (paper: 0.95).
        discount: per own turn, in [0, 1] (paper: 1).
        by_role: whether each seat has a baseline; False uses one for all seats, the paper's ablation.

    Returns:
        A slot for `advantage` of `learners.policy_gradient`. Its memory is the baselines, float32 `[P]`.

    Raises:
        ValueError: there is no seat, or the decay is not in [0, 1).

    References:
        Liu et al. (2025), "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn
        Reinforcement Learning", section 3.3.

    Deviation: all games of an update are compared with the baseline before it, and update it together; the paper goes
        game by game. Games that end before a seat has moved do not count for that seat.
    """
    if num_seats < 1:
        raise ValueError(f"`num_seats` must be at least 1, got {num_seats}; try 2.")
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"`decay` must be at least 0 and below 1, got {decay}; try 0.95.")

    def init(num_updates: int) -> Array:
        del num_updates
        return jnp.zeros(num_seats)

    def update(baseline: Array, summary: dict[str, Array]) -> Array:
        count, total = summary["count"], summary["total"]
        if not by_role:
            count, total = (jnp.broadcast_to(jnp.sum(x), x.shape) for x in (count, total))
        kept = jnp.power(decay, count)
        return kept * baseline + (1.0 - kept) * total / jnp.maximum(count, 1.0)

    return Stateful(init=init, apply=partial(role_conditioned, discount=float(discount)), update=update)


def role_conditioned(
    baseline: Array,
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    discount: Array | float = 1.0,
) -> tuple[Credit, dict[str, Array]]:
    """Computes `A_k = discount^(K - 1 - k) (R - b[seat])` for the tokens of the k-th of K turns of a seat.

    `R` is the sum of the rewards of the turns of the seat.

    Args:
        baseline: b, float32 `[P]`.
        view: view of B games of T turns.
        axis_name: not used.
        discount: per own turn, in [0, 1].

    Returns:
        The credit, without targets, and the numbers of games and the sums of returns of each seat, `[P]`.

    References:
        See `make_role_conditioned`.
    """
    episode = view.episode
    seat = seat_of_turn(episode)
    acted = acting_turns(episode) & kept_rows(episode)[:, None]
    own = (seat[:, :, None] == jnp.arange(baseline.shape[0])[None, None]) & acted[:, :, None]
    returns = jnp.sum(jnp.where(own, episode.reward[:, :, None], 0.0), axis=1)
    advantage = jnp.take_along_axis(returns - baseline[None], seat, axis=1)
    following = own_return_to_go(episode.replace(reward=acted.astype(jnp.float32))) - 1.0
    advantage = advantage * jnp.power(discount, jnp.maximum(following, 0.0))
    played = jnp.any(own, axis=1).astype(jnp.float32)
    summary = {"count": jnp.sum(played, axis=0), "total": jnp.sum(returns * played, axis=0)}
    return Credit(advantage=to_tokens(episode, to_tokens_of_turn(advantage, episode))), summary

"""REINFORCE for seats with different discounts."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.ops.credit import Credit, to_tokens
from jaxagents.ops.episodes import acting_turns, kept_rows, to_tokens_of_turn
from jaxagents.ops.seats import num_seats, own_return_to_go, seat_of_turn
from jaxagents.types import EpisodeView


def reinforce_by_seat(
    view: EpisodeView, *, axis_name: str | None = None, discounts: Sequence[float], normalize: bool = True
) -> Credit:
    """Computes the return to go of every turn, with the discount of its seat, minus its mean over the seat's turns.

    `A_t = sum_{k >= t} discount_i^(k - t) reward_k - b_i` over the own turns of seat i.

    Args:
        view: view of B games of T turns.
        axis_name: mapped device axis to take means over.
        discounts: P numbers in [0, 1], per own turn of each seat.
        normalize: whether to standardise over the sampled tokens of the batch.

    Returns:
        The credit, without targets.

    Raises:
        ValueError: the number of discounts differs from the number of seats.
    """
    episode = view.episode
    if len(discounts) != num_seats(episode):
        raise ValueError(f"`discounts` must be one for each of the {num_seats(episode)} seats, got {len(discounts)}.")
    returns = own_return_to_go(episode, jnp.asarray(discounts, jnp.float32)[None])
    counted = acting_turns(episode) & kept_rows(episode)[:, None]
    own = (seat_of_turn(episode)[:, :, None] == jnp.arange(len(discounts))[None, None]) & counted[:, :, None]
    total, count = jnp.sum(own * returns[:, :, None], axis=(0, 1)), jnp.sum(own, axis=(0, 1), dtype=jnp.float32)
    if axis_name is not None:
        total, count = jax.lax.psum((total, count), axis_name)
    baseline = jnp.sum(own * (total / jnp.maximum(count, 1.0))[None, None], axis=2)
    advantage = to_tokens_of_turn(returns - baseline, episode)
    return Credit(advantage=to_tokens(episode, advantage, normalize=normalize, axis_name=axis_name))

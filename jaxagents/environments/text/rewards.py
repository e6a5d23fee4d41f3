"""Worlds whose rewards come late, or from a judge who errs. Penalties of steps are paid at once, by no judge."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.world import Payout, World
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, PyTree, State

RULES = ("majority", "unanimous")


def with_delay(world: World, *, num_turns: int | None = None) -> World:
    """Hands rewards out later: `r'_t = r_{t - n}`, and at the end of the episode, also where it is cut, all the rest.

    The return stays what it was. Nothing tells the agent what it has earned, but what the world says anyway.

    Args:
        world: the rules.
        num_turns: n, turns of all seats; None hands all out at the end.

    Returns:
        The rules with this payout.

    Raises:
        ValueError: fewer turns than one.

    References:
        Arjona-Medina et al. (2019), RUDDER, whose tasks pay at the end.
    """
    if num_turns is not None:
        require_positive("num_turns", num_turns)

    def init(reward: Array) -> Array:
        """Returns what is withheld, the oldest first, `[n, ...]`."""
        return jnp.zeros((num_turns or 1, *reward.shape))

    def pay(key: Array, memory: Array, state: State, reward: Array, ended: Array) -> tuple[Array, Array]:
        del key, state
        due = jnp.zeros_like(reward) if num_turns is None else memory[0]
        withheld = jnp.append(memory[1:], reward[None], axis=0) if num_turns else memory + reward[None]
        paid = jnp.where(ended, due + jnp.sum(withheld, axis=0), due)
        return jnp.where(ended, 0.0, withheld), paid

    return replace(world, payouts=(*world.payouts, Payout(init=init, pay=pay)))


def with_judge(
    world: World,
    *,
    false_positive_rate: float,
    false_negative_rate: float,
    num_votes: int = 1,
    rule: str = "majority",
) -> World:
    """Lets a judge who errs say whether an episode succeeded: 1 at its end where it is judged a success, else 0.

    This takes the place of all rewards of the rules; `info["success"]` stays the truth. Votes are independent: one is
    for success with probability `1 - false_negative_rate` where it is one and `false_positive_rate` where it is none.

    Args:
        world: rules of one seat.
        false_positive_rate: in [0, 1].
        false_negative_rate: in [0, 1].
        num_votes: of the judge.
        rule: "majority" takes more than half of the votes, "unanimous" all of them.

    Returns:
        The rules with this payout.

    Raises:
        ValueError: rates that are none, no vote, an unknown rule, several seats.

    References:
        Yang et al. (2025), ZeroGUI, section 3.2 (unanimous votes).
    """
    rates = {"false_positive_rate": false_positive_rate, "false_negative_rate": false_negative_rate}
    for name, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"`{name}` must be in [0, 1], got {rate}; try 0.1.")
    require_positive("num_votes", num_votes)
    if rule not in RULES:
        raise ValueError(f"`rule` must be {' or '.join(RULES)}, got {rule!r}.")
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat to be judged, got {world.num_seats} in {world.name!r}.")
    needed = num_votes if rule == "unanimous" else num_votes // 2 + 1

    def pay(key: Array, memory: PyTree, state: State, reward: Array, ended: Array) -> tuple[PyTree, Array]:
        rate = jnp.where(world.status(state).success, 1.0 - false_negative_rate, false_positive_rate)
        votes = jax.random.bernoulli(key, rate, (num_votes,))
        return memory, jnp.where(ended & (jnp.sum(votes) >= needed), 1.0, jnp.zeros_like(reward))

    return replace(world, payouts=(*world.payouts, Payout(init=lambda reward: (), pay=pay)))

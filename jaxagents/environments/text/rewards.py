"""Worlds with delayed rewards, or rewards from a fallible judge. Step penalties are paid at once, without a judge."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.world import Payout, World
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, PyTree, State

RULES = ("majority", "unanimous")


def with_delay(world: World, *, num_turns: int | None = None) -> World:
    """Delays rewards: `r'_t = r_{t - n}`, and at the end of the episode, even if it is truncated, all the rest.

    The return is unchanged. The agent does not see what it has earned, except in observations of the world.

    Args:
        world: rules of the world.
        num_turns: n, number of turns of all seats; None: everything is paid at the end.

    Returns:
        The rules with delayed rewards.

    Raises:
        ValueError: `num_turns` is below 1.

    References:
        Arjona-Medina et al. (2019), RUDDER, whose tasks pay at the end.
    """
    if num_turns is not None:
        require_positive("num_turns", num_turns)

    def init(reward: Array) -> Array:
        """Returns the withheld rewards, the oldest first, `[n, ...]`."""
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
    """Lets a fallible judge decide if an episode succeeded: the reward is 1 at the end of a judged success, else 0.

    This replaces all rewards of the rules; `info["success"]` remains the truth. Votes are independent: one is for
    success with probability `1 - false_negative_rate` after a success and `false_positive_rate` after a failure.

    Args:
        world: rules with one seat.
        false_positive_rate: rate in [0, 1].
        false_negative_rate: rate in [0, 1].
        num_votes: number of votes of the judge.
        rule: "majority": more than half of the votes must be for success; "unanimous": all of them.

    Returns:
        The rules with these rewards.

    Raises:
        ValueError: rates are not in [0, 1], there is no vote, the rule is unknown, or there are several seats.

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

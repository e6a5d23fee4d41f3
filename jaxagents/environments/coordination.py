"""A game of two agents whose values are known: what a factorisation of the team's value can say, and what it cannot."""

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, Task, TimeStep

START, SAFE, RISKY, OVER, CHORES = range(5)
"""Where the team is. The first agent's choice at the start leads to one of the two matrix games; chores come before."""

SAFE_PAYOFF = np.full((2, 2), 7.0, np.float32)
RISKY_PAYOFF = np.array([[0.0, 1.0], [1.0, 8.0]], np.float32)
CHORE_PAYOFF = 0.25


@struct.dataclass
class TwoStepState:
    """Where the team is.

    Attributes:
        place: int32, one of the names above, or `CHORES + i` in chore i.
    """

    place: Array


def make_two_step_game(*, num_chores: int = 0) -> Environment:
    """Makes the two-step game, in which the best outcome needs trust in the partner.

    In the first step the first of two agents chooses between two matrix games; the second step plays the chosen one.
    The safe game pays 7 whatever they do, the risky one `[[0, 1], [1, 8]]`. From experience of random actions, the sum
    of two values that fits the risky game best is worth 6.5 there at most, and an agent alone expects 4.5: both choose
    the safe game. A monotonic mixture can tell the risky game exactly, and wins 8.

    The observation float32 `[2, 4 + num_chores]` is the place, the same for both agents; wrap the game in `agent_ids`
    where they share parameters. Both get the team's reward. `info["success"]` is set where it is 8.

    Args:
        num_chores: steps before the game in which nobody needs the other: in chore i, action `i % 2` of each agent pays
            0.25. They are an addition to the paper's game.

    Returns:
        The environment.

    Raises:
        ValueError: `num_chores` is negative.

    References:
        Rashid et al. (2018), "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement
        Learning", section 5 and tables 1 and 2.
    """
    if num_chores < 0:
        raise ValueError(f"`num_chores` must not be negative, got {num_chores}; try 0 for the game alone.")
    size = 4 + num_chores
    payoffs = np.zeros((size, 2, 2), np.float32)
    payoffs[SAFE], payoffs[RISKY] = SAFE_PAYOFF, RISKY_PAYOFF
    for chore in range(num_chores):
        right = np.arange(2) == chore % 2
        payoffs[CHORES + chore] = CHORE_PAYOFF * (right[:, None].astype(np.float32) + right[None])

    def observe(state: TwoStepState) -> Array:
        return jnp.broadcast_to(jnp.eye(size)[state.place], (2, size))

    def reset(key: Array, task: Task) -> tuple[TwoStepState, TimeStep]:
        del key, task
        state = TwoStepState(place=jnp.int32(CHORES if num_chores else START))
        return state, first_timestep(observe(state), reward_shape=(2,), info={"success": jnp.zeros((), bool)})

    def step(key: Array, state: TwoStepState, action: Array) -> tuple[TwoStepState, TimeStep]:
        del key
        reward = jnp.asarray(payoffs)[state.place, action[0], action[1]]
        at_start, at_chores = state.place == START, state.place >= CHORES
        after_chore = jnp.where(state.place == size - 1, START, state.place + 1)
        place = jnp.where(at_chores, after_chore, jnp.where(at_start, SAFE + action[0], OVER))
        state = TwoStepState(place=place.astype(jnp.int32))
        timestep = TimeStep(
            observation=observe(state),
            reward=jnp.broadcast_to(reward, (2,)),
            terminated=~(at_start | at_chores),
            truncated=jnp.zeros((), bool),
            info={"success": reward == RISKY_PAYOFF.max()},
        )
        return state, timestep

    return absorbing(
        Environment(
            name="two-step-game",
            sample_task=lambda key, level=None: (),
            reset=reset,
            step=step,
            observation_space=Box((size,), 0.0, 1.0),
            action_space=Discrete(2),
            max_steps=2 + num_chores,
            num_agents=2,
        )
    )

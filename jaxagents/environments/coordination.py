"""A game of two agents with known values, which shows what factorisations of a team's value can represent."""

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, Box, Discrete, Environment, Task, TimeStep

START, SAFE, RISKY, OVER, OTHERS = range(5)
"""Where the team is; `OTHERS` is the first of the places that are no part of the paper's game."""

SAFE_PAYOFF = np.full((2, 2), 7.0, np.float32)
RISKY_PAYOFF = np.array([[0.0, 1.0], [1.0, 8.0]], np.float32)
CHORE_PAYOFF = 0.25


@struct.dataclass
class TwoStepState:
    """State of the game.

    Attributes:
        place: int32, one of the places named above; then the chores, then the choices after the first one.
    """

    place: Array


def make_two_step_game(*, num_chores: int = 0, num_choices: int = 1) -> Environment:
    """Makes the two-step game, in which the best outcome requires trust in the partner.

    In the first step, the first of two agents chooses between two matrix games; the second step plays the chosen game.
    The safe game pays 7 whatever the agents do, the risky one pays `[[0, 1], [1, 8]]`. With experience of random
    actions, the sum of two values that fits the risky game best is at most 6.5, and an agent that learns alone expects
    4.5: both choose the safe game. A monotonic mixture can represent the risky game exactly, and wins 8.

    The observation float32 `[2, D]` is the place, the same for both agents; wrap the game in `agent_ids` if they share
    parameters. Both receive the team's reward. `info["success"]` is set if it is 8.

    Args:
        num_chores: number of steps before the game in which no coordination is needed: in chore i, action `i % 2` of
            each agent pays 0.25. Paper: 0.
        num_choices: number of choices between the two games, made by the agents in turn: the risky game is played if
            all choose it. Paper: 1.

    Returns:
        The environment, with `D = 3 + num_choices + num_chores`.

    Raises:
        ValueError: `num_chores` is negative, or `num_choices` is below 1.

    References:
        Rashid et al. (2018), "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement
        Learning", section 5 and tables 1 and 2.
    """
    if num_chores < 0:
        raise ValueError(f"`num_chores` must not be negative, got {num_chores}; try 0 for the game alone.")
    check_counts(num_choices=num_choices)
    payoffs, following = _tables(num_chores, num_choices)
    size = len(payoffs)

    def observe(state: TwoStepState) -> Array:
        return jnp.broadcast_to(jnp.eye(size)[state.place], (2, size))

    def reset(key: Array, task: Task) -> tuple[TwoStepState, TimeStep]:
        del key, task
        state = TwoStepState(place=jnp.int32(OTHERS if num_chores else START))
        return state, first_timestep(observe(state), reward_shape=(2,), info={"success": jnp.zeros((), bool)})

    def step(key: Array, state: TwoStepState, action: Array) -> tuple[TwoStepState, TimeStep]:
        del key
        reward = jnp.asarray(payoffs)[state.place, action[0], action[1]]
        played = (state.place >= SAFE) & (state.place <= OVER)
        state = TwoStepState(place=jnp.asarray(following)[state.place, action[0], action[1]])
        timestep = TimeStep(
            observation=observe(state),
            reward=jnp.broadcast_to(reward, (2,)),
            terminated=played,
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
            max_steps=1 + num_choices + num_chores,
            num_agents=2,
        )
    )


def _tables(num_chores: int, num_choices: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the reward of every joint action, float32 `[places, 2, 2]`, and its next place, int32 in that shape."""
    chores = list(range(OTHERS, OTHERS + num_chores))
    choices = [START, *range(OTHERS + num_chores, OTHERS + num_chores + num_choices - 1)]
    payoffs = np.zeros((3 + num_choices + num_chores, 2, 2), np.float32)
    following = np.full(payoffs.shape, OVER, np.int32)
    payoffs[SAFE], payoffs[RISKY] = SAFE_PAYOFF, RISKY_PAYOFF
    for index, (place, after) in enumerate(zip(chores, [*chores, START][1:], strict=True)):
        right = (np.arange(2) == index % 2).astype(np.float32)
        payoffs[place], following[place] = CHORE_PAYOFF * (right[:, None] + right[None]), after
    for index, (place, after) in enumerate(zip(choices, [*choices, RISKY][1:], strict=True)):
        to = np.array([SAFE, after], np.int32)
        following[place] = to[:, None] if index % 2 == 0 else to[None]
    return payoffs, following

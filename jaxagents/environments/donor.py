"""The donor game: gifts double on the way, and a donor sees what its recipient gave before."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, Box, Environment, Task, TimeStep

START_WEALTH, MULTIPLIER = 10.0, 2.0


@struct.dataclass
class DonorState:
    """State of N agents.

    Attributes:
        task: the task of the episode.
        wealth: float32 `[N]`.
        trace: float32 `[N, L]`, the agent's last action as a donor, the previous action of the recipient of that, and
            so on; zero if there is none.
        known: bool `[N, L]`, whether there is such an action.
        round: int32, number of rounds played.
    """

    task: Task
    wealth: Array
    trace: Array
    known: Array
    round: Array


def make_environment(
    num_agents: int = 12, *, num_rounds: int = 12, trace_length: int = 3, punishment: bool = False
) -> Environment:
    """Makes a donor game of N agents, half of whom give to the other half in every round.

    A donor with wealth w that takes action x loses `|x| w`; its recipient gains `2 x w`, which for negative x is a loss
    (of at most all it has). The task is `{"order": int32 [N], "swapped": bool}`: the places of the agents in the
    schedule, and whether donors and recipients swap roles. The observation has leaves with a leading agent axis:
    `donor` (whether the agent is one; actions of the others are ignored), its own `wealth` and that of the `recipient`,
    and the recipient's `trace` and `known` (`[L]`; zeros for agents that are not donors). It does not contain the
    round. The reward is the change of the wealth.

    Args:
        num_agents: N, even.
        num_rounds: number of rounds. No pair meets twice within N - 1 rounds; later rounds repeat the schedule with
            swapped roles.
        trace_length: L; with 1, the trace holds only the recipient's last gift.
        punishment: whether actions in `[-1, 0)` are allowed.

    Returns:
        The environment.

    Raises:
        ValueError: the number of agents is odd or too small, or a count is below 1.

    References:
        Vallinder and Hughes (2024), Cultural Evolution of Cooperation among LLM Agents, section 3.

    Deviation: with 12 agents in 12 rounds, each agent meets one partner twice (there are 11 partners), with swapped
    roles; roles alternate except in one round per agent.
    """
    if num_agents < 2 or num_agents % 2:
        raise ValueError(f"`num_agents` must be even and at least 2, got {num_agents}; try 12.")
    check_counts(num_rounds=num_rounds, trace_length=trace_length)
    schedule = jnp.asarray(round_robin(num_agents, num_rounds))

    def pairs(state: DonorState) -> tuple[Array, Array]:
        places = schedule[jnp.minimum(state.round, num_rounds - 1)]
        places = jnp.where(state.task["swapped"], places[::-1], places)
        return state.task["order"][places[0]], state.task["order"][places[1]]

    def observe(state: DonorState) -> dict[str, Array]:
        donors, recipients = pairs(state)

        def of_recipients(values: Array) -> Array:
            return jnp.zeros_like(values).at[donors].set(values[recipients])

        return {
            "donor": jnp.zeros(num_agents, jnp.float32).at[donors].set(1.0),
            "known": of_recipients(state.known.astype(jnp.float32)),
            "recipient": of_recipients(state.wealth),
            "trace": of_recipients(state.trace),
            "wealth": state.wealth,
        }

    def sample_task(key: Array, level: Array | None = None) -> Task:
        del level
        return {"order": jax.random.permutation(key, num_agents), "swapped": jnp.zeros((), bool)}

    def reset(key: Array, task: Task) -> tuple[DonorState, TimeStep]:
        del key
        state = DonorState(
            task=task,
            wealth=jnp.full(num_agents, START_WEALTH, jnp.float32),
            trace=jnp.zeros((num_agents, trace_length), jnp.float32),
            known=jnp.zeros((num_agents, trace_length), bool),
            round=jnp.zeros((), jnp.int32),
        )
        return state, first_timestep(observe(state), reward_shape=(num_agents,))

    def step(key: Array, state: DonorState, action: Array) -> tuple[DonorState, TimeStep]:
        del key
        donors, recipients = pairs(state)
        given = jnp.clip(action.astype(jnp.float32), -1.0 if punishment else 0.0, 1.0)[donors]
        amount = given * state.wealth[donors]
        wealth = state.wealth.at[donors].add(-jnp.abs(amount)).at[recipients].add(MULTIPLIER * amount)
        wealth = jnp.maximum(wealth, 0.0)
        trace = jnp.concatenate([given[:, None], state.trace[recipients, :-1]], axis=1)
        known = jnp.concatenate([jnp.ones_like(donors, bool)[:, None], state.known[recipients, :-1]], axis=1)
        following = state.replace(
            wealth=wealth,
            trace=state.trace.at[donors].set(trace),
            known=state.known.at[donors].set(known),
            round=state.round + 1,
        )
        timestep = TimeStep(
            observation=observe(following),
            reward=wealth - state.wealth,
            terminated=following.round >= num_rounds,
            truncated=jnp.zeros((), bool),
        )
        return following, timestep

    flag, traces = Box((), 0.0, 1.0), Box((trace_length,), -1.0 if punishment else 0.0, 1.0)
    spaces = {"donor": flag, "known": Box((trace_length,), 0.0, 1.0), "trace": traces}
    return absorbing(
        Environment(
            name="donor",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=spaces | {"recipient": Box((), 0.0), "wealth": Box((), 0.0)},
            action_space=Box((), -1.0 if punishment else 0.0, 1.0),
            max_steps=num_rounds,
            num_agents=num_agents,
        )
    )


def round_robin(num_agents: int, num_rounds: int) -> np.ndarray:
    """Schedules rounds in which every agent has a partner, by the circle method.

    In round r, agent N - 1 meets agent r, and agents r + k and r - k (modulo N - 1) meet, k = 1 .. N/2 - 1. The donor
    alternates with k and r, so that roles alternate except when an agent meets agent N - 1 (which always alternates).

    Args:
        num_agents: N, even.
        num_rounds: R.

    Returns:
        int32 `[R, 2, N / 2]`, donors and their recipients. Rounds after N - 1 repeat the earlier ones with swapped
        roles.
    """
    circle, rounds = num_agents - 1, []
    for index in range(num_rounds):
        r = index % circle
        pairs = [(num_agents - 1, r) if r % 2 else (r, num_agents - 1)]
        for k in range(1, num_agents // 2):
            forward, backward = (r + k) % circle, (r - k) % circle
            pairs.append((forward, backward) if k % 2 else (backward, forward))
        exchanged = (index // circle) % 2
        rounds.append(np.asarray(pairs, np.int32).T[:: -1 if exchanged else 1])
    return np.stack(rounds)

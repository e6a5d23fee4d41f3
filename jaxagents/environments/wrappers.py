"""Functions that take an environment and return one.

Order matters: wrappers of an episode go inside `auto_reset`, as in `auto_reset(episode_statistics(environment))`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.opponents import require_two_players
from jaxagents.environments.timesteps import ended, restart, select, with_successor
from jaxagents.types import Array, Box, Environment, State, Task, TimeStep


def _render_inner(environment: Environment) -> Callable[[State], str] | None:
    if environment.render is None:
        return None
    return lambda state: environment.render(state.inner)


@struct.dataclass
class AbsorbingState:
    """State of `absorbing`.

    Attributes:
        inner: state of the wrapped environment.
        timestep: last timestep of the environment.
    """

    inner: State
    timestep: TimeStep


def absorbing(environment: Environment) -> Environment:
    """Makes steps after the end no-ops: nothing changes, the reward is zero, the last timestep is repeated.

    Args:
        environment: environment whose `step` may do anything after the end.

    Returns:
        The environment, with `AbsorbingState`.
    """

    def reset(key: Array, task: Task) -> tuple[AbsorbingState, TimeStep]:
        inner, timestep = environment.reset(key, task)
        return AbsorbingState(inner=inner, timestep=timestep), timestep

    def step(key: Array, state: AbsorbingState, action: Array) -> tuple[AbsorbingState, TimeStep]:
        inner, timestep = environment.step(key, state.inner, action)
        repeated = state.timestep.replace(reward=jnp.zeros_like(state.timestep.reward))
        stop = ended(state.timestep)
        timestep = select(stop, repeated, timestep)
        return AbsorbingState(inner=select(stop, state.inner, inner), timestep=timestep), timestep

    return replace(environment, reset=reset, step=step, render=_render_inner(environment))


def auto_reset(environment: Environment) -> Environment:
    """Starts a new episode of a freshly sampled task in the step that ended the last one.

    After such a step, state, observation, `action_mask`, `player` and `info["agent_mask"]` are those of the new
    episode; reward, flags and the rest of `info` are those of the ended step, and `info["next_observation"]` holds its
    true successor, from which truncated episodes bootstrap. This entry exists after every reset and step.

    Args:
        environment: environment with cheap resets, as a reset is computed in every step.

    Returns:
        The environment, whose episodes restart automatically.
    """

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        state, timestep = environment.reset(key, task)
        return state, with_successor(timestep, timestep)

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        step_key, task_key, reset_key = jax.random.split(key, 3)
        state, timestep = environment.step(step_key, state, action)
        fresh_state, fresh = environment.reset(reset_key, environment.sample_task(task_key))
        state, following = select(ended(timestep), (fresh_state, restart(timestep, fresh)), (state, timestep))
        return state, with_successor(following, timestep)

    return replace(environment, reset=reset, step=step)


@struct.dataclass
class EpisodeStatisticsState:
    """State of `episode_statistics`.

    Attributes:
        inner: state of the wrapped environment.
        episode_return: float32, sum of the rewards in the episode so far.
        episode_length: int32, number of steps in the episode so far.
        running: bool, whether the episode has not ended.
        agent_mask: bool `[N]`, agents that act in the next step; None if every agent always does.
        agent_return: float32 `[N]`, returns of the agents of opposed teams; None otherwise.
    """

    inner: State
    episode_return: Array
    episode_length: Array
    running: Array
    agent_mask: Array | None
    agent_return: Array | None = None


def episode_statistics(environment: Environment, *, per_agent: bool = False) -> Environment:
    """Adds the running totals `info["episode_return"]` and `info["episode_length"]`, including the current step.

    The return is the undiscounted sum of rewards; with an agent axis, of the mean over the agents that acted, and in
    games `[num_players]`. Both are zero after a reset and constant after the end. For opposed teams, whose mean says
    little, `info["metrics"]` has `episode_return_<team>`, the mean over its agents, and
    `episode_return_agent_<number>`.

    Args:
        environment: environment; the wrapper goes inside `auto_reset`, which restarts the totals.
        per_agent: whether to add the returns of the agents of a single team, too.

    Returns:
        The environment, with `EpisodeStatisticsState`.
    """

    counts_agents = bool(environment.teams) or (per_agent and environment.num_agents > 1)

    def weights_of(reward: Array, agent_mask: Array | None) -> Array:
        return jnp.ones_like(reward) if agent_mask is None else agent_mask.astype(reward.dtype)

    def scalar_reward(reward: Array, agent_mask: Array | None) -> Array:
        if not environment.num_agents:
            return reward
        weights = weights_of(reward, agent_mask)
        return jnp.sum(reward * weights) / jnp.maximum(jnp.sum(weights), 1.0)

    def annotate(state: EpisodeStatisticsState, timestep: TimeStep) -> tuple[EpisodeStatisticsState, TimeStep]:
        info: dict[str, Any] = {
            **timestep.info,
            "episode_return": state.episode_return,
            "episode_length": state.episode_length,
        }
        if counts_agents:
            returns = state.agent_return
            own = {name: jnp.mean(returns[np.asarray(agents)]) for name, agents in (environment.teams or {}).items()}
            own |= {f"agent_{number}": returns[number] for number in range(environment.num_agents)}
            own = {f"episode_return_{name}": value for name, value in own.items()}
            info["metrics"] = {**info.get("metrics", {}), **own}
        return state, timestep.replace(info=info)

    def reset(key: Array, task: Task) -> tuple[EpisodeStatisticsState, TimeStep]:
        inner, timestep = environment.reset(key, task)
        state = EpisodeStatisticsState(
            inner=inner,
            episode_return=jnp.zeros(() if environment.num_agents else jnp.shape(timestep.reward), jnp.float32),
            episode_length=jnp.zeros((), jnp.int32),
            running=~ended(timestep),
            agent_mask=timestep.info.get("agent_mask"),
            agent_return=jnp.zeros(environment.num_agents, jnp.float32) if counts_agents else None,
        )
        return annotate(state, timestep)

    def step(key: Array, state: EpisodeStatisticsState, action: Array) -> tuple[EpisodeStatisticsState, TimeStep]:
        inner, timestep = environment.step(key, state.inner, action)
        agent_return = state.agent_return
        if agent_return is not None:
            agent_return = agent_return + timestep.reward * weights_of(timestep.reward, state.agent_mask)
        state = EpisodeStatisticsState(
            inner=inner,
            agent_return=agent_return,
            episode_return=state.episode_return + scalar_reward(timestep.reward, state.agent_mask),
            episode_length=state.episode_length + state.running.astype(jnp.int32),
            running=~ended(timestep),
            agent_mask=timestep.info.get("agent_mask"),
        )
        return annotate(state, timestep)

    return replace(environment, reset=reset, step=step, render=_render_inner(environment))


def flatten_observation(environment: Environment) -> Environment:
    """Concatenates the leaves of the observation into one float32 vector, `[N, D]` with agents and `[D]` without.

    Args:
        environment: any environment; the leaves are concatenated in the order of `jax.tree.leaves`.

    Returns:
        The environment, whose observation space is a `Box` with one axis.
    """
    leading = 1 if environment.num_agents else 0

    def flatten(timestep: TimeStep) -> TimeStep:
        leaves = [jnp.asarray(leaf, jnp.float32) for leaf in jax.tree.leaves(timestep.observation)]
        flat = [leaf.reshape(*leaf.shape[:leading], -1) for leaf in leaves]
        return timestep.replace(observation=jnp.concatenate(flat, axis=-1))

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        state, timestep = environment.reset(key, task)
        return state, flatten(timestep)

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        state, timestep = environment.step(key, state, action)
        return state, flatten(timestep)

    size = sum(int(np.prod(space.shape)) for space in jax.tree.leaves(environment.observation_space))
    return replace(environment, reset=reset, step=step, observation_space=Box((size,)))


@struct.dataclass
class TimeLimitState:
    """State of `time_limit`.

    Attributes:
        inner: state of the wrapped environment.
        num_steps: int32, number of steps in the episode.
    """

    inner: State
    num_steps: Array


def time_limit(environment: Environment, max_steps: int) -> Environment:
    """Truncates episodes that have not terminated after `max_steps` steps.

    Args:
        environment: any environment.
        max_steps: limit in steps, at least 1.

    Returns:
        The environment with the smaller of both limits.

    Raises:
        ValueError: `max_steps` is below 1.
    """
    if max_steps < 1:
        raise ValueError(f"`max_steps` must be at least 1, got {max_steps}; try {environment.max_steps}.")

    def reset(key: Array, task: Task) -> tuple[TimeLimitState, TimeStep]:
        inner, timestep = environment.reset(key, task)
        return TimeLimitState(inner=inner, num_steps=jnp.zeros((), jnp.int32)), timestep

    def step(key: Array, state: TimeLimitState, action: Array) -> tuple[TimeLimitState, TimeStep]:
        inner, timestep = environment.step(key, state.inner, action)
        num_steps = state.num_steps + 1
        truncated = (timestep.truncated | (num_steps >= max_steps)) & ~timestep.terminated
        return TimeLimitState(inner=inner, num_steps=num_steps), timestep.replace(truncated=truncated)

    limited = replace(
        environment,
        reset=reset,
        step=step,
        max_steps=min(max_steps, environment.max_steps),
        render=_render_inner(environment),
    )
    return absorbing(limited)


@struct.dataclass
class AlternatingState:
    """State of `alternating`.

    Attributes:
        inner: state of the wrapped game.
        player: int32, index of the player who acts next.
    """

    inner: State
    player: Array


def alternating(environment: Environment) -> Environment:
    """Presents a two-player zero-sum game as one stream of experience in which both players act.

    The reward is that of the player who acted in the step, and `info["perspective"]` (float32) is +1 if the same player
    acts next and -1 if the opponent does, so that the return of the player who acts at t is

    `G_t = r_t + discount * perspective_t * G_{t+1}`.

    `player` stays in the timestep; `perspective` is +1 after a reset.

    Args:
        environment: zero-sum game of two players who take turns.

    Returns:
        The game with `num_players == 1` and a scalar reward.

    Raises:
        ValueError: it is not a game of two players.
    """
    require_two_players(environment, "alternating")

    def view(timestep: TimeStep, reward: Array, perspective: Array) -> TimeStep:
        return timestep.replace(reward=reward, info={**timestep.info, "perspective": perspective})

    def reset(key: Array, task: Task) -> tuple[AlternatingState, TimeStep]:
        inner, timestep = environment.reset(key, task)
        state = AlternatingState(inner=inner, player=timestep.player)
        return state, view(timestep, jnp.zeros((), jnp.float32), jnp.ones((), jnp.float32))

    def step(key: Array, state: AlternatingState, action: Array) -> tuple[AlternatingState, TimeStep]:
        inner, timestep = environment.step(key, state.inner, action)
        perspective = jnp.where(timestep.player == state.player, 1.0, -1.0).astype(jnp.float32)
        following = AlternatingState(inner=inner, player=timestep.player)
        return following, view(timestep, timestep.reward[state.player], perspective)

    return replace(environment, reset=reset, step=step, num_players=1, render=_render_inner(environment))

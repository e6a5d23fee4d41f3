"""Practice without resets: a task and the one that undoes it in turn, each from where the other ended."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.timesteps import ended, first_timestep, select
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Environment, State, Task, TimeStep

Onward = Callable[[Task, State], Task]
"""`(task that the session began with, state) -> task` that begins with everything where it lies."""


@struct.dataclass
class ResetFreeState:
    """State of `reset_free`.

    Attributes:
        inner: state of the wrapped environment.
        task: task with which the session began.
        is_second: bool, whether the second task is active.
        num_steps: int32, number of steps of the attempt.
        session_steps: int32, number of steps since the last reset.
    """

    inner: State
    task: Task
    is_second: Array
    num_steps: Array
    session_steps: Array


@struct.dataclass
class Attempt:
    """Observation of `reset_free`: what to act on, and how the previous step ended.

    Attributes:
        observation: observation under the active task.
        successor: successor of the previous step, under the task that was active then; equal to `observation` unless
            the task changed.
        terminated: bool, whether the previous step succeeded, or was judged as a success.
        truncated: bool, whether the attempt was given up.
        success: bool, whether it really succeeded.
    """

    observation: Array
    successor: Array
    terminated: Array
    truncated: Array
    success: Array


def reset_free(
    environment: Environment,
    first: Onward,
    second: Onward,
    *,
    judge: Callable[[Array], Array] | None = None,
    reset_every: int | None = None,
) -> Environment:
    """Makes attempts at two tasks in turn, without resets in between, as one long episode.

    An attempt ends with success, or is given up after `environment.max_steps` steps; the other task continues from the
    current state. The ends of attempts are part of observations, see `Attempt`, since the ends of episodes reset the
    world.

    Args:
        environment: environment whose resets place everything as the task says, and whose episodes terminate only with
            success.
        first: function that gives the task of a session, restarted from the current state.
        second: function that gives the task that undoes it.
        judge: `(observation) -> bool []`, which ends attempts and pays 1, in place of the environment; None: the
            environment does. A success that the judge does not see changes nothing.
        reset_every: number of steps after which the world is reset to a new task; None: never.

    Returns:
        The environment, whose observations are `Attempt`s.

    Raises:
        ValueError: `reset_every` is not positive, or there are several agents.

    References:
        Yang et al. (2023), Robot fine-tuning made easy (RoboFuME), section 4.3; Eysenbach et al. (2018), Leave no
        trace.
    """
    if reset_every is not None:
        require_positive("reset_every", reset_every)
    if environment.num_agents or environment.num_players > 1:
        raise ValueError(f"`environment` must have a single agent, got {environment.name!r}; try world=tabletop.")

    def reset(key: Array, task: Task) -> tuple[ResetFreeState, TimeStep]:
        inner, timestep = environment.reset(key, task)
        no, zero = jnp.zeros((), bool), jnp.zeros((), jnp.int32)
        state = ResetFreeState(inner=inner, task=task, is_second=no, num_steps=zero, session_steps=zero)
        observation = timestep.observation
        attempt = Attempt(observation=observation, successor=observation, terminated=no, truncated=no, success=no)
        return state, first_timestep(attempt)

    def step(key: Array, state: ResetFreeState, action: Array) -> tuple[ResetFreeState, TimeStep]:
        step_key, reset_key = jax.random.split(key)
        inner, timestep = environment.step(step_key, state.inner, action)
        success, num_steps, session_steps = timestep.terminated, state.num_steps + 1, state.session_steps + 1
        judged = success if judge is None else judge(timestep.observation)
        given_up = ~judged & (num_steps >= environment.max_steps)
        over = judged | given_up
        is_second = state.is_second ^ over
        task = select(is_second, second(state.task, inner), first(state.task, inner))
        # Even if the world considers an attempt ended that the judge lets continue.
        onward = over | ended(timestep)
        resumed, following = environment.reset(reset_key, task)
        inner, observation = select(onward, (resumed, following.observation), (inner, timestep.observation))
        attempt = Attempt(
            observation=observation,
            successor=timestep.observation,
            terminated=judged,
            truncated=given_up,
            success=success,
        )
        state = state.replace(
            inner=inner,
            is_second=is_second,
            num_steps=jnp.where(over, 0, num_steps),
            session_steps=session_steps,
        )
        reward = timestep.reward if judge is None else judged.astype(jnp.float32)
        is_due = jnp.zeros((), bool) if reset_every is None else session_steps >= reset_every
        return state, first_timestep(attempt).replace(reward=reward, truncated=is_due)

    longest = jnp.iinfo(jnp.int32).max if reset_every is None else reset_every
    return replace(environment, reset=reset, step=step, max_steps=longest, render=None)

"""Environments that are not array programs: simulators on the host, stepped many at a time."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxagents.types import Environment, PyTree


class HostStep(NamedTuple):
    """Result of a reset or a step of B simulators; numpy, leaves `[B, ...]`.

    Attributes:
        observation: observation to act on: if an episode has ended, the first one of the next episode.
        reward: float32, reward of the step.
        terminated: bool.
        truncated: bool.
        next_observation: true successor of the step, even if an episode has ended.
        action_mask: bool `[B, A]`, for `observation`; None if every action is always allowed.
        next_action_mask: bool `[B, A]`, for `next_observation`.
        success: float32, 1 or 0, of the episode that the step belongs to; NaN if the simulator does not tell.
    """

    observation: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_observation: PyTree
    action_mask: np.ndarray | None
    next_action_mask: np.ndarray | None
    success: np.ndarray


class HostBatch(NamedTuple):
    """B simulators that reset themselves.

    Attributes:
        reset: `(seeds int64 [B]) -> HostStep`.
        step: `(action [B, ...]) -> HostStep`.
        close: ends the processes of the simulators.
    """

    reset: Callable[[np.ndarray], HostStep]
    step: Callable[[np.ndarray], HostStep]
    close: Callable[[], None]


@dataclass(frozen=True, eq=False)
class HostEnvironment(Environment):
    """An environment on the host, for `rollouts.host`; its functions of arrays raise an error when called.

    Attributes:
        make_batch: `(num_envs) -> HostBatch`.
        num_actions: A, number of actions in the masks; None if there are no masks.
    """

    make_batch: Callable[[int], HostBatch] = None
    num_actions: int | None = None


def simulator_fault(name: str, call: str, error: BaseException) -> ValueError:
    """Makes the error of a run whose simulator failed, in one line with the simulator's own message.

    Args:
        name: name of the environment.
        call: name of the call: "make", "reset" or "step".
        error: error that the call raised.

    Returns:
        The error, with file and line of the simulator if they are known.
    """
    message = " ".join(str(error).split())
    if isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
        message = message or "its process has ended"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    fault = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return ValueError(f"`{call}` of the environment {name} must not fail, got {fault}{where}.")


def make_host_environment(
    name: str,
    make_batch: Callable[[int], HostBatch],
    *,
    observation_space: PyTree,
    action_space: Any,
    max_steps: int,
    masked: bool = False,
) -> HostEnvironment:
    """Makes the record of an environment that is stepped on the host.

    Args:
        name: name for logs and messages.
        make_batch: see `HostEnvironment`.
        observation_space: observation space of one simulator.
        action_space: action space of one simulator.
        max_steps: upper bound of the length of an episode, in steps.
        masked: whether there are action masks; needs a discrete action space.

    Returns:
        The environment.
    """

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise ValueError(
            f"`environment` {name} is stepped on the host and must have a collector for that; try collector=host "
            "evaluation=host."
        )

    return HostEnvironment(
        name=name,
        observation_space=observation_space,
        action_space=action_space,
        max_steps=max_steps,
        make_batch=make_batch,
        num_actions=action_space.num_values if masked else None,
        sample_task=refuse,
        reset=refuse,
        step=refuse,
    )

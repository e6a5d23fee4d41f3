"""Environments that are no array programs: simulators on the host, stepped many at a time."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxagents.types import Environment, PyTree


class HostStep(NamedTuple):
    """What B simulators say after a reset or a step; numpy, leaves `[B, ...]`.

    Attributes:
        observation: to act on: where an episode has ended, that of the next one.
        reward: float32, of the step.
        terminated: bool.
        truncated: bool.
        next_observation: the true successor, also where an episode has ended.
        action_mask: bool `[B, A]`, at `observation`; None when every action always is allowed.
        next_action_mask: bool `[B, A]`, at `next_observation`.
        success: float32, 1 or 0, of the episode that the step belongs to; NaN for simulators that do not tell.
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
        close: ends their processes.
    """

    reset: Callable[[np.ndarray], HostStep]
    step: Callable[[np.ndarray], HostStep]
    close: Callable[[], None]


@dataclass(frozen=True, eq=False)
class HostEnvironment(Environment):
    """An environment on the host, for `rollouts.host`; its functions of arrays refuse to be called.

    Attributes:
        make_batch: `(num_envs) -> HostBatch`.
        num_actions: A, of the masks; None where there are none.
    """

    make_batch: Callable[[int], HostBatch] = None
    num_actions: int | None = None


def simulator_fault(name: str, call: str, error: BaseException) -> ValueError:
    """Makes the error of a run whose simulator failed, in one line with the simulator's own words.

    Args:
        name: of the environment.
        call: what was asked of it: "make", "reset" or "step".
        error: that it raised.

    Returns:
        The error, with file and line of the simulator where they are known.
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
        name: for logs and messages.
        make_batch: see `HostEnvironment`.
        observation_space: of one simulator.
        action_space: of one simulator.
        max_steps: upper bound of the length of an episode.
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

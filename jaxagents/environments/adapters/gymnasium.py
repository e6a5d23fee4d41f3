"""Environments of gymnasium (Towers et al., 2024): any simulator with that interface, stepped on the host."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxagents.environments.adapters.conversion import shared_bounds, to_bounds
from jaxagents.environments.adapters.importing import import_suite
from jaxagents.environments.host import HostBatch, HostEnvironment, HostStep, make_host_environment, simulator_fault
from jaxagents.types import Box, Discrete, PyTree

_MASK = "action_mask"
_NO_LOG = 50  # Above the level of errors.


def make_environment(
    name: str,
    *,
    max_steps: int | None = None,
    processes: bool = False,
    make: Callable[[], Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> HostEnvironment:
    """Makes an environment of gymnasium.

    An entry `action_mask` of its observations, as in PettingZoo, becomes the action mask. `info["success"]`, or
    `info["is_success"]`, is the success of an episode; an environment with neither has none. If the bounds of actions
    differ between their numbers, policies act in [-1, 1], which is scaled to the bounds of every number.

    Args:
        name: name registered in gymnasium, for example "CartPole-v1"; with `make`, only used in logs.
        max_steps: maximum steps after which episodes are truncated; None: as registered.
        processes: whether every simulator runs in a separate process, for slow ones; else they run one after the other.
        make: `() -> gymnasium.Env`; None: the registered environment.
        options: arguments of the environment's constructor.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: gymnasium is not installed.
        ValueError: `name` is unknown, a space has no counterpart, or nothing bounds the length of episodes.
    """
    gymnasium = import_suite("gymnasium", extra="host")
    if make is None and name not in gymnasium.registry:
        near = [known for known in gymnasium.registry if known.lower().startswith(name.lower()[:4])]
        raise ValueError(
            f"`name` must be registered with gymnasium, got {name!r}; try {', '.join(near[:8]) or 'make'}."
        )

    def make_one() -> Any:
        if make is None:
            return gymnasium.make(name, max_episode_steps=max_steps, **(options or {}))
        env = make()
        return env if max_steps is None else gymnasium.wrappers.TimeLimit(env, max_steps)

    try:
        first = make_one()
    except (Exception, SystemExit) as error:  # A user's code can raise anything.
        raise simulator_fault(name, "make", error) from error
    bound = max_steps or (first.spec and first.spec.max_episode_steps)
    observed, (action_space, to_suite) = from_gymnasium(first.observation_space), _actions_of(first.action_space)
    first.close()
    if not bound:
        raise ValueError(f"`max_steps` must be given for {name}, whose episodes nothing bounds, got None; try 500.")
    masked = isinstance(observed, dict) and _MASK in observed
    observation_space = _without_mask(observed) if masked else observed

    def make_batch(num_envs: int) -> HostBatch:
        kind = gymnasium.vector.AsyncVectorEnv if processes else gymnasium.vector.SyncVectorEnv
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        options = {"context": "spawn"} if processes else {}  # Threads of JAX do not survive a fork.
        if processes:  # This process raises the errors that workers print.
            gymnasium.logger.min_level = _NO_LOG
        return _batch(kind([make_one] * num_envs, autoreset_mode=mode, **options), to_suite, masked=masked)

    return make_host_environment(
        name,
        make_batch,
        observation_space=observation_space,
        action_space=action_space,
        max_steps=int(bound),
        masked=masked,
    )


def from_gymnasium(space: Any) -> PyTree:
    """Converts a space of gymnasium to this package's; a `Dict` becomes a dict of spaces."""
    kind = type(space).__name__
    if kind == "Discrete" and space.start == 0:
        return Discrete(int(space.n))
    if kind == "MultiDiscrete" and len(set(space.nvec.tolist())) == 1:
        return Discrete(int(space.nvec.flat[0]), space.nvec.shape)
    if kind == "MultiBinary":
        return Box(tuple(space.shape), 0, 1, np.int8)
    if kind == "Box":
        return Box(tuple(space.shape), float(np.min(space.low)), float(np.max(space.high)), space.dtype.type)
    if kind == "Dict":
        return {name: from_gymnasium(part) for name, part in space.items()}
    raise ValueError(
        f"`space` must be Discrete from 0 on, MultiDiscrete of equal parts, MultiBinary, Box or Dict, got {space}; try "
        "a wrapper of gymnasium that changes it."
    )


def _actions_of(space: Any) -> tuple[PyTree, Callable[[np.ndarray], np.ndarray]]:
    """Returns the action space for policies, and the function that converts its actions to the simulator's.

    The spaces of this package have the same bounds for all numbers. If the simulator's differ, policies act in [-1, 1],
    which is scaled to the bounds of every number; if some are infinite, actions are clipped.
    """
    ours = from_gymnasium(space)
    if not isinstance(ours, Box) or not np.issubdtype(ours.dtype, np.floating):
        return ours, lambda action: np.asarray(action, ours.dtype)
    low, high = np.asarray(space.low), np.asarray(space.high)
    shared = shared_bounds(low, high)

    def to_suite(action: np.ndarray) -> np.ndarray:
        return to_bounds(np.asarray(action), low=low, high=high, shared=shared).astype(ours.dtype)

    return Box(ours.shape, *shared, ours.dtype), to_suite


def _batch(vector: Any, to_suite: Callable[[np.ndarray], np.ndarray], *, masked: bool) -> HostBatch:
    """Makes the batch of a vector environment that resets in the same step."""

    def of(observation: PyTree) -> tuple[PyTree, np.ndarray | None]:
        if not masked:
            return observation, None
        return _without_mask(observation), np.asarray(observation[_MASK], bool)

    def host_step(observation: PyTree, successor: PyTree, reward: Any, ends: tuple[Any, Any], success: Any) -> HostStep:
        (now, mask), (following, next_mask) = of(observation), of(successor)
        return HostStep(
            observation=now,
            reward=np.asarray(reward, np.float32),
            terminated=np.asarray(ends[0], bool),
            truncated=np.asarray(ends[1], bool) & ~np.asarray(ends[0], bool),
            next_observation=following,
            action_mask=mask,
            next_action_mask=next_mask,
            success=np.asarray(success, np.float32),
        )

    def reset(seeds: np.ndarray) -> HostStep:
        observation, _ = vector.reset(seed=[int(seed) for seed in seeds])
        nothing = np.zeros(vector.num_envs)
        return host_step(observation, observation, nothing, (nothing, nothing), np.full(vector.num_envs, np.nan))

    def step(action: np.ndarray) -> HostStep:
        observation, reward, terminated, truncated, info = vector.step(to_suite(action))
        successor = observation = jax.tree.map(np.array, observation)
        last = info.get("final_info", {})
        ended = np.flatnonzero(np.asarray(terminated) | np.asarray(truncated))
        if len(ended):
            successor = jax.tree.map(np.array, observation)
        for i in ended:
            jax.tree.map(lambda leaf, final, i=i: leaf.__setitem__(i, final), successor, info["final_obs"][i])
        success = np.full(vector.num_envs, np.nan)
        for source, name in itertools.product((info, last), ("success", "is_success")):
            if name in source:  # `_success` marks the environments that report it.
                is_set = np.asarray(source.get(f"_{name}", True), bool)
                success = np.fmax(success, np.where(is_set, np.asarray(source[name], np.float64), np.nan))
        return host_step(observation, successor, reward, (terminated, truncated), success)

    def close() -> None:
        try:
            vector.close(terminate=True)
        except Exception:  # A process that has ended by itself is still waited for.
            for process in getattr(vector, "processes", ()):
                process.terminate()
        finally:
            vector.closed = True  # Its destructor would try to close again.

    return HostBatch(reset=reset, step=step, close=close)


def _without_mask(tree: Mapping[str, Any]) -> PyTree:
    """Removes the mask; if one other entry is left, returns that entry itself."""
    rest = {name: part for name, part in tree.items() if name != _MASK}
    return next(iter(rest.values())) if len(rest) == 1 else rest

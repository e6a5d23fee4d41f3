"""Checks of custom environments: types, and guarantees about the ends of episodes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.types import Array, Box, Discrete, Environment, PyTree, State, TimeStep

_MOST_STEPS = 1000  # Maximum number of random steps.


def check_environment(environment: Environment) -> None:
    """Checks an environment by tracing it, and by playing an episode with random actions, which takes seconds.

    Args:
        environment: single instance, with arrays or words.

    Raises:
        ValueError: see `require_shapes`; an observation is outside of its space, the episode is longer than
            `max_steps`, or a step after its end changes something.
    """
    require_shapes(environment)
    observations, rewards, ends = jax.device_get(jax.jit(_play, static_argnums=0)(environment, jax.random.key(0)))
    for space, seen in zip(_spaces(environment.observation_space), jax.tree.leaves(observations), strict=True):
        low, high = (space.low, space.high) if isinstance(space, Box) else (0, space.num_values - 1)
        if environment.text is None and not (np.all(seen >= low) and np.all(seen <= high)):
            raise ValueError(
                f"`observation` must lie in its space, {low} to {high}, got {seen.min()} to {seen.max()}; mend the "
                f"`observation_space` of {environment.name}."
            )
    if not ends.any() and environment.max_steps <= _MOST_STEPS:
        raise ValueError(
            f"`step` must end the episode within `max_steps`, {environment.max_steps}, got one of {environment.name} "
            "that goes on; set terminated, or truncated at the limit."
        )
    after = np.cumsum(ends) - ends > 0
    if np.any(after & ~ends) or np.any(rewards[after] != 0.0):
        raise ValueError(
            f"`step` must change nothing after the end, with a reward of 0, got {environment.name}, which goes on; try "
            "jaxagents.environments.wrappers.absorbing."
        )


def describe_not_finite(environment: Environment, key: Array, num_episodes: int = 16) -> str | None:
    """Plays random actions, and describes the first NaN or infinite value of an environment without any policy.

    Args:
        environment: single instance, with arrays or words.
        key: random key of the episodes.
        num_episodes: number of episodes that are played in parallel.

    Returns:
        The first array that is not finite, with the step of the episode; None if all are finite.
    """
    keys = jax.random.split(key, num_episodes)
    observations, rewards, _ = jax.device_get(jax.jit(jax.vmap(lambda key: _play(environment, key)))(keys))
    for name, leaves in (("reward", [rewards]), ("observation", jax.tree.leaves(observations))):
        for leaf in leaves:
            finite = np.isfinite(leaf).reshape(*leaf.shape[:2], -1).all(axis=(0, 2))
            if not finite.all():
                return f"`{name}` of {environment.name} in step {int(np.argmin(finite)) + 1} of an episode"
    return None


def require_level(environment: Environment, level: int | Sequence[int] | None) -> None:
    """Refuses a level that a world does not have, which it would clip to its last level, or ignore.

    Args:
        environment: single instance.
        level: one or several levels; None for no level.

    Raises:
        ValueError: the level does not exist; says which levels do.
    """
    if level is None:
        return
    known = environment.num_levels if environment.text is None else environment.text.num_levels
    lowest = 0 if environment.text is not None or known <= 1 else -1  # -1 may draw one, see `quest_levels.graded`.
    for one in [level] if isinstance(level, int) else level:
        if known and not lowest <= one < known:
            raise ValueError(f"`level` must be from 0 to {known - 1} in {environment.name}, got {one}.")
    if not known and not _reads_level(environment):
        raise ValueError(f"`level` must be null in {environment.name}, which has no levels, got {level}.")


def _reads_level(environment: Environment) -> bool:
    try:
        traced = jax.make_jaxpr(environment.sample_task)(jax.random.key(0), jnp.int32(0)).jaxpr
    except Exception:  # A simulator on the host, whose tasks cannot be traced.
        return True
    level = traced.invars[-1]
    return level in traced.outvars or any(level in equation.invars for equation in traced.eqns)


def require_shapes(environment: Environment) -> None:
    """Checks the shapes and types of an environment by tracing it; nothing is run.

    Args:
        environment: single instance.

    Raises:
        ValueError: an observation, a reward, a flag or a mask has another shape or type than the spaces and
            `num_agents` specify, or `step` returns a state or a time step with another structure than `reset`.
    """
    key = jax.random.key(0)
    agents, space = _agents(environment), environment.action_space
    task = jax.eval_shape(environment.sample_task, key)
    state, first = jax.eval_shape(environment.reset, key, task)
    _require_time_step(environment, "reset", first)
    action = jax.ShapeDtypeStruct((*agents, *space.shape), space.dtype)
    following, later = jax.eval_shape(environment.step, key, state, action)
    _require_time_step(environment, "step", later)
    _require_alike("state", state, following)
    _require_alike("time step", first, later)


def _require_time_step(environment: Environment, function: str, timestep: TimeStep) -> None:
    if not isinstance(timestep, TimeStep):
        raise ValueError(f"`{function}` must return (state, TimeStep), got a {type(timestep).__name__} as the second.")
    agents = _agents(environment)
    spaces, seen = _spaces(environment.observation_space), jax.tree.leaves(timestep.observation)
    if len(spaces) != len(seen):
        raise ValueError(
            f"`observation` of `{function}` must have the {len(spaces)} arrays of its space, got {len(seen)}."
        )
    for space, leaf in zip(spaces, seen, strict=True):
        _require(f"observation` of `{function}", leaf, (*agents, *space.shape), space.dtype)
    seats = (environment.num_players,) if environment.num_players > 1 else agents
    _require(f"reward` of `{function}", timestep.reward, seats, np.float32)
    _require(f"terminated` of `{function}", timestep.terminated, (), np.bool_)
    _require(f"truncated` of `{function}", timestep.truncated, (), np.bool_)
    if timestep.action_mask is not None and isinstance(environment.action_space, Discrete):
        shape = (*agents, environment.action_space.num_values)
        if environment.text is None:
            _require(f"action_mask` of `{function}", timestep.action_mask, shape, np.bool_)


def _require(name: str, leaf: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if leaf.shape != shape or leaf.dtype != np.dtype(dtype):
        raise ValueError(
            f"`{name}` must be {np.dtype(dtype)} {list(shape)}, got {leaf.dtype} {list(leaf.shape)}; mend what it "
            "returns, or the space."
        )


def _require_alike(name: str, before: PyTree, after: PyTree) -> None:
    """Refuses values that change their structure from `reset` to `step`, as compiled loops carry them."""
    old, new = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (before, after)
    )
    for path in sorted({*old, *new}):
        forms = [f"{part[path].dtype} {list(part[path].shape)}" if path in part else "nothing" for part in (old, new)]
        if forms[0] != forms[1]:
            raise ValueError(
                f"`step` must return a {name} like that of `reset`, got {forms[1]} at {path or 'its root'} and not "
                f"{forms[0]}; try jnp.float32(...) or jnp.int32(...) around constants."
            )


def _play(environment: Environment, key: Array) -> tuple[PyTree, Array, Array]:
    """Plays random actions for a little longer than an episode; returns observations, rewards, and end flags."""

    def step(carry: tuple[State, TimeStep], key: Array) -> tuple[tuple[State, TimeStep], Any]:
        state, timestep = carry
        act_key, step_key = jax.random.split(key)
        after = environment.step(step_key, state, _random_action(environment, act_key, state, timestep))
        return after, (after[1].observation, after[1].reward, after[1].terminated | after[1].truncated)

    task_key, reset_key, play_key = jax.random.split(key, 3)
    start = environment.reset(reset_key, environment.sample_task(task_key))
    length = min(environment.max_steps, _MOST_STEPS) + 2
    return jax.lax.scan(step, start, jax.random.split(play_key, length))[1]


def _random_action(environment: Environment, key: Array, state: State, timestep: TimeStep) -> Array:
    space, agents = environment.action_space, _agents(environment)
    if environment.text is not None:
        return environment.text.expert(key, state)[0]
    if isinstance(space, Box):
        low, high = max(space.low, -1.0), min(space.high, 1.0)
        return jax.random.uniform(key, (*agents, *space.shape), space.dtype, low, high)
    if timestep.action_mask is None or space.shape:
        return jax.random.randint(key, (*agents, *space.shape), 0, space.num_values, space.dtype)
    return jax.random.categorical(key, jnp.where(timestep.action_mask, 0.0, -jnp.inf)).astype(space.dtype)


def _agents(environment: Environment) -> tuple[int, ...]:
    return (environment.num_agents,) if environment.num_agents else ()


def _spaces(space: PyTree) -> list[Discrete | Box]:
    return jax.tree.leaves(space, is_leaf=lambda part: isinstance(part, Discrete | Box))

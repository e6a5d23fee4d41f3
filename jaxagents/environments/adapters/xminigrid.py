"""Grid worlds with rules from XLand-MiniGrid (Nikulin et al., 2024)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.adapters.conversion import permissive, sample_key_task, strong_types, task_key
from jaxagents.environments.adapters.importing import import_suite, require_name
from jaxagents.environments.adapters.rendering import render_grid
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, PyTree, State, Task, TimeStep

_TILES = " .#osp*k%+/hx"
"""Characters of the suite's tiles: empty, floor, wall, ball, square, pyramid, goal, key, doors, hexagon, star."""

NUM_LEVELS = 2
"""Levels of XLand: hold the yellow pyramid; make it first, by putting the red ball next to the blue square."""


def make_environment(name: str, *, ruleset: PyTree | None = None, **options: Any) -> Environment:
    """Makes a world of XLand-MiniGrid without its downloads.

    The task `{"key": uint32 [2]}` determines the grid; in XLand worlds it also holds the `"ruleset"`, of which this
    adapter has one per level. The observation uint8 `[V, V, 2]` holds tiles and colours in front of the agent. Reaching
    the goal terminates with reward `1 - 0.9 * steps / max_steps` and sets `info["success"]`; the step limit truncates.

    Args:
        name: name registered in the suite, for example "XLand-MiniGrid-R1-9x9" or "MiniGrid-Empty-8x8".
        ruleset: `RuleSet` of the suite for all levels of an XLand world; None: those of this package.
        **options: values to replace in the world's parameters, for example `max_steps` or `view_size`.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: xminigrid is not installed.
        ValueError: `name` is unknown.
    """
    registration = import_suite("xminigrid")
    world, params = registration.make(
        require_name(name, registration.registered_environments(), "xminigrid"), **options
    )
    world_reset, world_step = permissive(world.reset), permissive(world.step)
    own_rules = name.startswith("XLand")
    rulesets = _rulesets() if ruleset is None else jax.tree.map(lambda leaf: jnp.stack([leaf] * NUM_LEVELS), ruleset)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        instance_key, level_key = jax.random.split(key)
        task = sample_key_task(instance_key)
        if not own_rules:
            return task
        level = jax.random.randint(level_key, (), 0, NUM_LEVELS) if level is None else level
        return task | {"ruleset": jax.tree.map(lambda leaf: leaf[level], rulesets)}

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        del key
        own_params = params.replace(ruleset=task["ruleset"]) if own_rules else params
        state = strong_types(world_reset(own_params, task_key(task)))
        return state, first_timestep(state.observation, info={"success": jnp.zeros((), bool)})

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        del key
        state = strong_types(world_step(params, state, action))
        reward = state.reward.astype(jnp.float32)
        terminated = state.last() & (state.discount == 0)
        timestep = TimeStep(
            observation=state.observation,
            reward=reward,
            terminated=terminated,
            truncated=state.last() & ~terminated,
            info={"success": terminated & (reward > 0)},
        )
        return state, timestep

    return absorbing(
        Environment(
            name=name,
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box(world.observation_shape(params), 0, len(_TILES) - 1, np.uint8),
            action_space=Discrete(world.num_actions(params)),
            max_steps=params.max_steps,
            render=_render,
            num_levels=NUM_LEVELS,
        )
    )


def _rulesets() -> PyTree:
    """Builds the rule sets of all levels, leaves `[NUM_LEVELS, ...]`."""
    constants = import_suite("xminigrid.core.constants")
    rules, goals = import_suite("xminigrid.core.rules"), import_suite("xminigrid.core.goals")
    tiles, colors, registry = constants.Tiles, constants.Colors, constants.TILES_REGISTRY
    ball, square = registry[tiles.BALL, colors.RED], registry[tiles.SQUARE, colors.BLUE]
    pyramid, nothing = registry[tiles.PYRAMID, colors.YELLOW], registry[tiles.EMPTY, colors.EMPTY]
    ruleset = import_suite("xminigrid.types").RuleSet
    goal = goals.AgentHoldGoal(tile=pyramid).encode()
    make_pyramid = rules.TileNearRule(tile_a=ball, tile_b=square, prod_tile=pyramid).encode()
    levels = (
        ruleset(goal=goal, rules=rules.EmptyRule().encode()[None], init_tiles=jnp.stack([ball, square, pyramid])),
        ruleset(goal=goal, rules=make_pyramid[None], init_tiles=jnp.stack([ball, square, nothing])),
    )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *levels)


def _render(state: Any) -> str:
    grid = np.asarray(state.state.grid)[..., 0]
    rows = [[_TILES[tile] for tile in row] for row in grid]
    row, column = np.asarray(state.state.agent.position)
    rows[row][column] = "^>v<"[int(state.state.agent.direction)]
    return render_grid(["".join(line) for line in rows])

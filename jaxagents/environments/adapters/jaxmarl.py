"""Teams of JaxMARL (Rutherford et al., 2024)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.adapters.conversion import (
    bounds_of,
    permissive,
    sample_key_task,
    shared_bounds,
    strong_types,
    task_key,
    to_bounds,
    unbounded_space,
)
from jaxagents.environments.adapters.importing import import_suite, options_of, require_name
from jaxagents.environments.adapters.rendering import render_points
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import time_limit
from jaxagents.types import Array, Box, Discrete, Environment, PyTree, State, Task, TimeStep

_FAMILIES = ("MPE_", "SMAX", "HeuristicEnemySMAX", "overcooked", "hanabi", "switch_riddle")
"""Beginnings of the names; the other environments are slow, deprecated, or give their agents no names to index by."""

_LEFT_OUT = ("MPE_simple_facmac_3a_v1", "MPE_simple_facmac_6a_v1", "MPE_simple_facmac_9a_v1")
"""Sizes of "MPE_simple_facmac_v1" whose step limit is fixed; that one takes the sizes as options."""

_LONGEST = {"hanabi": 120, "switch_riddle": 100}
"""Steps after which the rules have ended an episode, where the suite has no argument `max_steps`."""


def make_environment(
    name: str,
    *,
    scenario: str | None = None,
    layout: str | None = None,
    max_steps: int | None = None,
    shaped_reward_coefficient: float = 0.0,
    **options: Any,
) -> Environment:
    """Makes an environment of JaxMARL with an agent axis in place of its dicts.

    Observations are zero-padded to the largest size; the action space is the largest one, and `action_mask` excludes
    actions that an agent does not have. If the bounds of actions differ, policies act in [-1, 1], which is scaled to
    those of every agent and number. `info["agent_mask"]` says who is alive; in SMAX, `info["success"]` says whether the
    battle was won, and `info["world_state"]` is the state of the whole world. The step limit truncates. The task
    `{"key": uint32 [2]}` determines the initial state. For opposed teams, `Environment.teams` lists the members of
    each: in simple tag, predators are "adversaries" and prey are "good_agents".

    Args:
        name: JaxMARL's name, for example "MPE_simple_spread_v3" or "HeuristicEnemySMAX".
        scenario: map of SMAX, for example "3m".
        layout: kitchen of Overcooked, for example "cramped_room".
        max_steps: maximum steps of an episode; None: the suite's limit.
        shaped_reward_coefficient: weight of the intermediate rewards that Overcooked offers.
        **options: arguments of the environment's constructor.

    Returns:
        The environment, rewards `[N]`.

    Raises:
        ModuleNotFoundError: jaxmarl is not installed.
        ValueError: `name`, `scenario` or `layout` is unknown, or `max_steps` is below 1.
    """
    with options_of(name, options):
        world, max_steps = _build(name, scenario, layout, max_steps, options)
    agents = tuple(world.agents)
    spaces = [world.action_space(agent) for agent in agents]
    action_space = _action_space(spaces)
    only_time_ends = name.startswith("overcooked")
    won = _won(world) if name == "HeuristicEnemySMAX" else None
    world_reset, step_env = permissive(world.reset), permissive(world.step_env)
    allowed = _masker(world, agents, spaces)

    def extras(state: State, observations: dict[str, Array], agent_mask: Array) -> dict[str, Array]:
        info = {"agent_mask": agent_mask}
        if "world_state" in observations:
            info["world_state"] = observations["world_state"].astype(jnp.float32)
        return info if won is None else info | {"success": won(state)}

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        del key
        observations, state = strong_types(world_reset(task_key(task)))
        timestep = first_timestep(
            _stack_padded([observations[agent] for agent in agents]),
            reward_shape=(len(agents),),
            action_mask=allowed(state),
            info=extras(state, observations, jnp.ones(len(agents), bool)),
        )
        return state, timestep

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        own = [_own_action(action[i], space, action_space) for i, space in enumerate(spaces)]
        actions = dict(zip(agents, own))
        observations, state, rewards, dones, info = strong_types(step_env(key, state, actions))
        reward = jnp.stack([rewards[agent].astype(jnp.float32) for agent in agents])
        if "shaped_reward" in info:
            shaped = jnp.stack([info["shaped_reward"][agent].astype(jnp.float32) for agent in agents])
            reward = reward + shaped_reward_coefficient * shaped
        done = dones["__all__"].astype(bool)
        alive = jnp.stack([~dones[agent].astype(bool) for agent in agents])
        timestep = TimeStep(
            observation=_stack_padded([observations[agent] for agent in agents]),
            reward=reward,
            terminated=done & (not only_time_ends),
            truncated=done & only_time_ends,
            action_mask=allowed(state),
            info=extras(state, observations, alive | only_time_ends),
        )
        return state, timestep

    first = jax.eval_shape(lambda: reset(jax.random.key(0), sample_key_task(jax.random.key(0))))[1].observation
    environment = Environment(
        name=name if scenario is None else f"{name}-{scenario}",
        sample_task=sample_key_task,
        reset=reset,
        step=step,
        observation_space=unbounded_space(first.shape[1:], first.dtype),
        action_space=action_space,
        max_steps=max_steps,
        num_agents=len(agents),
        teams=_opposed_teams(world, agents),
        render=_renderer(name, world),
    )
    return time_limit(environment, max_steps)


def _build(
    name: str, scenario: str | None, layout: str | None, max_steps: int | None, options: dict[str, Any]
) -> tuple[Any, int]:
    suite = import_suite("jaxmarl")
    known = [known for known in suite.registered_envs if known.startswith(_FAMILIES) and known not in _LEFT_OUT]
    require_name(name, known, "jaxmarl")
    if scenario is not None:
        maps = import_suite("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO
        options = {**options, "scenario": maps[require_name(scenario, maps, "SMAX")]}
    if layout is not None and name == "overcooked":
        layouts = import_suite("jaxmarl.environments.overcooked").overcooked_layouts
        options = {**options, "layout": layouts[require_name(layout, layouts, "Overcooked")]}
    elif layout is not None:
        options = {**options, "layout": layout}
    if name in _LONGEST:
        return suite.make(name, **options), _LONGEST[name] if max_steps is None else max_steps
    limit = suite.make(name, **options).max_steps if max_steps is None else max_steps
    # Overcooked ends only by its limit. The others mix it with true ends: with one step more, it never shows.
    own_limit = limit if name.startswith("overcooked") else limit + 1
    return suite.make(name, max_steps=own_limit, **options), limit


def _action_space(spaces: list[Any]) -> Discrete | Box:
    """Returns the largest space; if bounds differ between agents or numbers, see `to_bounds`."""
    if hasattr(spaces[0], "n"):
        return Discrete(max(int(space.n) for space in spaces))
    low, high = (np.concatenate(bounds) for bounds in zip(*map(bounds_of, spaces)))
    return Box((max(space.shape[0] for space in spaces),), *shared_bounds(low, high))


def _own_action(action: Array, space: Any, shared: Discrete | Box) -> Array:
    if isinstance(shared, Discrete):
        return action
    low, high = bounds_of(space)
    return to_bounds(action[: space.shape[0]], low=low, high=high, shared=(shared.low, shared.high))


def _stack_padded(leaves: list[Array]) -> Array:
    """Stacks arrays along a new agent axis; vectors of unequal lengths are padded with zeros."""
    if len({leaf.shape for leaf in leaves}) == 1:
        return jnp.stack(leaves)
    length = max(leaf.shape[0] for leaf in leaves)
    return jnp.stack([jnp.pad(leaf, (0, length - leaf.shape[0])) for leaf in leaves])


def _opposed_teams(world: Any, agents: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Returns the indices of the agents of both teams if there are two, in particle worlds and battles."""
    good = getattr(world, "good_agents", None) or [name for name in agents if name.startswith("ally_")]
    own = tuple(index for index, name in enumerate(agents) if name in good)
    others = tuple(index for index in range(len(agents)) if index not in own)
    names = ("allies", "enemies") if agents[0].startswith("ally_") else ("good_agents", "adversaries")
    return dict(zip(names, (own, others))) if own and others else {}


def _masker(world: Any, agents: tuple[str, ...], spaces: list[Any]) -> Callable[[State], PyTree]:
    """Makes `(state) -> action_mask [N, A]`; None if every agent can always do everything."""
    name = next((name for name in ("get_avail_actions", "get_legal_moves") if _implements(world, name)), None)
    if name is not None:
        available = permissive(getattr(world, name))

        def ask(state: State) -> Array:
            masks = available(state)
            return _stack_padded([masks[agent].astype(bool) for agent in agents])

        return ask
    sizes = {int(space.n) for space in spaces if hasattr(space, "n")}
    if len(sizes) < 2:
        return lambda state: None
    fixed = np.stack([np.arange(max(sizes)) < space.n for space in spaces])
    return lambda state: jnp.asarray(fixed)


def _implements(world: Any, method: str) -> bool:
    base = import_suite("jaxmarl.environments.multi_agent_env").MultiAgentEnv
    return getattr(type(world), method, None) is not getattr(base, method, None)


def _renderer(name: str, world: Any) -> Callable[[State], str] | None:
    """Makes the renderer of particle worlds (agents by their numbers, landmarks o) and of battles (allies A)."""
    if name.startswith("MPE_"):

        def render_particles(state: State) -> str:
            places = np.asarray(state.p_pos)
            agents = [(f"{index % 10}", places[index]) for index in range(world.num_agents)]
            return render_points([("o", places[world.num_agents :]), *agents], (-1.3, -1.3), (1.3, 1.3))

        return render_particles
    if "SMAX" not in name:
        return None

    def render_battle(state: State) -> str:
        inner = getattr(state, "state", state)
        places, alive, enemy = (
            np.asarray(values) for values in (inner.unit_positions, inner.unit_alive, inner.unit_teams)
        )
        health = np.asarray(inner.unit_health)
        glyphs = (("x", ~alive), ("E", alive & (enemy == 1)), ("A", alive & (enemy == 0)))
        frame = render_points(
            [(glyph, places[of]) for glyph, of in glyphs], (0.0, 0.0), (world.map_width, world.map_height)
        )
        sums = [health[(enemy == team) & alive].sum() for team in (0, 1)]
        return f"{frame}\nhealth of allies {sums[0]:.0f}, of enemies {sums[1]:.0f}"

    return render_battle


def _won(world: Any) -> Callable[[State], Array]:
    """Makes `(state) -> bool []`: no enemy is alive, and at least one agent of the team is."""

    def won(state: State) -> Array:
        alive = state.state.unit_alive
        return ~jnp.any(alive[world.num_allies :]) & jnp.any(alive[: world.num_allies])

    return won

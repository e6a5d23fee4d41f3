"""A small world of crafting: wood, tables, pickaxes and the materials that can be dug with them, in sequence."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.contextual_gridworld import MOVES, mark
from jaxagents.environments.craft_terrain import (
    COAL,
    DIAMOND,
    FURNACE,
    GRASS,
    IRON,
    MATERIALS,
    STONE,
    TABLE,
    TREE,
    WATER,
    sample_land,
)
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, Task, TimeStep

ITEMS = ("wood", "stone", "coal", "iron", "diamond")
ACHIEVEMENTS = (
    *("collect_wood", "place_table", "make_wood_pickaxe", "collect_stone", "make_stone_pickaxe", "collect_coal"),
    *("place_furnace", "collect_iron", "make_iron_pickaxe", "collect_diamond", "drink_water"),
)
UP, RIGHT, DOWN, LEFT, INTERACT, PLACE_TABLE, PLACE_FURNACE, MAKE_PICKAXE, STAY = range(9)
SIGHT = 3
"""Cells that are seen to each side."""
MOST = 9
"""Of every item that can be carried."""
OUTSIDE = len(MATERIALS)
_ITEM = np.asarray([-1, -1, 1, 0, 2, 3, 4, -1, -1, -1])
"""Index into `ITEMS` by material."""
_PICKAXE = np.asarray([9, 0, 1, 0, 1, 2, 3, 9, 9, 9])
"""Pickaxe that a material needs, 9 where it gives nothing."""
_COLLECTED = {TREE: 0, STONE: 3, COAL: 5, IRON: 7, DIAMOND: 9, WATER: 10}
"""Index into `ACHIEVEMENTS` by material."""
_COSTS = np.asarray([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [0] * 5])
"""Of the next pickaxe, by the one that there is, `[4, ITEMS]`."""


@struct.dataclass
class CraftState:
    """The terrain, and the agent with its belongings.

    Attributes:
        task: the task of the episode.
        terrain: int32 `[S, S]`, indices into `MATERIALS`.
        position: int32 `[2]`, row and column.
        facing: int32, move that leads to the faced side.
        inventory: int32 `[5]`, number of each of `ITEMS`.
        pickaxe: int32, 0: none, 1: wood, 2: stone, 3: iron.
        achieved: bool `[11]`, in the order of `ACHIEVEMENTS`.
        num_steps: int32, steps taken.
    """

    task: Task
    terrain: Array
    position: Array
    facing: Array
    inventory: Array
    pickaxe: Array
    achieved: Array
    num_steps: Array


def make_environment(size: int = 12, *, goals: Sequence[str] | None = None, max_steps: int = 400) -> Environment:
    """Makes a world in which achievements depend on others.

    Trees give wood; a table costs one wood. The three pickaxes cost one wood; one wood and one stone; and one wood, one
    coal and one iron. All need a table in sight, and the last one also a furnace; the furnace costs one stone, with a
    table in sight. The first pickaxe digs stone and coal, the second iron, the third diamond.

    A move to the side that the agent faces walks over grass, any other move turns it. It interacts with the cell that
    it faces, and places things there, on grass. Each of the 11 achievements pays 1 when it is first reached, and
    reaching all of them ends the episode with `info["success"]`; with `goals`, only the asked one pays 1 and ends it.
    `info["metrics"]` tells which were reached. The observation float32 consists of the view, 7 x 7 cells, each one-hot
    over ten materials (the last one is outside), the items in ninths, and one-hot vectors of four pickaxes, four sides,
    and, with several goals, the goals. The task is `{"terrain": int32 [S, S], "start": int32 [2], "inventory": int32
    [5], "pickaxe", "goal": int32}` (goal -1: everything); curricula may change all of it.

    Args:
        size: S, cells per side, even.
        goals: some of `ACHIEVEMENTS`, one per level; None for everything.
        max_steps: steps before truncation.

    Returns:
        The environment.

    Raises:
        ValueError: a size or a limit is out of its range, or a goal is unknown.

    References:
        Hafner (2022), Benchmarking the spectrum of agent capabilities (Crafter), appendix A.

    Deviation: 11 of 22 achievements: there are no creatures, hunger, sleep, plants and swords; the map ends in sight of
    most places; one action makes the next pickaxe; tables and furnaces count anywhere in sight, not only nearby; a move
    first turns the agent.
    """
    if size < 8 or size % 2:
        raise ValueError(f"`size` must be even and at least 8, got {size}; try 12.")
    if max_steps < 1:
        raise ValueError(f"`max_steps` must be at least 1, got {max_steps}; try 400.")
    _check_goals(goals)
    indices = jnp.asarray([-1] if goals is None else [ACHIEVEMENTS.index(name) for name in goals], jnp.int32)

    def sample_task(key: Array, level: Array | None = None) -> Task:
        level_key, land_key = jax.random.split(key)
        level = jax.random.randint(level_key, (), 0, len(indices)) if level is None else level
        terrain, start = sample_land(land_key, size)
        nothing = {"inventory": jnp.zeros(len(ITEMS), jnp.int32), "pickaxe": jnp.int32(0)}
        return {"terrain": terrain, "start": start, "goal": indices[level]} | nothing

    def observe(state: CraftState) -> Array:
        seen = view(state)[..., None] == jnp.arange(OUTSIDE + 1)[None, None]
        marks = [state.pickaxe == jnp.arange(4), state.facing == jnp.arange(4)]
        marks += [state.task["goal"] == indices] if len(indices) > 1 else []
        numbers = [jnp.ravel(seen), state.inventory / MOST, *marks]
        return jnp.concatenate([number.astype(jnp.float32) for number in numbers])

    def tell(state: CraftState) -> dict:
        achieved = state.achieved.astype(jnp.float32)
        metrics = {name: achieved[index] for index, name in enumerate(ACHIEVEMENTS)}
        return {"success": is_won(state), "metrics": metrics}

    def reset(key: Array, task: Task) -> tuple[CraftState, TimeStep]:
        del key
        state = CraftState(
            task=task,
            terrain=task["terrain"],
            position=task["start"],
            facing=jnp.int32(UP),
            inventory=task["inventory"],
            pickaxe=task["pickaxe"],
            achieved=jnp.zeros(len(ACHIEVEMENTS), bool),
            num_steps=jnp.int32(0),
        )
        return state, first_timestep(observe(state), info=tell(state))

    def step(key: Array, state: CraftState, action: Array) -> tuple[CraftState, TimeStep]:
        del key
        before, state = state.achieved, act(state, action)
        goal, won = state.task["goal"], is_won(state)
        every = jnp.sum(state.achieved & ~before)
        timestep = TimeStep(
            observation=observe(state),
            reward=jnp.where(goal < 0, every, won).astype(jnp.float32),
            terminated=won,
            truncated=(state.num_steps >= max_steps) & ~won,
            info=tell(state),
        )
        return state, timestep

    extra = len(indices) if len(indices) > 1 else 0
    numbers = (2 * SIGHT + 1) ** 2 * (OUTSIDE + 1) + len(ITEMS) + 8 + extra
    return absorbing(
        Environment(
            name="craft",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box((numbers,), 0.0, 1.0),
            action_space=Discrete(STAY + 1),
            max_steps=max_steps,
            render=render,
            num_levels=len(indices),
        )
    )


def view(state: CraftState) -> Array:
    """Returns the view of the agent, with itself in the middle, int32 `[7, 7]`; cells outside are `OUTSIDE`."""
    padded = jnp.pad(state.terrain, SIGHT, constant_values=OUTSIDE)
    return jax.lax.dynamic_slice(padded, (state.position[0], state.position[1]), (2 * SIGHT + 1, 2 * SIGHT + 1))


def is_won(state: CraftState) -> Array:
    """Computes whether the goal is reached, or without a goal all achievements, bool `[]`."""
    goal = state.task["goal"]
    return jnp.where(goal < 0, jnp.all(state.achieved), state.achieved[goal])


def act(state: CraftState, action: Array) -> CraftState:
    """Moves, digs, places or makes something, if it is possible."""
    seen, size = view(state), state.terrain.shape[0]
    ahead = jnp.asarray(MOVES)[state.facing]
    faced = seen[SIGHT + ahead[0], SIGHT + ahead[1]]
    wood, stone = state.inventory[0], state.inventory[1]
    table, furnace = jnp.any(seen == TABLE), jnp.any(seen == FURNACE)

    takes = (action == INTERACT) & (state.pickaxe >= jnp.asarray(_PICKAXE)[faced])
    puts_table = (action == PLACE_TABLE) & (faced == GRASS) & (wood > 0)
    puts_furnace = (action == PLACE_FURNACE) & (faced == GRASS) & (stone > 0) & table
    cost = jnp.asarray(_COSTS)[state.pickaxe]
    known = (state.pickaxe < 3) & table & (furnace | (state.pickaxe < 2))
    makes = (action == MAKE_PICKAXE) & known & jnp.all(state.inventory >= cost)

    inventory = state.inventory + takes * (jnp.arange(len(ITEMS)) == jnp.asarray(_ITEM)[faced]) - makes * cost
    inventory = inventory.at[0].add(-puts_table.astype(jnp.int32)).at[1].add(-puts_furnace.astype(jnp.int32))
    left = jnp.where((faced == TREE) | (faced == WATER), faced, GRASS)
    left = jnp.where(takes, left, jnp.where(puts_table, TABLE, jnp.where(puts_furnace, FURNACE, faced)))
    cell = state.position + ahead
    turns = action <= LEFT
    walks = turns & (action == state.facing) & (faced == GRASS)
    pickaxe = state.pickaxe + makes
    reached = {place: takes & (faced == material) for material, place in _COLLECTED.items()}
    reached |= {1: puts_table, 2: makes & (pickaxe == 1), 4: makes & (pickaxe == 2)}
    reached |= {6: puts_furnace, 8: makes & (pickaxe == 3)}
    return state.replace(
        terrain=jnp.where(mark(size, cell), left, state.terrain).astype(jnp.int32),
        position=jnp.where(walks, cell, state.position).astype(jnp.int32),
        facing=jnp.where(turns, action, state.facing).astype(jnp.int32),
        inventory=jnp.minimum(inventory, MOST).astype(jnp.int32),
        pickaxe=pickaxe.astype(jnp.int32),
        achieved=state.achieved | jnp.stack([reached[place] for place in range(len(ACHIEVEMENTS))]),
        num_steps=state.num_steps + 1,
    )


def render(state: CraftState) -> str:
    """Draws the land, the agent as an arrow, and its belongings.

    Args:
        state: state of one instance, on the host.

    Returns:
        One line per row, and one of the belongings.
    """
    rows = [[".~#Tcid+F"[cell] for cell in row] for row in np.asarray(state.terrain)]
    rows[int(state.position[0])][int(state.position[1])] = "^>v<"[int(state.facing)]
    carried = [f"{name} {number}" for name, number in zip(ITEMS, np.asarray(state.inventory)) if number]
    carried += [f"pickaxe of {('wood', 'stone', 'iron')[int(state.pickaxe) - 1]}"] if state.pickaxe else []
    return "\n".join([*("".join(row) for row in rows), ", ".join(carried) or "nothing"])


def _check_goals(goals: Sequence[str] | None) -> None:
    unknown = [goal for goal in goals or () if goal not in ACHIEVEMENTS]
    if unknown or (goals is not None and not goals):
        got = f"{unknown[0]!r}" if unknown else "none"
        raise ValueError(f"`goals` must be null or some of {', '.join(ACHIEVEMENTS)}, got {got}.")

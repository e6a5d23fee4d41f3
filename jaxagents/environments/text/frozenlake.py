"""A frozen lake in words: walk to the goal and avoid the holes; the whole lake is visible."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import board, text
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

ACTIONS = ("left", "down", "right", "up")
"""Neighbours in this list are perpendicular to each other."""
MOVES = np.asarray([(0, -1), (1, 0), (0, 1), (-1, 0)], np.int32)
"""Row and column of the actions."""
FROZEN, HOLE, GOAL, PLAYER, PLAYER_IN_HOLE, PLAYER_AT_GOAL = CELLS = ("_", "O", "G", "P", "X", "V")
ROW_END = "/"
PLAN_DISCOUNT = 0.99


@struct.dataclass
class FrozenLakeState:
    """Position of the player. Cells are numbered row by row in a grid of S columns, even on a smaller lake.

    Attributes:
        task: the task of the episode.
        plan: int32 `[S * S]`, best action in each cell.
        distance: float32 `[S * S]`, number of steps to the goal.
        position: int32, cell of the player.
    """

    task: Task
    plan: Array
    distance: Array
    position: Array


def make_environment(
    sizes: Sequence[int] = (4, 4, 6, 8),
    hole_fractions: Sequence[float] = (0.1, 0.2, 0.2, 0.2),
    *,
    slip_probability: float = 0.0,
    random_start: bool = True,
    random_goal: bool = True,
    reward: str = "sparse",
    step_penalty: float = 0.0,
    max_steps: int | None = None,
    held_out_fraction: float = 0.25,
    **options: Any,
) -> Environment:
    """Makes a frozen lake whose maps are tasks.

    The observation has a word per cell and "/" between the rows: "P" the player, "_" ice, "O" a hole, "G" the goal, "X"
    the player in a hole, "V" the player at the goal; "nothing happens ." follows an action that is not one of "left",
    "down", "right", "up". The border blocks a move. A hole ends the episode without reward, the goal with reward 1 and
    `info["success"]`. Without slipping, every map can be solved within `max_steps`; held-out tasks are maps (holes,
    start and goal) that training never sees.

    Dense rewards add the progress `phi(s') - phi(s)` with `phi(s) = 1 - d(s) / d(start)` and 0 in a hole, where d is
    the number of steps to the goal: 1 in total along any path to the goal. With slipping, `d = log V / log(0.99)` for
    the optimal discounted probability V of reaching the goal.

    The task is `{"holes": bool [S, S], "start", "goal", "size", "level": int32}`, where S is the largest size.

    Args:
        sizes: cells per side, one per level, at least 4.
        hole_fractions: probability that a cell off the path that keeps a map solvable is a hole, one per level, in (0,
            1) (Gym: 0.2).
        slip_probability: probability of moving at a right angle instead, half of it to either side (Gym: 2/3).
        random_start: whether the start is random; False: the top left corner.
        random_goal: whether the goal is random; False: the bottom right corner.
        reward: "sparse" or "dense".
        step_penalty: penalty subtracted from the reward of every step.
        max_steps: steps before truncation; None: the longest path for which a map is made, four sides less four, or
            four times that with slipping.
        held_out_fraction: fraction of the tasks that are held out.
        **options: further arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: sizes or fractions do not fit, the reward is unknown, a probability is outside of [0, 1], or the
            limit is too short to cross the lake.

    References:
        Brockman et al. (2016), OpenAI Gym, FrozenLake-v1; Wang et al. (2025), RAGEN, section 3.1.
    """
    sizes, hole_fractions = tuple(sizes), tuple(hole_fractions)
    side = max(sizes, default=0)
    longest = 4 * (side - 1) * (4 if slip_probability > 0.0 else 1)
    max_steps = longest if max_steps is None else max_steps
    _check(sizes, hole_fractions, slip_probability, max_steps)
    grammar = make_grammar(*ACTIONS, words=(*CELLS, ROW_END))

    def start(key: Array, task: Task) -> FrozenLakeState:
        del key
        plan, distance = plan_routes(task["holes"], task["goal"], task["size"], slip_probability=slip_probability)
        return FrozenLakeState(task=task, plan=plan, distance=distance, position=task["start"])

    def play(key: Array, state: FrozenLakeState, direction: Array, args: Array) -> FrozenLakeState:
        if slip_probability > 0.0:
            draw = jax.random.uniform(key)
            turn = jnp.where(draw < slip_probability / 2, 1, jnp.where(draw < slip_probability, -1, 0))
            direction = (direction + turn) % len(ACTIONS)
        position = jnp.stack(jnp.divmod(state.position, side)) + jnp.asarray(MOVES)[direction]
        position = jnp.clip(position, 0, state.task["size"] - 1)
        return state.replace(position=position[0] * side + position[1])

    world = World(
        name="frozenlake",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=len(sizes),
        sample=_make_sample(sizes, hole_fractions, random_start, random_goal, max_steps),
        identity=lambda task: (task["holes"], task["start"], task["goal"], task["size"]),
        start=start,
        situation=lambda state: state.position,
        play=play,
        status=status,
        tell=lambda state, seat: board(CELLS, seen(state), between=ROW_END),
        prompt=lambda task: text("walk to", GOAL, "and keep off", HOLE, "."),
        expert=lambda key, state: (state.plan[state.position], grammar.args(), None),
        distance=None if slip_probability > 0.0 else steps_to_goal,
        render=render,
    )
    return make_text_world(
        world, reward=reward, step_penalty=step_penalty, held_out_fraction=held_out_fraction, **options
    )


def _check(sizes: Sequence[int], hole_fractions: Sequence[float], slip: float, max_steps: int) -> None:
    if not sizes or min(sizes) < 4:
        raise ValueError(f"`sizes` must be at least 4, got {sizes}; try (4,).")
    if len(hole_fractions) != len(sizes) or not 0.0 < min(hole_fractions) <= max(hole_fractions) < 1.0:
        raise ValueError(f"`hole_fractions` must be in (0, 1), one per size, got {hole_fractions} for {sizes}.")
    if not 0.0 <= slip <= 1.0:
        raise ValueError(f"`slip_probability` must be in [0, 1], got {slip}; try 0 or 2/3.")
    if max_steps < 2 * (max(sizes) - 1):
        raise ValueError(
            f"`max_steps` must leave time to cross a lake of {max(sizes)}, got {max_steps}; try {4 * max(sizes) - 4}."
        )


def status(state: FrozenLakeState) -> Status:
    """Returns whether the lake was crossed or the player is in a hole; progress is success and share of the path."""
    success, in_hole = state.position == state.task["goal"], state.task["holes"].reshape(-1)[state.position]
    share = jnp.where(in_hole, 0.0, 1.0 - state.distance[state.position] / state.distance[state.task["start"]])
    return Status(success=success, over=success | in_hole, progress=success + share)


def steps_to_goal(state: FrozenLakeState) -> Array:
    """Returns the number of steps to the goal; `inf` if it cannot be reached."""
    steps = jnp.round(state.distance[state.position])
    stuck = state.task["holes"].reshape(-1)[state.position] | (steps > state.distance.shape[0])
    return jnp.where(stuck, jnp.inf, steps)


def seen(state: FrozenLakeState) -> Array:
    """Returns what every cell shows, an index into `CELLS`, -1 outside of the lake: int32 `[S, S]`."""
    holes = state.task["holes"]
    cells, rows, columns = np.arange(holes.size).reshape(holes.shape), *np.indices(holes.shape)
    player = jnp.where(state.position == state.task["goal"], 2, holes.reshape(-1)[state.position])
    ground = jnp.where(holes, CELLS.index(HOLE), jnp.where(cells == state.task["goal"], CELLS.index(GOAL), 0))
    kinds = jnp.where(cells == state.position, CELLS.index(PLAYER) + player, ground)
    return jnp.where((rows < state.task["size"]) & (columns < state.task["size"]), kinds, -1)


def _make_sample(
    sizes: Sequence[int], hole_fractions: Sequence[float], random_start: bool, random_goal: bool, max_steps: int
) -> Callable[[Array, Array], Task]:
    """Makes `(key, level) -> task`. A path to the goal by a random cell is drawn first, then holes off that path."""
    side = max(sizes)

    def sample(key: Array, level: Array) -> Task:
        start_key, goal_key, waypoint_key, route_key, hole_key = jax.random.split(key, 5)
        size, share = jnp.asarray(sizes, jnp.int32)[level], jnp.asarray(hole_fractions, jnp.float32)[level]
        last = size * size - 1
        # A fixed goal is the last cell, and a random one is never the start.
        start = jax.random.randint(start_key, (), 0, last + random_goal) if random_start else jnp.zeros((), jnp.int32)
        goal = jax.random.randint(goal_key, (), 0, last) if random_goal else last
        goal = goal + (goal >= start) if random_goal else goal
        waypoint = jax.random.randint(waypoint_key, (), 0, last + 1)
        start, goal, waypoint = (jnp.stack(jnp.divmod(cell, size)) for cell in (start, goal, waypoint))
        detour = jnp.sum(jnp.abs(waypoint - start)) + jnp.sum(jnp.abs(goal - waypoint))
        waypoint = jnp.where(detour <= max_steps, waypoint, start)
        route = draw_route(route_key, start, waypoint, goal, 4 * (side - 1))
        rows, columns = np.indices((side, side)).reshape(2, -1)
        cells = np.arange(side * side)
        on_route = jnp.any((route[:, 0] * side + route[:, 1])[:, None] == cells[None, :], axis=0)
        free = (rows < size) & (columns < size) & ~on_route
        holes = free & (jax.random.uniform(hole_key, cells.shape) < share)
        return {
            "holes": holes.reshape(side, side),
            "start": start[0] * side + start[1],
            "goal": goal[0] * side + goal[1],
            "size": size,
            "level": level,
        }

    return sample


def draw_route(key: Array, start: Array, waypoint: Array, goal: Array, num_moves: int) -> Array:
    """Draws a path from start to goal through the waypoint, each half uniformly among the shortest ones.

    Args:
        key: PRNG key.
        start: int32 `[2]`, row and column.
        waypoint: int32 `[2]`.
        goal: int32 `[2]`.
        num_moves: number of moves, at least the length of the path.

    Returns:
        Int32 `[num_moves + 1, 2]`, the cells of the path; the rest is filled with the goal.
    """

    def move(carry: tuple[Array, Array], draw: Array) -> tuple[tuple[Array, Array], Array]:
        position, passed = carry
        rest = jnp.where(passed, goal, waypoint) - position
        vertical = draw * jnp.sum(jnp.abs(rest)) < jnp.abs(rest[0])
        position = position + jnp.sign(rest) * jnp.stack([vertical, ~vertical])
        return (position, passed | jnp.all(position == waypoint)), position

    first = (start, jnp.all(start == waypoint))
    _, cells = jax.lax.scan(move, first, jax.random.uniform(key, (num_moves,)), unroll=4)
    return jnp.concatenate([start[None], cells])


def plan_routes(holes: Array, goal: Array, size: Array, *, slip_probability: float) -> tuple[Array, Array]:
    """Computes the best action and the distance to the goal in every cell, by value iteration.

    `V(goal) = 1`, `V(hole) = 0`, `V(s) = 0.99 max_a E[V(s') | s, a]`; without slipping, `V = 0.99^steps`.

    Args:
        holes: bool `[S, S]`.
        goal: int32 `[]`, a cell.
        size: int32 `[]`, side of the lake, at most S.
        slip_probability: see `make_environment`.

    Returns:
        Actions int32 `[S * S]` and distances `log V / log 0.99`, float32 `[S * S]`, about 1400 where the goal cannot be
        reached.
    """
    side = holes.shape[0]
    # One axis of S * S cells: loops over the short axes of a square are several times slower on XLA:CPU.
    holes, cells = holes.reshape(-1), np.arange(side * side)
    rows, columns = np.divmod(cells, side)
    targets = [(rows + row, columns + column) for row, column in MOVES]
    inside = [(row >= 0) & (row < size) & (column >= 0) & (column < size) for row, column in targets]

    def action_values(value: Array) -> list[Array]:
        padded = jnp.pad(value, side)
        first = [side + row * side + column for row, column in MOVES.tolist()]
        ahead = [padded[place : place + side * side] for place in first]
        ahead = [jnp.where(allowed, there, value) for allowed, there in zip(inside, ahead)]
        if slip_probability == 0.0:
            return ahead
        aside = [ahead[i - 1] + ahead[(i + 1) % len(ahead)] for i in range(len(ahead))]
        return [(1.0 - slip_probability) * a + slip_probability / 2 * b for a, b in zip(ahead, aside)]

    def improve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        value, _ = carry
        improved = PLAN_DISCOUNT * functools.reduce(jnp.maximum, action_values(value))
        improved = jnp.where(holes | at_goal, value, improved)
        return improved, jnp.max(jnp.abs(improved - value))

    at_goal = cells == goal
    start = (at_goal.astype(jnp.float32), jnp.ones((), jnp.float32))
    value, _ = jax.lax.while_loop(lambda carry: carry[1] > 1e-6, improve, start)
    plan = jnp.argmax(jnp.stack(action_values(value)), axis=0).astype(jnp.int32)
    return plan, jnp.log(jnp.maximum(value, 1e-6)) / np.log(PLAN_DISCOUNT)


def render(state: FrozenLakeState) -> str:
    """Draws the lake with the symbols of the observation, one line per row, on the host."""
    rows = np.asarray(seen(state)).tolist()
    return "\n".join("".join(CELLS[kind] for kind in row if kind >= 0) for row in rows if row[0] >= 0)

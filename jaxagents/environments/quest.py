"""Quests on a grid: keys, doors, lava, and treasures whose value depends on what was done before."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.contextual_gridworld import MOVES, fill_in_limits, mark
from jaxagents.environments.quest_layouts import KINDS, sample_quest
from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.types import Array, Box, Discrete, Environment, Task, TimeStep

STEPS = np.concatenate([MOVES, np.zeros((1, 2), np.int32)])
"""Row and column of the actions up, right, down, left and stay."""
GOAL, DOORKEY, LAVA, TIMER, MOVING, KEY_FIRST, CHARGER = range(len(KINDS))


@struct.dataclass
class QuestState:
    """The position of the agent, and what it did.

    Attributes:
        task: the task of the episode.
        position: int32 `[2]`, row and column.
        num_steps: int32, steps taken.
        has_key: bool, whether the key was picked up.
        charge: int32, number of steps spent on the charger.
        found: bool, whether the treasure has paid in full.
    """

    task: Task
    position: Array
    num_steps: Array
    has_key: Array
    charge: Array
    found: Array


def make_environment(
    kinds: Sequence[str] = ("doorkey",),
    size: int = 8,
    *,
    max_obstacles: int | None = None,
    wait: int | None = None,
    observe_hidden: bool = True,
    max_steps: int | None = None,
) -> Environment:
    """Makes a grid world of quests, which are tasks; `level` is an index into `kinds`.

    An agent walks or stays. Walls, borders and, without the key, the door block it; the key is picked up by walking
    over it. The first three kinds end when the treasure is reached, which pays 1; in the others, it pays in every step
    that ends on it, until `max_steps` truncates the episode.

    - goal: there are walls in the way.
    - doorkey: the treasure is behind a wall with a locked door; the key lies on the agent's side.
    - lava: there are cells that end the episode without reward.
    - timer: the treasure pays -1 before `wait` steps have passed, and 1 afterwards.
    - moving: the treasure moves back and forth in its row, one cell per step.
    - key_first: the treasure pays nothing without the key.
    - charger: the treasure pays the share of `wait` steps that were spent on the charger, at most 1.

    `info["success"]` tells whether it has paid 1 in this episode. The observation float32 `[S, S, C]` has the channels
    agent, wall and treasure; door, key, lava and charger if a kind has them; with `observe_hidden`, a channel with the
    same number in all cells (the share of the wait, or of the way back and forth, that has passed; 1 with the key; the
    share of the charge); and with several kinds one channel for each. The task is `{"kind", "wait", "patrol": int32,
    "walls", "lava": bool [S, S], "start", "treasure", "key", "door", "charger": int32 [2]}`, with position -1 for what
    does not exist.

    Args:
        kinds: some of `quest_layouts.KINDS`, drawn uniformly if no level is given.
        size: S, cells per side.
        max_obstacles: maximum number of walls of `goal` and of cells of lava, drawn uniformly from 0; None: a quarter
            of the cells.
        wait: steps of the timer and of a full charge; None: a quarter of `max_steps`.
        observe_hidden: False: the map is shown as at the start: the key stays visible, the treasure does not move.
        max_steps: steps before truncation; None: the number of cells.

    Returns:
        The environment.

    Raises:
        ValueError: a kind is unknown, the grid is smaller than 4, there are too many obstacles, or a limit leaves no
            time.

    References:
        Early, Bewley, Evers and Ramchurn (2022), Non-Markovian reward modelling from trajectory labels, section 4 (the
        last four kinds). Chevalier-Boisvert et al. (2023), Minigrid (doorkey and lava).

    Deviation: from the first, cells in place of continuous positions. From the second, the agent has no direction,
    takes the key and opens the door by walking, sees everything, and is paid 1 however long it took.
    """
    kinds = tuple(kinds)
    check_kinds(kinds)
    if size < 4:
        raise ValueError(f"`size` must be at least 4, got {size}; try 8.")
    max_obstacles, max_steps = fill_in_limits(size, max_obstacles, max_steps)
    wait = max(max_steps // 4, 1) if wait is None else wait
    if not 1 <= wait < max_steps and {"timer", "charger"} & set(kinds):
        raise ValueError(f"`wait` must be from 1 to {max_steps - 1}, below `max_steps`, got {wait}.")
    channels, indices = (
        channels_of(kinds, observe_hidden),
        jnp.asarray([KINDS.index(kind) for kind in kinds], jnp.int32),
    )

    def sample_task(key: Array, level: Array | None = None) -> Task:
        level_key, layout_key = jax.random.split(key)
        level = jax.random.randint(level_key, (), 0, len(kinds)) if level is None else level
        kind = indices[level]
        return sample_quest(layout_key, kind, size=size, kinds=kinds, max_obstacles=max_obstacles, wait=wait)

    def observe(state: QuestState) -> Array:
        layers = _layers(state, size, observe_hidden)
        planes = [layers[name] for name in channels]
        if len(kinds) > 1:
            planes += [jnp.full((size, size), state.task["kind"] == index) for index in indices]
        return jnp.stack([plane.astype(jnp.float32) for plane in planes], axis=-1)

    def reset(key: Array, task: Task) -> tuple[QuestState, TimeStep]:
        del key
        no, zero = jnp.zeros((), bool), jnp.zeros((), jnp.int32)
        state = QuestState(task=task, position=task["start"], num_steps=zero, has_key=no, charge=zero, found=no)
        return state, first_timestep(observe(state), info={"success": no})

    def step(key: Array, state: QuestState, action: Array) -> tuple[QuestState, TimeStep]:
        del key
        state = move(state, action)
        pay, over = payment(state), is_over(state)
        timestep = TimeStep(
            observation=observe(state),
            reward=pay,
            terminated=over,
            truncated=(state.num_steps >= max_steps) & ~over,
            info={"success": state.found},
        )
        return state, timestep

    return absorbing(
        Environment(
            name="quest",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box((size, size, len(channels) + (len(kinds) if len(kinds) > 1 else 0)), 0.0, 1.0),
            action_space=Discrete(len(STEPS)),
            max_steps=max_steps,
            render=render,
            num_levels=len(kinds),
        )
    )


def move(state: QuestState, action: Array) -> QuestState:
    """Walks one step, and picks up the key, charges, and finds the treasure if it is there."""
    task = state.task
    target = jnp.clip(state.position + jnp.asarray(STEPS)[action], 0, task["walls"].shape[0] - 1)
    locked = _same(target, task["door"]) & ~state.has_key
    position = jnp.where(task["walls"][target[0], target[1]] | locked, state.position, target)
    state = state.replace(
        position=position,
        num_steps=state.num_steps + 1,
        has_key=state.has_key | _same(position, task["key"]),
        charge=state.charge + _same(position, task["charger"]),
    )
    return state.replace(found=state.found | (payment(state) >= 1.0))


def payment(state: QuestState) -> Array:
    """Computes the payment of the treasure at the agent's current position, float32 `[]`."""
    kind, wait = state.task["kind"], state.task["wait"]
    share = jnp.minimum(state.charge / wait, 1.0)
    worth = jnp.where(kind == TIMER, jnp.where(state.num_steps >= wait, 1.0, -1.0), 1.0)
    worth = jnp.where(kind == KEY_FIRST, state.has_key, worth)
    worth = jnp.where(kind == CHARGER, share, worth)
    return jnp.where(_same(state.position, treasure(state.task, state.num_steps)), worth, 0.0).astype(jnp.float32)


def treasure(task: Task, time: Array) -> Array:
    """Computes the cell of the treasure after `time` steps, int32 `[2]`."""
    phase = time % jnp.maximum(2 * task["patrol"], 1)
    return task["treasure"].at[1].add(task["patrol"] - jnp.abs(phase - task["patrol"]))


def is_over(state: QuestState) -> Array:
    """Computes whether the agent entered lava, or reached a treasure that ends the episode."""
    burnt = state.task["lava"][state.position[0], state.position[1]]
    return burnt | ((state.task["kind"] <= LAVA) & _same(state.position, state.task["treasure"]))


def render(state: QuestState) -> str:
    """Draws the grid: `@` the agent, `G` the treasure, `K` key, `D` door, `C` charger, `~` lava, `#` walls.

    Args:
        state: state of one instance, on the host.

    Returns:
        One line per row.
    """
    task = state.task
    rows = [["#" if wall else "." for wall in row] for row in np.asarray(task["walls"])]
    for row, column in np.argwhere(np.asarray(task["lava"])):
        rows[row][column] = "~"
    places = {"D": task["door"], "C": task["charger"], "G": treasure(task, state.num_steps)}
    places |= {} if state.has_key else {"K": task["key"]}
    for glyph, place in (places | {"@": state.position}).items():
        row, column = np.asarray(place)
        if row >= 0:
            rows[row][column] = glyph
    return "\n".join("".join(row) for row in rows)


def _layers(state: QuestState, size: int, observe_hidden: bool) -> dict[str, Array]:
    """Returns all that can be seen of a state, `[S, S]` by name."""
    task, time = state.task, state.num_steps
    seen = mark(size, task["key"])
    kind, waited = task["kind"], jnp.minimum(time / task["wait"], 1.0)
    patrol = jnp.maximum(2 * task["patrol"], 1)
    number = jnp.where(kind == TIMER, waited, state.has_key.astype(jnp.float32))
    number = jnp.where(kind == MOVING, (time % patrol) / patrol, number)
    number = jnp.where(kind == CHARGER, jnp.minimum(state.charge / task["wait"], 1.0), number)
    return {
        "agent": mark(size, state.position),
        "wall": task["walls"],
        "treasure": mark(size, treasure(task, time) if observe_hidden else task["treasure"]),
        "door": mark(size, task["door"]),
        "key": seen & ~state.has_key if observe_hidden else seen,
        "lava": task["lava"],
        "charger": mark(size, task["charger"]),
        "hidden": jnp.full((size, size), number),
    }


def channels_of(kinds: tuple[str, ...], observe_hidden: bool) -> tuple[str, ...]:
    """Returns the names of the channels that some kind needs."""
    needed = {
        "door": {"doorkey"},
        "key": {"doorkey", "key_first"},
        "lava": {"lava"},
        "charger": {"charger"},
        "hidden": set(KINDS) - {"goal", "lava"} if observe_hidden else set(),
    }
    return ("agent", "wall", "treasure", *(name for name, users in needed.items() if users & set(kinds)))


def check_kinds(kinds: tuple[str, ...]) -> None:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if not kinds or unknown:
        got = f"{unknown[0]!r}" if unknown else "none"
        raise ValueError(f"`kinds` must be some of {', '.join(KINDS)}, got {got}.")


def _same(one: Array, other: Array) -> Array:
    return jnp.all(one == other)

"""A table on which pushers move discs to goals: manipulation without a physics engine."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, Box, Environment, State, Task, TimeStep

PUSHER_RADIUS, DISC_RADIUS = 0.05, 0.08
"""In sides of the table."""
TOLERANCE = 0.05
"""Distance of a disc from its goal at which it has arrived."""
NUM_SUBSTEPS = 4
CANDIDATES = 16
"""Places that are tried for everything on the table."""


@struct.dataclass
class TabletopState:
    """Positions on the table.

    Attributes:
        task: the task of the episode.
        pushers: float32 `[P, 2]`, in `[0, 1]`.
        discs: float32 `[O, 2]`.
        num_steps: int32, steps taken.
    """

    task: Task
    pushers: Array
    discs: Array
    num_steps: Array


def make_environment(
    *,
    num_pushers: int = 1,
    num_discs: int = 1,
    num_goals: int = 1,
    regions: Sequence[Sequence[float]] = ((0.25, 0.25, 0.75, 0.75),),
    max_displacement: float = 0.08,
    gain: float = 1.0,
    friction: float = 0.0,
    progress_reward: float = 0.0,
    raster: int | None = None,
    ends: bool = True,
    max_steps: int = 40,
) -> Environment:
    """Makes a table of unit size with pushers, discs and goals, where one disc is to be pushed to one goal.

    An action float32 `[2 P]` in [-1, 1] displaces every pusher by at most `gain * max_displacement` along each axis, in
    four substeps. After each, a disc that a pusher overlaps moves out of it along the line between their centres, and
    by `friction` times the pusher's motion across that line; discs push each other apart, walls stop them, and blocked
    discs stop pushers. There is no inertia. Without discs, the first pusher itself is to reach the goal.

    An episode ends with reward 1 and `info["success"]` when the asked disc is within 0.05 of the asked goal. The
    observation float32 `[D]` consists of pushers, discs and goals, two numbers each, and one-hot vectors of the asked
    disc and the asked goal, if there are several. The task is `{"pushers": [P, 2], "discs": [O, 2], "goals": [G, 2],
    "asked": int32 [2] (disc, goal), "gain", "friction"}`: different robots are different tasks, too. `level` is an
    index into `regions`.

    Args:
        num_pushers: P, number of pushers.
        num_discs: O, number of discs; 0 makes a reaching task.
        num_goals: G, number of goals.
        regions: regions in which discs start, each `[left, lower, right, upper]`; drawn uniformly if no level is given.
        max_displacement: maximum displacement, in sides of the table.
        gain: factor of the actions; not observed.
        friction: friction in [0, 1]; not observed.
        progress_reward: reward per unit of distance by which the disc gets nearer to its goal.
        raster: R, for observations that are pictures float32 `[R, R, 3]` of pushers, discs and goals, with the ones not
            asked for at half intensity; None: numbers.
        ends: whether success ends the episode; otherwise every step with success pays 1.
        max_steps: steps before truncation.

    Returns:
        The environment.

    Raises:
        ValueError: a count, a region or a number is out of its range.

    Deviation: only circles and normals, after the pushing tasks of robot learning; no masses, no rotation.
    """
    check_counts(num_pushers=num_pushers, num_goals=num_goals, max_steps=max_steps)
    if num_discs < 0:
        raise ValueError(f"`num_discs` must not be negative, got {num_discs}; try 1, or 0 for reaching.")
    if not 0.0 < max_displacement * gain <= NUM_SUBSTEPS * PUSHER_RADIUS:
        most = NUM_SUBSTEPS * PUSHER_RADIUS
        raise ValueError(f"`max_displacement` times `gain` must be in (0, {most}], got {max_displacement} and {gain}.")
    if not 0.0 <= friction <= 1.0:
        raise ValueError(f"`friction` must be in [0, 1], got {friction}; try 0.5.")
    if raster is not None and raster < 4:
        raise ValueError(f"`raster` must be at least 4 pixels or null, got {raster}; try 16.")
    _check_regions(regions)
    spots = jnp.asarray(regions, jnp.float32)
    observe = _draw(raster) if raster is not None else _list
    robot = {"gain": jnp.float32(gain), "friction": jnp.float32(friction)}

    def sample_task(key: Array, level: Array | None = None) -> Task:
        level_key, asked_key, place_key = jax.random.split(key, 3)
        level = jax.random.randint(level_key, (), 0, len(regions)) if level is None else level
        everywhere = jnp.asarray([0.1, 0.1, 0.9, 0.9])
        where = [spots[level]] * num_discs + [everywhere] * (num_goals + num_pushers)
        places = _place_apart(place_key, jnp.stack(where))
        discs, goals, pushers = jnp.split(places, [num_discs, num_discs + num_goals])
        asked = jax.random.randint(asked_key, (2,), 0, jnp.asarray([max(num_discs, 1), num_goals]))
        return {"pushers": pushers, "discs": discs, "goals": goals, "asked": asked} | robot

    def reset(key: Array, task: Task) -> tuple[TabletopState, TimeStep]:
        del key
        zero = jnp.zeros((), jnp.int32)
        state = TabletopState(task=task, pushers=task["pushers"], discs=task["discs"], num_steps=zero)
        return state, first_timestep(observe(state), info={"success": jnp.zeros((), bool)})

    def step(key: Array, state: TabletopState, action: Array) -> tuple[TabletopState, TimeStep]:
        del key
        before = distance(state)
        displacement = state.task["gain"] * max_displacement * jnp.clip(action, -1.0, 1.0).reshape(num_pushers, 2)
        pushers, discs = state.pushers, state.discs
        for _ in range(NUM_SUBSTEPS):
            pushers, discs = push(pushers, discs, displacement / NUM_SUBSTEPS, friction=state.task["friction"])
        state = state.replace(pushers=pushers, discs=discs, num_steps=state.num_steps + 1)
        after = distance(state)
        success = after <= TOLERANCE
        timestep = TimeStep(
            observation=observe(state),
            reward=success.astype(jnp.float32) + progress_reward * (before - after),
            terminated=success & ends,
            truncated=(state.num_steps >= max_steps) & ~(success & ends),
            info={"success": success},
        )
        return state, timestep

    several = [count for count in (num_discs, num_goals) if count > 1]
    numbers = Box((2 * (num_pushers + num_discs + num_goals) + sum(several),), 0.0, 1.0)
    return absorbing(
        Environment(
            name="tabletop",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=numbers if raster is None else Box((raster, raster, 3), 0.0, 1.0),
            action_space=Box((2 * num_pushers,), -1.0, 1.0),
            max_steps=max_steps,
            render=render,
            num_levels=len(regions),
        )
    )


def push(pushers: Array, discs: Array, displacement: Array, *, friction: Array | float) -> tuple[Array, Array]:
    """Moves the pushers, and pushes what they meet out of their way.

    Args:
        pushers: float32 `[P, 2]`.
        discs: float32 `[O, 2]`.
        displacement: float32 `[P, 2]`, small compared to the discs.
        friction: share of a pusher's motion along the edge of a disc that the disc follows.

    Returns:
        Pushers and discs after the motion.
    """
    pushers = jnp.clip(pushers + displacement, PUSHER_RADIUS, 1.0 - PUSHER_RADIUS)
    normal, overlap = _overlaps(pushers, discs, PUSHER_RADIUS + DISC_RADIUS)
    along = displacement[:, None] - jnp.sum(displacement[:, None] * normal, axis=-1, keepdims=True) * normal
    moved = overlap * normal + jnp.where(overlap > 0.0, friction * along, 0.0)
    discs = discs + jnp.sum(moved, axis=0)
    normal, overlap = _overlaps(discs, discs, 2 * DISC_RADIUS)
    apart = overlap * normal * (1.0 - jnp.eye(discs.shape[0]))[..., None]
    discs = jnp.clip(discs + 0.5 * jnp.sum(apart, axis=0), DISC_RADIUS, 1.0 - DISC_RADIUS)
    normal, overlap = _overlaps(pushers, discs, PUSHER_RADIUS + DISC_RADIUS)
    pushers = pushers - jnp.sum(overlap * normal, axis=1)
    return jnp.clip(pushers, PUSHER_RADIUS, 1.0 - PUSHER_RADIUS), discs


def distance(state: TabletopState) -> Array:
    """Computes the distance of the asked disc (without discs, the first pusher) to the asked goal, float32 `[]`."""
    disc, goal = state.task["asked"]
    moved = state.discs[disc] if state.discs.shape[0] else state.pushers[0]
    return jnp.linalg.norm(moved - state.task["goals"][goal])


def reverse(task: Task) -> Task:
    """Makes the task that undoes a task: the asked disc starts at its goal, and is to go back to its start.

    Args:
        task: task of a world with discs, or without, in which case the first pusher itself goes back.

    Returns:
        The task; everything else starts in the same place.
    """
    disc, goal = task["asked"]
    moved, index = ("discs", disc) if task["discs"].shape[-2] else ("pushers", 0)
    start, end = task[moved][index], task["goals"][goal]
    return task | {moved: task[moved].at[index].set(end), "goals": task["goals"].at[goal].set(start)}


def resume(task: Task, state: State) -> Task:
    """Makes the task that starts with the current positions.

    Args:
        task: task that gives goals and robot.
        state: state of the environment of `make_environment`.

    Returns:
        The task; discs that lie so near to a wall that no pusher fits behind them are moved off it.
    """
    reachable = DISC_RADIUS + 2 * PUSHER_RADIUS
    table = state.inner
    return task | {"pushers": table.pushers, "discs": jnp.clip(table.discs, reachable, 1.0 - reachable)}


def undo(task: Task, state: State) -> Task:
    """Makes the task that brings the asked disc back to its start in another task, from the current positions.

    Args:
        task: task that is undone, see `reverse`.
        state: see `resume`.
    """
    return resume(reverse(task), state)


def render(state: TabletopState) -> str:
    """Draws the table in 20 x 20 characters: `G` the asked goal, `O` the asked disc, `g`, `o` the others, `@` pushers.

    Args:
        state: state of one instance, on the host.

    Returns:
        One line per row, the upper edge first.
    """
    rows = [["."] * 20 for _ in range(20)]
    disc, goal = np.asarray(state.task["asked"])
    things = [("G" if i == goal else "g", place) for i, place in enumerate(state.task["goals"])]
    things += [("O" if i == disc else "o", place) for i, place in enumerate(state.discs)]
    for glyph, place in [*things, *(("@", place) for place in state.pushers)]:
        column, row = np.clip((np.asarray(place) * 20).astype(int), 0, 19)
        rows[19 - row][column] = glyph
    return "\n".join("".join(row) for row in rows)


def _overlaps(one: Array, other: Array, reach: float) -> tuple[Array, Array]:
    """Returns directions from one to the other `[A, B, 2]`, and depths of their overlaps, at least 0, `[A, B, 1]`."""
    between = other[None] - one[:, None]
    length = jnp.sqrt(jnp.sum(jnp.square(between), axis=-1, keepdims=True))
    normal = jnp.where(
        length > 1e-6, between / jnp.maximum(length, 1e-6), jnp.broadcast_to(jnp.asarray([1.0, 0.0]), between.shape)
    )
    return normal, jnp.maximum(reach - length, 0.0)


def _place_apart(key: Array, regions: Array) -> Array:
    """Draws a place in each region `[K, 4]`, one after the other, apart from the earlier ones; float32 `[K, 2]`."""
    count = regions.shape[0]
    drawn = jax.random.uniform(key, (count, CANDIDATES, 2))
    candidates = regions[:, None, :2] + drawn * (regions[:, None, 2:] - regions[:, None, :2])
    places = jnp.full((count, 2), jnp.inf, jnp.float32)
    for index in range(count):
        near = jnp.min(jnp.linalg.norm(candidates[index, :, None] - places[None], axis=-1), axis=-1)
        # The first one that is far enough; the farthest if none is.
        chosen = jnp.argmax(jnp.minimum(near, 2.5 * DISC_RADIUS))
        places = places.at[index].set(candidates[index, chosen])
    return places


def _list(state: TabletopState) -> Array:
    """Returns the numbers of a state, float32 `[D]`."""
    places = [state.pushers, state.discs, state.task["goals"]]
    counts = (state.discs.shape[0], state.task["goals"].shape[0])
    asked = [jnp.arange(count) == state.task["asked"][i] for i, count in enumerate(counts) if count > 1]
    return jnp.concatenate([jnp.ravel(place) for place in places] + [one.astype(jnp.float32) for one in asked])


def _draw(size: int) -> Callable[[TabletopState], Array]:
    """Makes the function that draws a state as discs with soft edges, float32 `[R, R, 3]`, the upper edge first."""
    middle = (jnp.arange(size) + 0.5) / size

    def layer(places: Array, radius: float, strength: Array) -> Array:
        rows = jnp.square(middle[::-1][:, None] - places[None, :, 1])
        columns = jnp.square(middle[:, None] - places[None, :, 0])
        away = jnp.sqrt(rows[:, None] + columns[None, :])
        covered = jnp.clip((radius - away) * size + 0.5, 0.0, 1.0)
        return jnp.max(strength[None, None] * covered, axis=-1, initial=0.0)

    def observe(state: TabletopState) -> Array:
        goals, (disc, goal) = state.task["goals"], state.task["asked"]
        asked = [jnp.where(jnp.arange(len(one)) == i, 1.0, 0.5) for one, i in ((state.discs, disc), (goals, goal))]
        layers = [
            layer(state.pushers, PUSHER_RADIUS, jnp.ones(len(state.pushers))),
            layer(state.discs, DISC_RADIUS, asked[0]),
            layer(goals, DISC_RADIUS, asked[1]),
        ]
        return jnp.stack(layers, axis=-1)

    return observe


def _check_regions(regions: Sequence[Sequence[float]]) -> None:
    def inside(region: Sequence[float]) -> bool:
        low, high = DISC_RADIUS, 1.0 - DISC_RADIUS
        return len(region) == 4 and all(low <= region[i] <= region[i + 2] <= high for i in (0, 1))

    if not regions or not all(map(inside, regions)):
        raise ValueError(
            f"`regions` must be some of [left, lower, right, upper], {DISC_RADIUS} from the edges, got {regions}; try "
            "[[0.25, 0.25, 0.75, 0.75]]."
        )

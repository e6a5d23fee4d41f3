"""The contextual grid world: dynamics, solvable layouts, and what is refused."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import contextual_gridworld as gridworld
from tests.fakes import play_actions

KEY = jax.random.key(0)
UP, RIGHT, DOWN, LEFT = range(4)
# S . .
# . # .
# . . G
TASK = {
    "walls": jnp.zeros((3, 3), bool).at[1, 1].set(True),
    "start": jnp.asarray([0, 0], jnp.int32),
    "goal": jnp.asarray([2, 2], jnp.int32),
}


def play(environment, actions):
    return play_actions(environment.reset, environment.step, TASK, actions, KEY)


def test_moves_borders_and_walls():
    state, _ = play(gridworld.make_environment(3), [UP, LEFT, DOWN, RIGHT])
    assert state.inner.position.tolist() == [1, 0]


def test_goal_ends_with_reward_and_success():
    _, timesteps = play(gridworld.make_environment(3, step_penalty=0.5), [DOWN, DOWN, RIGHT, RIGHT, UP])
    assert [float(t.reward) for t in timesteps] == [0, -0.5, -0.5, -0.5, 0.5, 0]
    assert [bool(t.terminated) for t in timesteps] == [False] * 4 + [True] * 2
    assert bool(timesteps[-1].info["success"])


def test_truncation_is_not_termination():
    _, timesteps = play(gridworld.make_environment(3, max_steps=2), [UP, UP])
    assert bool(timesteps[-1].truncated) and not bool(timesteps[-1].terminated)


def test_observation_channels():
    _, (timestep,) = play(gridworld.make_environment(3), [])
    assert timestep.observation.shape == (3, 3, 3)
    assert [np.argwhere(timestep.observation[..., c]).tolist() for c in range(3)] == [[[0, 0]], [[1, 1]], [[2, 2]]]


def test_hidden_goal_has_no_channel():
    environment = gridworld.make_environment(3, observe_goal=False)
    _, (timestep,) = play(environment, [])
    assert timestep.observation.shape == environment.observation_space.shape == (3, 3, 2)


def reachable(walls, start, goal):
    """Breadth-first search."""
    queue, seen = deque([start]), {start}
    while queue:
        row, column = queue.popleft()
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < len(walls) and 0 <= cell[1] < len(walls)
            if inside and cell not in seen and not walls[cell]:
                seen.add(cell)
                queue.append(cell)
    return goal in seen


@pytest.mark.parametrize("size", [2, 5])
def test_the_hardest_layouts_have_all_obstacles_and_a_way(size):
    most = size * size // 4
    layouts = jax.jit(jax.vmap(lambda key: gridworld.sample_layout(key, size, most)))(jax.random.split(KEY, 100))
    for walls, start, goal in zip(*(np.asarray(layouts[name]) for name in ("walls", "start", "goal")), strict=True):
        assert walls.sum() == most
        assert tuple(start) != tuple(goal)
        assert not walls[tuple(start)] and not walls[tuple(goal)]
        assert reachable(walls, tuple(start), tuple(goal))


def test_is_connected_says_no_behind_a_wall():
    walls = jnp.zeros((3, 3), bool).at[:, 1].set(True)
    assert not gridworld.is_connected(walls, jnp.asarray([0, 0]), jnp.asarray([2, 2]))
    assert gridworld.is_connected(walls.at[1, 1].set(False), jnp.asarray([0, 0]), jnp.asarray([2, 2]))


def test_level_is_the_number_of_obstacles():
    environment = gridworld.make_environment(4, max_obstacles=3)
    sample = jax.jit(environment.sample_task)
    assert [int(sample(KEY, level)["walls"].sum()) for level in (0, 1, 3)] == [0, 1, 3]
    drawn = jax.jit(jax.vmap(environment.sample_task))(jax.random.split(KEY, 64))
    assert np.unique(drawn["walls"].sum(axis=(1, 2))).tolist() == [0, 1, 2, 3]


def test_render():
    environment = gridworld.make_environment(3)
    state, _ = play(environment, [RIGHT])
    assert environment.render(state) == ".@.\n.#.\n..G"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "`size` must be at least 2, got 1"),
        ({"size": 4, "max_obstacles": 5}, "`max_obstacles` must be from 0 to 4 in a grid of 4, got 5"),
        ({"size": 4, "max_steps": 0}, "`max_steps` must be at least 1, got 0; try 16"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        gridworld.make_environment(**arguments)

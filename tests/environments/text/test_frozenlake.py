"""The frozen lake: what is seen, how it ends, what dense rewards add up to, and which maps there are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import frozenlake
from jaxagents.environments.text.words import sentence
from tests.fakes import play_actions

KEY = jax.random.key(0)
LEFT, DOWN, RIGHT, UP = range(4)
SMALL = {"sizes": (4,), "hole_fractions": (0.2,)}


def make_task(rows, side=4):
    """A task from a drawing; `S` is the start."""
    grid = np.full((side, side), "_")
    for row, line in enumerate(rows):
        grid[row, : len(line)] = list(line)
    cells = grid.reshape(-1).tolist()
    numbers = {"start": cells.index("S"), "goal": cells.index("G"), "size": len(rows), "level": 0}
    return {"holes": jnp.asarray(grid == "O"), **{k: jnp.asarray(v, jnp.int32) for k, v in numbers.items()}}


MAP = make_task(["S___", "OO__", "____", "G__O"])


@functools.cache
def functions(**options):
    environment = frozenlake.make_environment(**options)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def play(task, directions, **options):
    environment, reset, step = functions(**{**SMALL, **options})
    actions = [environment.text.actions[one] if one in range(4) else np.array([one], np.int32) for one in directions]
    state, timesteps = play_actions(reset, step, task, actions, KEY)
    return environment, state, timesteps


def texts(environment, timesteps):
    return [sentence(environment.text.words, timestep.observation) for timestep in timesteps]


def test_the_lake_is_seen_in_words():
    environment, state, timesteps = play(MAP, [RIGHT, UP, -1])
    assert texts(environment, timesteps) == [
        "P _ _ _ / O O _ _ / _ _ _ _ / G _ _ O",
        "_ P _ _ / O O _ _ / _ _ _ _ / G _ _ O",
        "_ P _ _ / O O _ _ / _ _ _ _ / G _ _ O",
        "_ P _ _ / O O _ _ / _ _ _ _ / G _ _ O nothing happens .",
    ]
    # The border stops a move, which is still a valid one; -1 is none.
    assert [bool(t.info["valid"]) for t in timesteps] == [True, True, True, False]
    assert environment.render(state) == "_P__\nOO__\n____\nG__O"


def test_a_hole_ends_the_episode_without_reward():
    environment, state, timesteps = play(MAP, [DOWN, RIGHT])
    assert texts(environment, timesteps)[1] == "_ _ _ _ / X O _ _ / _ _ _ _ / G _ _ O"
    assert [bool(t.terminated) for t in timesteps] == [False, True, True]
    assert not any(float(t.reward) or bool(t.info["success"]) for t in timesteps)
    assert environment.render(state).splitlines()[1] == "XO__"


def test_the_goal_ends_the_episode_with_reward_one():
    way = [RIGHT, RIGHT, DOWN, DOWN, LEFT, LEFT, DOWN]
    environment, state, timesteps = play(MAP, way)
    assert texts(environment, timesteps)[-1] == "_ _ _ _ / O O _ _ / _ _ _ _ / V _ _ O"
    assert [float(t.reward) for t in timesteps] == [0.0] * 7 + [1.0]
    assert bool(timesteps[-1].terminated) and bool(timesteps[-1].info["success"])
    assert environment.render(state).splitlines()[3] == "V__O"


def test_the_limit_truncates_and_steps_cost():
    _, _, timesteps = play(MAP, [UP] * 6, max_steps=6, step_penalty=0.25)
    assert [bool(t.truncated) for t in timesteps] == [False] * 6 + [True]
    assert [float(t.reward) for t in timesteps] == [0.0] + [-0.25] * 6
    assert not bool(timesteps[-1].terminated)


def test_dense_rewards_are_the_progress():
    # Seven steps from the start, six after the first; a hole takes the progress back.
    _, _, timesteps = play(MAP, [RIGHT, DOWN], reward="dense")
    np.testing.assert_allclose([t.reward for t in timesteps], [0.0, 1 / 7, -1 / 7], atol=1e-4)
    _, _, timesteps = play(MAP, [RIGHT, LEFT, RIGHT, RIGHT, DOWN, DOWN, LEFT, LEFT, DOWN], reward="dense")
    np.testing.assert_allclose(sum(float(t.reward) for t in timesteps), 2.0, atol=1e-4)
    np.testing.assert_allclose(timesteps[2].reward, -1 / 7, atol=1e-4)


def test_a_smaller_lake_has_its_border_inside_the_grid():
    small = make_task(["S__", "___", "__G"])
    environment, _, timesteps = play(small, [RIGHT, RIGHT, RIGHT, DOWN, DOWN])
    assert texts(environment, timesteps)[3] == "_ _ P / _ _ _ / _ _ G"
    assert bool(timesteps[5].info["success"])


def test_plan_and_distance_by_hand():
    plan, distance = jax.jit(functools.partial(frozenlake.plan_routes, slip_probability=0.0))(
        MAP["holes"], MAP["goal"], MAP["size"]
    )
    expected = [[7, 6, 5, 6], [np.inf, np.inf, 4, 5], [1, 2, 3, 4], [0, 1, 2, np.inf]]
    reachable = np.isfinite(expected)
    np.testing.assert_allclose(distance.reshape(4, 4)[reachable], np.asarray(expected)[reachable], atol=1e-3)
    assert (distance.reshape(4, 4)[~reachable] > 1000).all()
    assert plan.reshape(4, 4)[0].tolist() == [RIGHT, RIGHT, DOWN, LEFT]


def test_plan_of_a_slippery_lake_keeps_away_from_holes():
    # In the corridor between the border and the holes, moving up can only slip sideways, never into a hole.
    task = make_task(["S___", "OOO_", "____", "G___"])
    plan, distance = jax.jit(functools.partial(frozenlake.plan_routes, slip_probability=2 / 3))(
        task["holes"], task["goal"], task["size"]
    )
    assert plan.reshape(4, 4)[0, :3].tolist() == [UP, UP, UP]
    assert (distance[:3] > 7).all()


def test_slipping_happens_as_often_as_said():
    environment, reset, _ = functions(**SMALL, slip_probability=0.5)
    task = make_task(["____", "_S__", "____", "___G"])
    state, _ = reset(KEY, task)
    action = jnp.asarray(environment.text.actions[RIGHT])
    step = jax.jit(jax.vmap(lambda key: environment.step(key, state, action)[0].inner.position))
    positions = np.asarray(step(jax.random.split(KEY, 2000)))
    # From cell 5: right 6, up 1, down 9. Four standard deviations are 0.045.
    shares = [(positions == cell).mean() for cell in (6, 1, 9)]
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.045)


@pytest.mark.parametrize("fixed", [True, False])
def test_maps_are_as_asked_for_and_solvable_in_time(fixed):
    environment = frozenlake.make_environment(
        (4, 6), (0.2, 0.2), random_start=not fixed, random_goal=not fixed, max_steps=10
    )
    keys = jax.random.split(KEY, 200)
    task = jax.device_get(jax.jit(jax.vmap(lambda key: environment.sample_task(key, 1)))(keys))
    rows = np.arange(200)
    holes = task["holes"].reshape(200, -1)
    assert (task["size"] == 6).all() and (task["start"] != task["goal"]).all()
    assert not holes[rows, task["start"]].any() and not holes[rows, task["goal"]].any()
    assert 0.05 < holes.mean() < 0.2
    assert (set(task["start"].tolist()) == {0}) == (set(task["goal"].tolist()) == {35}) == fixed
    assert len(set(task["start"].tolist())) == (1 if fixed else 36)
    plan = jax.jit(jax.vmap(functools.partial(frozenlake.plan_routes, slip_probability=0.0)))
    _, distance = plan(task["holes"], task["goal"], task["size"])
    assert distance[rows, task["start"]].max() < 10.5


def test_routes_are_connected_and_pass_the_waypoint():
    start, waypoint, goal = (jnp.asarray(cell) for cell in ((3, 0), (0, 2), (2, 3)))
    route = jax.jit(lambda key: frozenlake.draw_route(key, start, waypoint, goal, 12))
    for seed in range(5):
        cells = np.asarray(route(jax.random.key(seed)))
        lengths = np.abs(np.diff(cells, axis=0)).sum(axis=1)
        assert lengths.tolist() == [1] * 8 + [0] * 4
        assert cells[0].tolist() == [3, 0] and cells[5].tolist() == [0, 2] and cells[-1].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": (3,), "hole_fractions": (0.1,)}, "`sizes` must be at least 4"),
        ({"sizes": ()}, "`sizes` must be at least 4"),
        ({"sizes": (4, 4), "hole_fractions": (0.1,)}, "`hole_fractions` must be in"),
        ({"sizes": (4,), "hole_fractions": (1.0,)}, "`hole_fractions` must be in"),
        ({"slip_probability": 1.5}, "`slip_probability` must be in"),
        ({"reward": "shaped"}, '`reward` must be "sparse" or "dense"'),
        ({"max_steps": 13}, "`max_steps` must leave time to cross a lake of 8, got 13; try 28"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        frozenlake.make_environment(**options)

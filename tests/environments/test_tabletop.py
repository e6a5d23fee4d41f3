"""The tabletop: what pushing does, when it is done, what is seen, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tabletop
from tests.fakes import play_actions

KEY = jax.random.key(0)
PUSH = jax.jit(tabletop.push)
WORLD = tabletop.make_environment(progress_reward=2.0, max_steps=3)
RESET, STEP = jax.jit(WORLD.reset), jax.jit(WORLD.step)


def task_of(pusher, disc, goal):
    places = {"pushers": [pusher], "discs": [disc], "goals": [goal]}
    arrays = {name: jnp.asarray(place, jnp.float32) for name, place in places.items()}
    return arrays | {"asked": jnp.zeros(2, jnp.int32), "gain": jnp.float32(1.0), "friction": jnp.float32(0.0)}


def play(task, actions):
    state, timesteps = play_actions(RESET, STEP, task, [jnp.asarray(action, jnp.float32) for action in actions], KEY)
    return state.inner, timesteps


@pytest.mark.parametrize(
    ("displacement", "pusher", "disc", "moved", "pushed"),
    [
        ((0.02, -0.01), (0.3, 0.3), (0.7, 0.7), (0.32, 0.29), (0.7, 0.7)),  # Past each other.
        ((0.02, 0.0), (0.36, 0.5), (0.5, 0.5), (0.38, 0.5), (0.51, 0.5)),  # 0.12 is 0.01 too near.
        ((0.0, 0.02), (0.5, 0.36), (0.5, 0.5), (0.5, 0.38), (0.5, 0.51)),
        ((0.02, 0.0), (0.8, 0.5), (0.92, 0.5), (0.79, 0.5), (0.92, 0.5)),  # The wall stops both.
        ((0.02, 0.02), (0.94, 0.06), (0.5, 0.5), (0.95, 0.08), (0.5, 0.5)),  # The pusher alone.
        ((0.0, 0.0), (0.5, 0.5), (0.5, 0.5), (0.5, 0.5), (0.63, 0.5)),  # One on the other: to the right.
    ],
)
def test_a_pusher_moves_a_disc_out_of_its_way(displacement, pusher, disc, moved, pushed):
    places = (jnp.asarray([place]) for place in (pusher, disc, displacement))
    pushers, discs = PUSH(*places, friction=0.0)
    np.testing.assert_allclose(pushers, [moved], atol=1e-6)
    np.testing.assert_allclose(discs, [pushed], atol=1e-6)


def test_friction_takes_a_disc_along():
    """By hand: the pusher goes up beside the disc, 0.12166 away after it; the overlap is 0.00834."""
    places = (jnp.asarray([[0.38, 0.5]]), jnp.asarray([[0.5, 0.5]]), jnp.asarray([[0.0, 0.02]]))
    _, slipped = PUSH(*places, friction=0.0)
    np.testing.assert_allclose(slipped, [[0.508230, 0.498628]], atol=2e-6)
    _, taken = PUSH(*places, friction=0.5)
    np.testing.assert_allclose(taken - slipped, [[0.001622, 0.009730]], atol=2e-6)


def test_discs_push_each_other_and_stop_the_pusher():
    pushers, discs = PUSH(
        jnp.asarray([[0.3, 0.5]]), jnp.asarray([[0.44, 0.5], [0.6, 0.5]]), jnp.asarray([[0.02, 0.0]]), friction=0.0
    )
    np.testing.assert_allclose(discs, [[0.445, 0.5], [0.605, 0.5]], atol=1e-6)
    np.testing.assert_allclose(pushers, [[0.315, 0.5]], atol=1e-6)


def test_an_action_is_clipped_and_in_four_parts():
    state, _ = play(task_of((0.3, 0.5), (0.5, 0.5), (0.9, 0.9)), [(5.0, 0.0), (0.5, -0.25)])
    # 0.08 to the right, which pushes by 0.01; then 0.04 more and 0.02 down, which pushes up and to the right.
    assert 0.51 < float(state.discs[0, 0]) < 0.56 and 0.5 < float(state.discs[0, 1]) < 0.52
    np.testing.assert_allclose(state.pushers, [[0.42, 0.48]], atol=1e-6)
    first, _ = play(task_of((0.3, 0.5), (0.5, 0.5), (0.9, 0.9)), [(5.0, 0.0)])
    np.testing.assert_allclose(np.concatenate([first.pushers, first.discs]), [[0.38, 0.5], [0.51, 0.5]], atol=1e-6)


def test_it_pays_for_progress_and_for_arriving():
    # The disc goes from 0.5 to 0.51, 0.59 and 0.67; the goal is 0.04 further.
    _, timesteps = play(task_of((0.3, 0.5), (0.5, 0.5), (0.71, 0.5)), [(1.0, 0.0)] * 4)
    rewards = [float(timestep.reward) for timestep in timesteps]
    np.testing.assert_allclose(rewards, [0.0, 0.02, 0.16, 1.16, 0.0], atol=1e-5)
    assert [bool(timestep.terminated) for timestep in timesteps] == [False, False, False, True, True]
    assert not any(bool(timestep.truncated) for timestep in timesteps)
    assert [bool(timestep.info["success"]) for timestep in timesteps] == [False, False, False, True, True]


def test_the_limit_cuts():
    _, timesteps = play(task_of((0.3, 0.5), (0.5, 0.5), (0.9, 0.9)), [(0.0, 0.0)] * 3)
    assert [bool(timestep.truncated) for timestep in timesteps] == [False, False, False, True]
    assert not any(bool(timestep.terminated) or float(timestep.reward) for timestep in timesteps)


def test_numbers_are_places_and_what_is_asked_for():
    state, (timestep,) = play(task_of((0.3, 0.5), (0.5, 0.6), (0.8, 0.9)), [])
    np.testing.assert_allclose(timestep.observation, [0.3, 0.5, 0.5, 0.6, 0.8, 0.9])
    several = tabletop.make_environment(num_pushers=2, num_discs=2, num_goals=3)
    assert several.observation_space.shape == (4 + 4 + 6 + 2 + 3,) and several.action_space.shape == (4,)
    task = {
        "pushers": jnp.zeros((2, 2)),
        "discs": jnp.full((2, 2), 0.1),
        "goals": jnp.full((3, 2), 0.2),
        "asked": jnp.asarray([1, 0], jnp.int32),
        "gain": jnp.float32(1.0),
        "friction": jnp.float32(0.0),
    }
    _, timestep = several.reset(KEY, task)
    np.testing.assert_allclose(timestep.observation, [0] * 4 + [0.1] * 4 + [0.2] * 6 + [0, 1] + [1, 0, 0])
    del state


def test_pictures_have_the_upper_edge_first_and_soft_edges():
    world = tabletop.make_environment(raster=10)
    _, timestep = jax.jit(world.reset)(KEY, task_of((0.05, 0.95), (0.55, 0.25), (0.5, 0.5)))
    picture = np.asarray(timestep.observation)
    assert picture.shape == (10, 10, 3)
    expected = np.zeros((10, 10))
    expected[0, 0] = 1.0  # A pusher as wide as a pixel.
    np.testing.assert_allclose(picture[..., 0], expected, atol=1e-5)
    # The middle of the disc is that of a pixel; the next ones are 0.1 away: (0.08 - 0.1) * 10 + 0.5.
    np.testing.assert_allclose(picture[6:9, 4:7, 1], [[0, 0.3, 0], [0.3, 1, 0.3], [0, 0.3, 0]], atol=1e-5)
    # Between four pixels, 0.0707 away each.
    np.testing.assert_allclose(picture[4:6, 4:6, 2], np.full((2, 2), (0.08 - 0.05 * 2**0.5) * 10 + 0.5), atol=1e-5)


def test_tasks_are_apart_and_in_their_regions():
    regions = [(0.25, 0.25, 0.45, 0.75), (0.55, 0.25, 0.75, 0.75)]
    world = tabletop.make_environment(num_pushers=2, num_goals=2, regions=regions)
    sample = jax.jit(jax.vmap(world.sample_task, in_axes=(0, None)), static_argnums=1)
    keys = jax.random.split(KEY, 200)
    for level, (left, lower, right, upper) in enumerate(regions):
        tasks = jax.device_get(sample(keys, level))
        discs = tasks["discs"]
        assert (discs >= (left, lower)).all() and (discs <= (right, upper)).all()
        places = np.concatenate([tasks["discs"], tasks["goals"], tasks["pushers"]], axis=1)
        gaps = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1) + np.eye(5)
        assert (
            gaps.min() >= 0.16 and (gaps >= 0.2).mean() > 0.99
        )  # Where no place is far enough, the farthest is taken.
        assert np.unique(tasks["asked"], axis=0).tolist() == [[0, 0], [0, 1]]
    left = jax.device_get(sample(keys, None))["discs"][:, 0, 0] < 0.5
    assert 60 < left.sum() < 140


@pytest.mark.exhaustive
def test_nothing_leaves_the_table_or_stays_in_another_thing():
    world = tabletop.make_environment(num_pushers=2, num_discs=3, friction=0.5, max_steps=50)

    def one(key):
        state, _ = world.reset(key, world.sample_task(key))

        def step(state, key):
            state, _ = world.step(key, state, jax.random.choice(key, jnp.asarray([-1.0, 1.0]), (4,)))
            return state, (state.inner.pushers, state.inner.discs)

        return jax.lax.scan(step, state, jax.random.split(key, 50))[1]

    pushers, discs = jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(KEY, 64)))
    assert pushers.min() >= 0.05 - 1e-6 and pushers.max() <= 0.95 + 1e-6
    assert discs.min() >= 0.08 - 1e-6 and discs.max() <= 0.92 + 1e-6
    gaps = np.linalg.norm(pushers[..., :, None, :] - discs[..., None, :, :], axis=-1)
    assert (gaps >= 0.13 - 1e-3).mean() > 0.98  # Between two walls, or two discs, something must give.
    assert (np.abs(discs - discs[:, :1]).max(axis=(1, 2, 3)) > 0.05).mean() > 0.5


def test_the_reverse_of_a_task_brings_the_disc_back():
    task = task_of((0.3, 0.5), (0.5, 0.6), (0.8, 0.9))
    undone = tabletop.reverse(task)
    np.testing.assert_allclose(undone["discs"], [[0.8, 0.9]])
    np.testing.assert_allclose(undone["goals"], [[0.5, 0.6]])
    jax.tree.map(np.testing.assert_array_equal, tabletop.reverse(undone), task)


def test_the_reverse_of_reaching_brings_the_pusher_back():
    task = task_of((0.3, 0.5), (0.0, 0.0), (0.8, 0.9)) | {"discs": jnp.zeros((0, 2))}
    undone = tabletop.reverse(task)
    np.testing.assert_allclose(undone["pushers"], [[0.8, 0.9]])
    np.testing.assert_allclose(undone["goals"], [[0.3, 0.5]])
    jax.tree.map(np.testing.assert_array_equal, tabletop.reverse(undone), task)


def test_without_discs_the_pusher_goes_to_the_goal():
    world = tabletop.make_environment(num_discs=0)
    task = task_of((0.3, 0.5), (0.0, 0.0), (0.45, 0.5)) | {"discs": jnp.zeros((0, 2))}
    assert jax.tree.map(jnp.shape, world.sample_task(KEY)) == jax.tree.map(jnp.shape, task)
    state, _ = world.reset(KEY, task)
    state, near = jax.jit(world.step)(KEY, state, jnp.asarray([1.0, 0.0]))
    _, there = jax.jit(world.step)(KEY, state, jnp.asarray([1.0, 0.0]))
    assert [bool(near.terminated), bool(there.terminated), float(there.reward)] == [False, True, 1.0]


def test_render():
    drawn = WORLD.render(RESET(KEY, task_of((0.02, 0.97), (0.5, 0.26), (0.98, 0.02)))[0]).splitlines()
    assert len(drawn) == 20 and {len(row) for row in drawn} == {20}
    assert drawn[0] == "@" + "." * 19 and drawn[14] == "." * 10 + "O" + "." * 9 and drawn[19] == "." * 19 + "G"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_pushers": 0}, "`num_pushers` must be at least 1, got 0"),
        ({"num_discs": -1}, "`num_discs` must not be negative, got -1; try 1, or 0 for reaching"),
        ({"friction": 1.5}, r"`friction` must be in \[0, 1\], got 1.5; try 0.5"),
        ({"max_displacement": 0.3}, r"`max_displacement` times `gain` must be in \(0, 0.2\], got 0.3 and 1.0"),
        ({"raster": 2}, "`raster` must be at least 4 pixels or null, got 2; try 16"),
        ({"regions": []}, "`regions` must be some of .left, lower, right, upper., 0.08 from the edges, got"),
        ({"regions": [[0.5, 0.5, 0.4, 0.6]]}, "`regions` must be some of"),
        ({"regions": [[0.0, 0.5, 0.4, 0.6]]}, "`regions` must be some of"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        tabletop.make_environment(**arguments)

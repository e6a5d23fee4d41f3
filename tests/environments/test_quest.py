"""Quests: what every kind pays, what is seen, the shortest ways, and what is refused."""

import dataclasses
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import quest
from jaxagents.environments.contexts import limited
from jaxagents.environments.quest_expert import distance, find_ways
from jaxagents.environments.quest_layouts import KINDS

UP, RIGHT, DOWN, LEFT, STAY = range(5)
SIZE, WAIT = 4, 3
KEY = jax.random.key(0)
WORLD = quest.make_environment(KINDS, SIZE, wait=WAIT)
RESET, STEP = jax.jit(WORLD.reset), jax.jit(WORLD.step)
DISTANCE = jax.jit(lambda task, state: distance(find_ways(task), state))


def task_of(kind, *, walls=(), lava=(), patrol=0, **places):
    """Makes a task; the agent starts in the upper left corner, the treasure is in the lower right one."""
    cells = {"start": (0, 0), "treasure": (3, 3), "key": (-1, -1), "door": (-1, -1), "charger": (-1, -1)} | places
    grids = {"walls": np.zeros((SIZE, SIZE), bool), "lava": np.zeros((SIZE, SIZE), bool)}
    for name, marked in (("walls", walls), ("lava", lava)):
        for cell in marked:
            grids[name][cell] = True
    numbers = {"kind": jnp.int32(KINDS.index(kind)), "wait": jnp.int32(WAIT), "patrol": jnp.int32(patrol)}
    arrays = {name: jnp.asarray(value, jnp.int32) for name, value in cells.items()}
    return numbers | arrays | {name: jnp.asarray(grid) for name, grid in grids.items()}


def play(task, actions):
    state, timestep = RESET(KEY, task)
    states, timesteps = [state.inner], [timestep]
    for action in actions:
        state, timestep = STEP(KEY, state, jnp.int32(action))
        states.append(state.inner)
        timesteps.append(timestep)
    return states, timesteps


def rewards_of(task, actions):
    return [round(float(timestep.reward), 4) for timestep in play(task, actions)[1][1:]]


DOORKEY = task_of("doorkey", walls=[(0, 1), (1, 1), (3, 1)], door=(2, 1), key=(3, 0), treasure=(2, 3))


def test_the_door_opens_with_the_key():
    actions = [RIGHT, LEFT, DOWN, DOWN, RIGHT, DOWN, UP, RIGHT, RIGHT, RIGHT]
    states, timesteps = play(DOORKEY, actions)
    cells = [tuple(np.asarray(state.position)) for state in states]
    assert cells == [(0, 0)] * 3 + [(1, 0), (2, 0), (2, 0), (3, 0), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert [bool(state.has_key) for state in states] == [False] * 6 + [True] * 5
    assert [float(timestep.reward) for timestep in timesteps] == [0.0] * 10 + [1.0]
    assert [bool(timestep.terminated) for timestep in timesteps] == [False] * 10 + [True]
    assert bool(timesteps[-1].info["success"]) and not bool(timesteps[-1].truncated)
    assert WORLD.render(RESET(KEY, DOORKEY)[0]) == "@#..\n.#..\n.D.G\nK#.."
    assert quest.render(states[6]) == ".#..\n.#..\n.D.G\n@#.."


def test_walls_turn_back_and_lava_ends_the_episode_without_reward():
    states, _ = play(task_of("goal", walls=[(0, 1)]), [RIGHT, STAY, DOWN])
    assert [tuple(np.asarray(state.position)) for state in states] == [(0, 0), (0, 0), (0, 0), (1, 0)]
    _, timesteps = play(task_of("lava", lava=[(0, 1)]), [RIGHT, DOWN])
    assert [bool(timestep.terminated) for timestep in timesteps] == [False, True, True]
    assert not any(float(timestep.reward) or bool(timestep.info["success"]) for timestep in timesteps)


def test_a_treasure_with_a_timer_costs_before_it_pays_until_the_limit():
    task = task_of("timer", treasure=(0, 1))
    _, timesteps = play(task, [RIGHT, STAY] + [STAY] * 14)
    assert [float(timestep.reward) for timestep in timesteps] == [0.0, -1.0, -1.0] + [1.0] * 14
    assert [bool(timestep.info["success"]) for timestep in timesteps] == [False] * 3 + [True] * 14
    assert [bool(timestep.truncated) for timestep in timesteps] == [False] * 16 + [True]
    assert not bool(timesteps[-1].terminated)


def test_a_treasure_that_moves_pays_where_it_is():
    task = task_of("moving", treasure=(0, 0), patrol=3)
    assert [int(quest.treasure(task, jnp.int32(time))[1]) for time in range(8)] == [0, 1, 2, 3, 2, 1, 0, 1]
    # It comes by while the agent stays in its way, and walks with it.
    assert rewards_of(task, [STAY, RIGHT, RIGHT, STAY, LEFT]) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert rewards_of(task, [RIGHT, RIGHT, RIGHT, LEFT, STAY]) == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_a_treasure_pays_nothing_without_its_key():
    task = task_of("key_first", treasure=(0, 1), key=(0, 2))
    assert rewards_of(task, [RIGHT, RIGHT, LEFT, STAY]) == [0.0, 0.0, 1.0, 1.0]


def test_a_treasure_pays_the_share_of_the_charge():
    task = task_of("charger", treasure=(0, 2), charger=(0, 1))
    assert rewards_of(task, [RIGHT, STAY, RIGHT]) == [0.0, 0.0, 0.6667]
    states, timesteps = play(task, [RIGHT, STAY, STAY, STAY, RIGHT])
    assert int(states[-1].charge) == 4 and float(timesteps[-1].reward) == 1.0
    assert bool(timesteps[-1].info["success"])


def test_channels_are_those_of_the_kinds():
    def shape(kinds, **options):
        return quest.make_environment(kinds, SIZE, **options).observation_space.shape

    assert shape(["goal"]) == (4, 4, 3)
    assert shape(["lava"]) == (4, 4, 4)
    assert shape(["doorkey"]) == (4, 4, 6)
    assert shape(["doorkey"], observe_hidden=False) == (4, 4, 5)
    assert WORLD.observation_space.shape == (4, 4, 8 + 7)
    _, timesteps = play(DOORKEY, [DOWN, DOWN, DOWN])
    agent, wall, treasure, door, key, lava, charger, hidden = np.moveaxis(np.asarray(timesteps[0].observation), 2, 0)[
        :8
    ]
    assert np.argwhere(agent).tolist() == [[0, 0]] and np.argwhere(treasure).tolist() == [[2, 3]]
    assert np.argwhere(wall).tolist() == [[0, 1], [1, 1], [3, 1]]
    assert np.argwhere(door).tolist() == [[2, 1]] and np.argwhere(key).tolist() == [[3, 0]]
    assert not lava.any() and not charger.any() and not hidden.any()
    last = np.asarray(timesteps[3].observation)
    assert not last[..., 4].any() and (last[..., 7] == 1.0).all()
    assert last[0, 0, 8:].tolist() == [0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("task", "actions", "numbers"),
    [
        (task_of("timer"), [STAY, STAY, STAY, STAY], [0, 1 / 3, 2 / 3, 1, 1]),
        (task_of("moving", treasure=(0, 0), patrol=2), [STAY] * 5, [0, 0.25, 0.5, 0.75, 0, 0.25]),
        (task_of("charger", charger=(0, 0)), [STAY, DOWN, UP, STAY], [0, 1 / 3, 1 / 3, 2 / 3, 1]),
    ],
)
def test_the_hidden_number(task, actions, numbers):
    seen = [np.asarray(timestep.observation)[..., 7] for timestep in play(task, actions)[1]]
    np.testing.assert_allclose(seen, np.broadcast_to(np.array(numbers)[:, None, None], (len(seen), 4, 4)), rtol=1e-6)


def test_without_hidden_state_the_map_stays_as_it_was():
    world = quest.make_environment(["key_first", "moving"], SIZE, observe_hidden=False)
    task = task_of("key_first", key=(0, 1))
    state, first = jax.jit(world.reset)(KEY, task)
    _, later = jax.jit(world.step)(KEY, state, jnp.int32(RIGHT))
    np.testing.assert_array_equal(first.observation[..., 1:], later.observation[..., 1:])
    assert first.observation.shape == (4, 4, 4 + 2)


def steps_by_search(task):
    """Computes the fewest steps to the treasure through doors, by a search over cells with and without the key."""
    walls, lava = np.asarray(task["walls"]), np.asarray(task["lava"])
    places = {name: tuple(np.asarray(task[name]).tolist()) for name in ("start", "treasure", "key", "door")}
    queue, seen = deque([(places["start"], False, 0)]), set()
    while queue:
        (row, column), has_key, steps = queue.popleft()
        if (row, column) == places["treasure"]:
            return steps
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            cell = (row + down, column + right)
            if not (0 <= cell[0] < len(walls) and 0 <= cell[1] < len(walls)) or walls[cell] or lava[cell]:
                continue
            following = (cell, has_key or cell == places["key"])
            if (cell != places["door"] or has_key) and following not in seen:
                seen.add(following)
                queue.append((*following, steps + 1))
    return np.inf


def expert(ways, state):
    """Chooses the first action after which the treasure pays in full soonest, of those one that is paid best now."""

    def cost(action):
        following = quest.move(state, action)
        return distance(ways, following) - 0.25 * quest.payment(following)

    return jnp.argmin(jax.vmap(cost)(jnp.arange(len(quest.STEPS)))).astype(jnp.int32)


@pytest.fixture(scope="module")
def solved():
    """Lets the expert play 24 sampled tasks of each kind until the limit."""
    world = quest.make_environment(KINDS, 6)

    def one(key, level):
        task = world.sample_task(key, level)
        ways = find_ways(task)
        state, _ = world.reset(key, task)

        def step(state, _):
            state, timestep = world.step(key, state, expert(ways, state.inner))
            return state, (timestep.reward, timestep.info["success"])

        return task, distance(ways, state.inner), jax.lax.scan(step, state, None, world.max_steps)[1]

    keys = jax.vmap(lambda level: jax.random.split(jax.random.fold_in(KEY, level), 24))(jnp.arange(len(KINDS)))
    return jax.device_get(jax.jit(jax.vmap(jax.vmap(one, (0, None))))(keys, jnp.arange(len(KINDS))))


@pytest.mark.slow
def test_the_expert_is_paid_in_full_as_soon_as_the_distance_says(solved):
    task, steps, (reward, success) = solved
    assert np.isfinite(steps).all() and success[..., -1].all()
    np.testing.assert_array_equal(success.argmax(axis=-1) + 1, steps)
    assert (reward[:3].sum(axis=-1) == 1.0).all()
    # It never pays for being early, and stays with what goes on paying.
    assert (reward >= 0.0).all()
    np.testing.assert_array_equal(reward[KINDS.index("moving")].sum(axis=-1), 36 - steps[KINDS.index("moving")] + 1)
    np.testing.assert_array_equal(task["kind"], np.broadcast_to(np.arange(len(KINDS))[:, None], task["kind"].shape))


@pytest.mark.exhaustive
def test_distances_are_those_of_a_search(solved):
    tasks, steps, _ = solved
    for kind in range(3):
        for row in range(24):
            task = {name: leaf[kind, row] for name, leaf in tasks.items()}
            assert steps[kind, row] == steps_by_search(task), task


@pytest.mark.parametrize(
    ("task", "steps"),
    [
        (task_of("timer", treasure=(0, 1)), 3),  # The wait is longer than the way.
        (task_of("timer"), 6),  # The way is longer than the wait.
        (task_of("key_first", treasure=(0, 1), key=(0, 3)), 5),
        (task_of("key_first", treasure=(0, 1)), np.inf),
        (task_of("charger", treasure=(0, 3), charger=(0, 1)), 5),  # One to it, two more on it, two from it.
        (task_of("charger", treasure=(0, 3), charger=(0, 0)), 6),  # Three on it, three from it.
        (task_of("moving", treasure=(2, 0), patrol=3), 4),  # It is at (2, 3), (2, 2) after 3, 4 steps.
        (task_of("lava", lava=[(0, 1), (1, 0)]), np.inf),
    ],
)
def test_distances_by_hand(task, steps):
    assert float(DISTANCE(task, RESET(KEY, task)[0].inner)) == steps


@pytest.mark.exhaustive
def test_levels_are_kinds_and_layouts_differ(solved):
    tasks, _, _ = solved
    for kind in range(len(KINDS)):
        cells = {tuple(row) for row in tasks["treasure"][kind]}
        assert len(cells) > 5
    doors = tasks["door"][KINDS.index("doorkey")]
    walls = tasks["walls"][KINDS.index("doorkey")]
    assert (walls.sum(axis=(1, 2)) == 5).all() and not walls[np.arange(24), doors[:, 0], doors[:, 1]].any()
    # Walls stand upright and lie, in several places.
    assert len({walls[row].sum(axis=0).max() == 5 for row in range(24)}) == 2


def test_kinds_are_drawn_where_no_level_is_asked_for():
    world = quest.make_environment(["charger", "timer"], SIZE, wait=WAIT)
    drawn = jax.device_get(jax.jit(jax.vmap(world.sample_task))(jax.random.split(KEY, 64)))
    charger = drawn["kind"] == KINDS.index("charger")
    assert 16 < charger.sum() < 48 and set(drawn["kind"].tolist()) == {3, 6}
    np.testing.assert_array_equal(drawn["charger"] >= 0, np.stack([charger, charger], axis=1))
    assert (drawn["key"] == -1).all() and not drawn["walls"].any() and (drawn["patrol"] == 0).all()
    assert (drawn["start"] != drawn["treasure"]).any(axis=1).all()


def test_a_limited_world_has_so_many_tasks():
    numbers = dataclasses.replace(WORLD, sample_task=lambda key, level: level + jax.random.randint(key, (), 0, 10_000))

    def tasks(num_tasks, seed=0):
        sample = limited(numbers, num_tasks, seed=seed).sample_task
        return set(jax.vmap(lambda key: sample(key, 5))(jax.random.split(KEY, 64)).tolist())

    assert [len(tasks(number)) for number in (1, 3)] == [1, 3] and len(tasks(1000)) > 40
    assert tasks(1) == tasks(1) < tasks(3) and tasks(1) != tasks(1, seed=1)
    # The level is that of the world inside: five more in every task.
    assert {task - 5 for task in tasks(1)} == set(limited(numbers, 1).sample_task(KEY, 0).reshape(1).tolist())
    with pytest.raises(ValueError, match="`num_tasks` must be at least 1, got 0"):
        limited(numbers, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": ["goal", "dorkey"]}, "`kinds` must be some of goal, doorkey, .*, got 'dorkey'"),
        ({"kinds": []}, "`kinds` must be some of goal, .*, got none"),
        ({"size": 3}, "`size` must be at least 4, got 3; try 8"),
        ({"size": 4, "max_obstacles": 5}, "`max_obstacles` must be from 0 to 4 in a grid of 4, got 5"),
        ({"max_steps": 0}, "`max_steps` must be at least 1, got 0; try 64"),
        ({"kinds": ["timer"], "wait": 64}, "`wait` must be from 1 to 63, below `max_steps`, got 64"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        quest.make_environment(**arguments)

"""Crafting: what needs what, what is seen, lands in which everything can be had, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import craft
from jaxagents.environments.craft import DOWN, INTERACT, LEFT, MAKE_PICKAXE, PLACE_FURNACE, PLACE_TABLE, RIGHT, STAY, UP
from jaxagents.environments.craft_terrain import (
    COAL,
    DIAMOND,
    FURNACE,
    IRON,
    MATERIALS,
    TABLE,
    TREE,
    WATER,
    sample_land,
)
from tests.environments.craft_expert import expert
from tests.fakes import play_actions

KEY = jax.random.key(0)
WORLD = craft.make_environment(8, max_steps=60)
RESET, STEP = jax.jit(WORLD.reset), jax.jit(WORLD.step)
LETTERS = {".": 0, "~": 1, "#": 2, "T": 3, "c": 4, "i": 5, "d": 6, "+": 7, "F": 8}
LAND = ["..T.....", ".#......", "ci~.....", ".d......", *["........"] * 4]


def task_of(land=LAND, start=(1, 2), goal=None, **given):
    inventory = [given.get(name, 0) for name in craft.ITEMS]
    return {
        "terrain": jnp.asarray([[LETTERS[cell] for cell in row] for row in land], jnp.int32),
        "start": jnp.asarray(start, jnp.int32),
        "inventory": jnp.asarray(inventory, jnp.int32),
        "pickaxe": jnp.int32(given.get("pickaxe", 0)),
        "goal": jnp.int32(-1 if goal is None else craft.ACHIEVEMENTS.index(goal)),
    }


def play(task, actions):
    state, timesteps = play_actions(RESET, STEP, task, [jnp.int32(action) for action in actions], KEY)
    return state.inner, timesteps


def achieved(state):
    return {name for name, done in zip(craft.ACHIEVEMENTS, np.asarray(state.achieved), strict=True) if done}


def test_a_move_turns_first_and_walks_over_grass():
    # It faces the tree above: it stays, turns to the right, walks, turns to the left, walks back.
    actions = [UP, RIGHT, RIGHT, LEFT, LEFT, LEFT]
    cells, sides = [], []
    for count in range(len(actions) + 1):
        state, _ = play(task_of(), actions[:count])
        cells.append(tuple(np.asarray(state.position).tolist()))
        sides.append(int(state.facing))
    assert cells == [(1, 2), (1, 2), (1, 2), (1, 3), (1, 3), (1, 2), (1, 2)]  # The last one runs into stone.
    assert sides == [UP, UP, RIGHT, RIGHT, LEFT, LEFT, LEFT]
    corner, _ = play(task_of(start=(0, 0)), [UP, LEFT, LEFT])
    assert corner.position.tolist() == [0, 0]


def test_everything_by_hand_in_one_episode():
    """From the tree to the diamond: the table goes to the right, the furnace below it."""
    wood = [INTERACT] * 4
    table = [RIGHT, PLACE_TABLE, MAKE_PICKAXE]
    stone = [LEFT, INTERACT, MAKE_PICKAXE, LEFT]  # Digs (1, 1), makes the second one, and walks there.
    more = [LEFT, DOWN, INTERACT]  # Walks to (1, 0); coal is below it.
    state, timesteps = play(task_of(), [*wood, *table, *stone, *more])
    assert achieved(state) == {
        *("collect_wood", "place_table", "make_wood_pickaxe", "collect_stone", "make_stone_pickaxe", "collect_coal")
    }
    rewards = [float(timestep.reward) for timestep in timesteps[1:]]
    assert rewards == [1, 0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 1]
    assert state.position.tolist() == [1, 0] and int(state.pickaxe) == 2
    assert state.inventory.tolist() == [1, 0, 1, 0, 0]
    assert state.terrain[:3, :4].tolist() == [[0, 0, TREE, 0], [0, 0, 0, TABLE], [0, IRON, WATER, 0]]
    metrics = timesteps[-1].info["metrics"]
    assert float(metrics["collect_coal"]) == 1.0 and float(metrics["collect_iron"]) == 0.0
    given = {"wood": 1, "stone": 1, "coal": 1, "pickaxe": 2}
    land = [*LAND[:1], "...+....", ".i~.....", *LAND[3:]]
    iron = [LEFT, LEFT, DOWN, INTERACT, UP, PLACE_FURNACE, MAKE_PICKAXE]  # At (1, 1): iron below, the furnace above.
    diamond = [DOWN, DOWN, INTERACT, RIGHT, INTERACT]  # At (2, 1): the diamond below, water on the right.
    state, timesteps = play(task_of(land, **given), [*iron, *diamond])
    assert [float(timestep.reward) for timestep in timesteps[1:]] == [0, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1]
    assert state.inventory.tolist() == [0, 0, 0, 0, 1] and int(state.terrain[0, 1]) == FURNACE
    assert achieved(state) == {
        *("collect_iron", "place_furnace", "make_iron_pickaxe", "collect_diamond", "drink_water")
    }
    assert not bool(timesteps[-1].terminated)  # Of everything, this is not all.


@pytest.mark.parametrize(
    ("given", "land", "actions"),
    [
        ({}, LAND, [LEFT, INTERACT]),  # Stone without a pickaxe.
        ({"pickaxe": 1}, ["........", "...i....", *["........"] * 6], [RIGHT, INTERACT]),
        ({"pickaxe": 2}, ["..d.....", *["........"] * 7], [INTERACT]),
        ({}, LAND, [RIGHT, PLACE_TABLE]),  # A table without wood.
        ({"wood": 1}, LAND, [PLACE_TABLE]),  # On a tree.
        ({"wood": 1}, LAND, [MAKE_PICKAXE]),  # Without a table.
        ({"stone": 1}, LAND, [RIGHT, PLACE_FURNACE]),  # Without a table.
        ({"wood": 1, "pickaxe": 1}, ["......+.", *LAND[1:]], [MAKE_PICKAXE]),  # Nor stone, and out of sight.
        ({"wood": 1, "coal": 1, "iron": 1, "pickaxe": 2}, [".....+..", *LAND[1:]], [MAKE_PICKAXE]),  # No furnace.
        ({"wood": 9, "stone": 9, "coal": 9, "iron": 9, "pickaxe": 3}, [".....+F.", *LAND[1:]], [MAKE_PICKAXE]),
    ],
)
def test_what_is_missing_makes_an_action_do_nothing(given, land, actions):
    task = task_of(land, **given)
    state, timesteps = play(task, [*actions, STAY])
    assert not achieved(state) and not any(float(timestep.reward) for timestep in timesteps)
    np.testing.assert_array_equal(state.terrain, task["terrain"])
    assert state.inventory.tolist() == task["inventory"].tolist() and int(state.pickaxe) == int(task["pickaxe"])


def test_one_goal_alone_pays_and_ends_the_episode():
    state, timesteps = play(task_of(goal="place_table"), [INTERACT, RIGHT, PLACE_TABLE, STAY])
    assert [float(timestep.reward) for timestep in timesteps] == [0, 0, 0, 1, 0]
    assert [bool(timestep.terminated) for timestep in timesteps] == [False, False, False, True, True]
    assert bool(timesteps[-1].info["success"]) and achieved(state) == {"collect_wood", "place_table"}


def test_the_limit_cuts():
    _, timesteps = play(task_of(), [STAY] * 61)
    assert [bool(timestep.truncated) for timestep in timesteps] == [False] * 60 + [True] * 2
    assert not bool(timesteps[-1].terminated)


def test_what_is_seen():
    _, (timestep,) = play(task_of(start=(0, 0), wood=3, pickaxe=2), [])
    observation = np.asarray(timestep.observation)
    assert observation.shape == WORLD.observation_space.shape == (490 + 5 + 4 + 4,)
    seen = observation[:490].reshape(7, 7, 10)
    assert (seen.sum(axis=-1) == 1).all()
    assert (seen[:3].argmax(axis=-1) == craft.OUTSIDE).all() and (seen[:, :3].argmax(axis=-1) == craft.OUTSIDE).all()
    assert seen[3:, 3:].argmax(axis=-1).tolist() == [[0, 0, 3, 0], [0, 2, 0, 0], [4, 5, 1, 0], [0, 6, 0, 0]]
    np.testing.assert_allclose(observation[490:], [3 / 9, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0], rtol=1e-6)
    several = craft.make_environment(8, goals=["collect_coal", "drink_water"])
    _, timestep = jax.jit(several.reset)(KEY, task_of(goal="drink_water"))
    assert np.asarray(timestep.observation)[-2:].tolist() == [0, 1]
    assert several.observation_space.shape == (505,)


@pytest.fixture(scope="module")
def lands():
    terrain, start = jax.device_get(jax.jit(jax.vmap(lambda key: sample_land(key, 12)))(jax.random.split(KEY, 200)))
    return terrain, start


def test_lands_have_everything_and_are_never_cut_in_two(lands):
    terrain, start = lands
    counts = np.stack([(terrain == material).sum(axis=(1, 2)) for material in range(len(MATERIALS))], axis=1)
    assert (counts[:, [WATER, COAL, IRON, DIAMOND]] >= 1).all() and (counts[:, TREE] >= 2).all()
    assert (counts[:, [TABLE, FURNACE]] == 0).all()
    blocking = np.isin(terrain, (WATER, TREE, IRON, DIAMOND))
    odd = (np.arange(12) % 2 == 1)[:, None] & (np.arange(12) % 2 == 1)
    assert not (blocking & ~odd).any()
    assert (terrain[np.arange(200), start[:, 0], start[:, 1]] == 0).all()
    # Rock is above or on the left.
    above = (terrain[:, :4] > 1).sum(axis=(1, 2)) > (terrain[:, :, :4] > 1).sum(axis=(1, 2))
    assert 60 < above.sum() < 140
    assert len({cells.tobytes() for cells in terrain}) == 200


@pytest.fixture(scope="module")
def solved():
    """Lets the expert play 64 lands for everything and 8 for each achievement."""
    world = craft.make_environment(12, goals=craft.ACHIEVEMENTS)

    def one(key, goal):
        task = world.sample_task(key, jnp.maximum(goal, 0)) | {"goal": goal}
        state, _ = world.reset(key, task)

        def step(state, _):
            state, timestep = world.step(key, state, expert(state.inner))
            return state, (timestep.reward, timestep.info["success"])

        return jax.lax.scan(step, state, None, world.max_steps)[1]

    goals = jnp.concatenate([jnp.full(64, -1), jnp.repeat(jnp.arange(11), 8)])
    keys = jax.random.split(KEY, goals.size)
    reward, success = jax.device_get(jax.jit(jax.vmap(one))(keys, goals.astype(jnp.int32)))
    return np.asarray(goals), reward, success


@pytest.mark.exhaustive
def test_the_expert_reaches_everything(solved):
    goals, reward, success = solved
    assert success[:, -1].all(), goals[~success[:, -1]]
    np.testing.assert_array_equal(reward.sum(axis=1), np.where(goals < 0, 11, 1))
    # What is deeper takes longer.
    steps = success.argmax(axis=1) + 1
    depth = [np.median(steps[goals == craft.ACHIEVEMENTS.index(name)]) for name in ("collect_wood", "collect_diamond")]
    assert depth[0] < 20 < 60 < depth[1]


def test_render():
    state, _ = play(task_of(wood=2, pickaxe=2), [RIGHT])
    assert craft.render(state).splitlines()[:3] == ["..T.....", ".#>.....", "ci~....."]
    assert craft.render(state).splitlines()[-1] == "wood 2, pickaxe of stone"
    assert WORLD.render(RESET(KEY, task_of())[0]).splitlines()[-1] == "nothing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 9}, "`size` must be even and at least 8, got 9; try 12"),
        ({"size": 6}, "`size` must be even and at least 8, got 6; try 12"),
        ({"max_steps": 0}, "`max_steps` must be at least 1, got 0; try 400"),
        ({"goals": ["collect_gold"]}, "`goals` must be null or some of collect_wood, .*, got 'collect_gold'"),
        ({"goals": []}, "`goals` must be null or some of collect_wood, .*, got none"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        craft.make_environment(**arguments)

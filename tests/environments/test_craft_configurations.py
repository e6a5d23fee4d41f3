import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import craft, quest
from jaxagents.environments.craft_configurations import prepare, prepared
from jaxagents.environments.craft_terrain import FURNACE, GRASS, IRON, STONE, TABLE

WORLD = craft.make_environment(8, max_steps=40)


def task_of(terrain, start=(1, 1), **given):
    items = [given.get(item, 0) for item in craft.ITEMS]
    inventory, pickaxe = jnp.asarray(items, jnp.int32), jnp.int32(given.get("pickaxe", 0))
    land = {"terrain": jnp.asarray(terrain, jnp.int32), "start": jnp.asarray(start, jnp.int32), "goal": jnp.int32(-1)}
    return land | {"inventory": inventory, "pickaxe": pickaxe}


def of(name):
    return jnp.int32(craft.ACHIEVEMENTS.index(name))


def test_what_is_needed_is_given_and_put_in_sight():
    meadow = np.full((8, 8), GRASS)
    task = jax.jit(prepare)(jax.random.key(0), task_of(meadow, wood=9, coal=1), of("make_iron_pickaxe"))
    # A wood, a coal and an iron more, nine of each at most.
    assert task["inventory"].tolist() == [9, 0, 2, 1, 0] and int(task["pickaxe"]) == 2
    placed = np.argwhere(np.asarray(task["terrain"]) != GRASS)
    assert sorted(np.asarray(task["terrain"])[tuple(placed.T)].tolist()) == sorted([TABLE, FURNACE])
    away = np.abs(placed - 1).max(axis=1)
    assert away.min() >= 1 and away.max() <= 3


def test_a_better_pickaxe_is_kept_and_full_lands_stay():
    rock = np.full((8, 8), STONE)
    rock[1, 1] = rock[1, 5] = GRASS  # Under the agent, and out of sight.
    task = prepare(jax.random.key(0), task_of(rock, pickaxe=3), of("collect_iron"))
    assert int(task["pickaxe"]) == 3 and task["inventory"].tolist() == [0] * 5
    np.testing.assert_array_equal(task["terrain"], rock)
    rock[1, 4] = GRASS
    near = prepare(jax.random.key(0), task_of(rock), of("collect_iron"))
    assert int(near["terrain"][1, 4]) == IRON and int(near["pickaxe"]) == 2


DEEDS = {
    **dict.fromkeys(craft.ACHIEVEMENTS, craft.INTERACT),
    **dict.fromkeys([name for name in craft.ACHIEVEMENTS if name.startswith("make")], craft.MAKE_PICKAXE),
    "place_table": craft.PLACE_TABLE,
    "place_furnace": craft.PLACE_FURNACE,
}


def test_one_deed_beside_what_is_near_reaches_every_achievement_and_none_in_a_land_of_its_own():
    rock = np.full((8, 8), STONE)
    rock[[1, 0, 1, 2], [1, 1, 2, 1]] = GRASS  # The start, and three cells beside it.

    def reaches(task, achievement, deed):
        def on(side):
            state, _ = WORLD.reset(jax.random.key(0), task)
            turned = state.inner.replace(facing=side)
            return craft.act(turned, deed).achieved[achievement]

        return jnp.any(jax.vmap(on)(jnp.arange(4)))

    def both(achievement, deed):
        task = task_of(rock)
        made = prepare(jax.random.key(1), task, achievement)
        return reaches(made, achievement, deed), reaches(task, achievement, deed)

    deeds = jnp.asarray([DEEDS[name] for name in craft.ACHIEVEMENTS])
    with_it, without = jax.jit(jax.vmap(both))(jnp.arange(len(craft.ACHIEVEMENTS)), deeds)
    assert with_it.tolist() == [True] * len(craft.ACHIEVEMENTS) and not np.any(without)


@pytest.mark.exhaustive
def test_achievements_are_drawn_and_the_rest_of_the_world_stays():
    environment = prepared(WORLD, ["collect_diamond", "collect_coal"])
    tasks = jax.vmap(environment.sample_task)(jax.random.split(jax.random.key(0), 64))
    pickaxes, counts = np.unique(np.asarray(tasks["pickaxe"]), return_counts=True)
    assert pickaxes.tolist() == [1, 3] and counts.min() >= 20
    assert (environment.reset, environment.step) == (WORLD.reset, WORLD.step)


@pytest.mark.parametrize(
    ("world", "achievements", "message"),
    [
        (WORLD, [], "`achievements` must be some of collect_wood, .*, got none"),
        (WORLD, ["collect_gold"], "`achievements` must be some of .*, got 'collect_gold'"),
        (quest.make_environment(), ["collect_wood"], "`environment` must be the world of crafting, got 'quest'"),
    ],
)
def test_bad_settings_are_refused(world, achievements, message):
    with pytest.raises(ValueError, match=message):
        prepared(world, achievements)

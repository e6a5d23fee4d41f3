"""Advice on quests from what is seen, against ways counted by hand, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import quest
from jaxagents.environments.quest_advice import make_advice, make_potential, make_steps_left
from jaxagents.environments.quest_expert import distance, find_ways
from jaxagents.environments.quest_triples import make_overlap

# Of a quest with key and door: `@` the agent, `G` the treasure, `K` key, `D` door, `#` walls.
CHANNELS = "@#GDK"
LOCKED = ["@#..", ".#..", ".D.G", "K#.."]
OPENED = ["@#..", ".#..", ".D.G", ".#.."]


def observation_of(rows, *, has_key=False):
    planes = [[[cell == glyph for cell in row] for row in rows] for glyph in CHANNELS]
    hidden = np.full((len(rows), len(rows)), has_key)
    return jnp.asarray(np.stack([*np.array(planes), hidden], axis=-1), jnp.float32)


def test_steps_after_each_action_by_hand():
    """Up, right, down, left and stay: all but down stay in the corner, 3 steps from the key and then 4 from the end."""
    steps_left = jax.jit(make_steps_left())
    np.testing.assert_array_equal(steps_left(observation_of(LOCKED)), [7, 7, 6, 7, 7])
    np.testing.assert_array_equal(steps_left(observation_of(OPENED, has_key=True)), [5, 5, 4, 5, 5])
    # Without the key the door is a wall, and without a key to find there is no way.
    np.testing.assert_array_equal(steps_left(observation_of(OPENED)), [np.inf] * 5)


@pytest.mark.exhaustive
def test_what_is_seen_is_what_is_there():
    """From drawn layouts, along random walks, the ways are those that the expert finds in the state itself."""
    world = quest.make_environment(("goal", "doorkey", "lava"), 5)
    steps_left = make_steps_left(("goal", "doorkey", "lava"))

    def of_seed(key):
        task_key, reset_key, walk_key = jax.random.split(key, 3)
        state, timestep = world.reset(reset_key, world.sample_task(task_key))
        ways = find_ways(state.inner.task)

        def step(carry, key):
            state, timestep = carry
            advice = jax.vmap(lambda action: distance(ways, quest.move(state.inner, action)))(jnp.arange(5))
            following = world.step(key, state, jax.random.randint(key, (), 0, 5))
            over = timestep.terminated | timestep.truncated
            return following, (jnp.where(over, 0.0, advice), jnp.where(over, 0.0, steps_left(timestep.observation)))

        return jax.lax.scan(step, (state, timestep), jax.random.split(walk_key, 12))[1]

    advice, seen = jax.jit(jax.vmap(of_seed))(jax.random.split(jax.random.key(0), 48))
    assert np.isfinite(advice).mean() > 0.9 and len(np.unique(advice)) > 10
    np.testing.assert_array_equal(advice, seen)


@pytest.mark.exhaustive
def test_a_share_of_the_advice_is_wrong_and_stays_so():
    observations = jnp.stack([observation_of(LOCKED), observation_of(OPENED, has_key=True)])
    np.testing.assert_array_equal(jax.jit(make_advice(good=2.0, bad=-1.0))(observations), [[-1, -1, 2, -1, -1]] * 2)
    np.testing.assert_array_equal(jax.jit(make_advice(wrong_share=1.0))(observations), [[1, 1, 0, 1, 1]] * 2)
    world = quest.make_environment(size=6)

    def see(key):
        return world.reset(key, world.sample_task(key))[1].observation

    seen = jax.jit(jax.vmap(see))(jax.random.split(jax.random.key(1), 400))
    asked = {share: jax.jit(make_advice(wrong_share=share)) for share in (0.0, 0.2, 0.5)}
    right = asked[0.0](seen)
    wrong = {share: np.asarray(asked[share](seen) != right) for share in (0.2, 0.5)}
    np.testing.assert_allclose([wrong[0.2].mean(), wrong[0.5].mean()], [0.2, 0.5], atol=0.03)
    # Of every action alike, and independently: no action of 0.8^5 of the states is wrong.
    np.testing.assert_allclose(wrong[0.2].mean(0), [0.2] * 5, atol=0.06)
    np.testing.assert_allclose((~wrong[0.2].any(-1)).mean(), 0.8**5, atol=0.07)
    np.testing.assert_array_equal(asked[0.2](seen[None, 7:9])[0] != right[7:9], wrong[0.2][7:9])
    assert (jax.jit(make_advice(wrong_share=0.2, seed=1))(seen) != right).tolist() != wrong[0.2].tolist()


def test_the_potential_falls_with_the_steps_that_are_left():
    observations = jnp.stack([observation_of(LOCKED), observation_of(OPENED, has_key=True), observation_of(OPENED)])
    np.testing.assert_allclose(jax.jit(make_potential(scale=0.1))(observations), [-0.7, -0.5, -1.6], rtol=1e-6)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`wrong_share` must be from 0.0 to 1.0, got 1.5"):
        make_advice(wrong_share=1.5)
    with pytest.raises(ValueError, match="`kinds` must be some of goal, doorkey, lava, which end at the treasure"):
        make_steps_left(("timer",))
    with pytest.raises(ValueError, match="`kinds` must be some of goal, doorkey.*got 'door'"):
        make_advice(("door",))
    with pytest.raises(ValueError, match=r"`observation` must be \[..., S, S, 6\].*got \(4, 4, 5\)"):
        make_steps_left()(observation_of(LOCKED)[..., :5])


def test_the_overlap_with_what_was_told_by_hand():
    """At first nothing of it is true; then the key, the door and the room are, and the door no longer."""
    rows = {
        "begin": (LOCKED, False),
        "key": (OPENED, True),
        "door": ([".#..", ".#..", ".@.G", ".#.."], True),
        "room": ([".#..", ".#.@", ".D.G", ".#.."], True),
    }
    seen = {name: observation_of(drawn, has_key=key) for name, (drawn, key) in rows.items()}
    seen["door"] = seen["door"].at[2, 1, CHANNELS.index("D")].set(1.0)
    potential = jax.jit(make_overlap(scale=0.5))
    np.testing.assert_allclose(potential(jnp.stack([*seen.values()]).reshape(2, 2, 4, 4, 6)), [[0.0, 0.5], [1.0, 1.0]])
    elsewhere = make_overlap(target=["you at top", "you at left", "you at right"], scale=1.0)
    np.testing.assert_allclose(elsewhere(jnp.stack([*seen.values()])), [2.0, 2.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="`target` must be some of you have key, .*, got 'you have gold'"):
        make_overlap(target=["you have gold"])
    with pytest.raises(ValueError, match="`kinds` must have a door"):
        make_overlap(("goal",))
    with pytest.raises(ValueError, match="`observation` must be"):
        potential(jnp.zeros((4, 4, 5)))

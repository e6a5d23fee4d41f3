"""Chunks of recorded data, by hand, and the same as the environment of chunks plays them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.chunks import fold_chunks, make_chunk_collector
from jaxagents.environments import tabletop
from jaxagents.environments.chunks import chunked
from jaxagents.types import Sample, Transition

NOTHING = jnp.zeros((3, 4))


def sequences():
    """Three steps of four sequences: whole; terminated or truncated at the second; truncated at the last."""
    reward = jnp.array([[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [4.0, 4.0, 4.0, 4.0]])
    terminated = jnp.zeros((3, 4), bool).at[1, 1].set(True)
    truncated = jnp.zeros((3, 4), bool).at[1, 2].set(True).at[2, 3].set(True)
    step = jnp.arange(3.0)[:, None, None] + 10.0 * jnp.arange(4.0)[None, :, None]
    return Sample(
        transition=Transition(
            observation=step,
            action=jnp.concatenate([1.0 + step, -1.0 - step], axis=-1),
            behavior_log_prob=-reward,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=step + 1.0,
            first=jnp.zeros((3, 4), bool).at[0, 0].set(True),
            extras={"return_to_go": 100.0 * reward},
        ),
        weight=jnp.array([1.0, 2.0, 3.0, 4.0]),
    )


def test_a_chunk_ends_with_its_episode():
    folded = jax.jit(fold_chunks)(sequences(), discount=0.5)
    transition = folded.transition
    np.testing.assert_allclose(transition.reward, [[3.0, 2.0, 2.0, 3.0]])  # 1 + 2/2 + 4/4, and 1 + 2/2
    np.testing.assert_allclose(transition.behavior_log_prob, [[-7.0, -3.0, -3.0, -7.0]])
    np.testing.assert_array_equal(transition.terminated, [[False, True, False, False]])
    np.testing.assert_array_equal(transition.truncated, [[False, False, True, True]])
    np.testing.assert_allclose(transition.observation[..., 0], [[0.0, 10.0, 20.0, 30.0]])
    np.testing.assert_allclose(transition.next_observation[..., 0], [[3.0, 12.0, 22.0, 33.0]])
    np.testing.assert_array_equal(transition.first, [[True, False, False, False]])
    np.testing.assert_allclose(transition.extras["return_to_go"], [[100.0] * 4])
    # What was done after the end is not of the chunk.
    np.testing.assert_allclose(transition.action[0, 0], [1.0, -1.0, 2.0, -2.0, 3.0, -3.0])
    np.testing.assert_allclose(transition.action[0, 1], [11.0, -11.0, 12.0, -12.0, 0.0, 0.0])
    # A limit inside of a chunk leaves nobody to say by how much to discount; at its end it does.
    np.testing.assert_allclose(folded.weight, [1.0, 2.0, 0.0, 4.0])


def test_a_chunk_of_one_step_is_the_step():
    sample = sequences()
    one = sample.replace(transition=jax.tree.map(lambda leaf: leaf[:1], sample.transition))
    jax.tree.map(np.testing.assert_array_equal, fold_chunks(one, discount=0.5), one)


def test_the_first_step_learns_of_the_first_reward_only_where_nothing_counts_after():
    def total(reward):
        sample = sequences()
        return jnp.sum(
            fold_chunks(
                sample.replace(transition=sample.transition.replace(reward=reward)), discount=0.5
            ).transition.reward
        )

    expected = np.array([[1.0] * 4, [0.5] * 4, [0.25, 0.0, 0.0, 0.25]])
    np.testing.assert_allclose(jax.grad(total)(sequences().transition.reward), expected)


def test_data_of_steps_become_what_the_environment_of_chunks_plays():
    world = tabletop.make_environment(num_discs=0, max_steps=8)
    env = chunked(world, length=4, discount=0.9)
    task = world.sample_task(jax.random.key(3)) | {
        "pushers": jnp.array([[0.2, 0.5]]),
        "goals": jnp.array([[0.68, 0.5]]),
    }
    actions = jnp.zeros((8, 2)).at[:, 0].set(1.0)  # There after six steps of 0.08.
    state, timestep = env.reset(jax.random.key(0), task)
    state, middle = env.step(jax.random.key(1), state, actions[:4].ravel())
    state, last = env.step(jax.random.key(1), state, actions[4:].ravel())
    assert not middle.terminated and middle.reward == 0.0 and int(middle.info["metrics"]["num_steps"]) == 4
    assert last.terminated and int(last.info["metrics"]["num_steps"]) == 6
    np.testing.assert_allclose(last.reward, 0.9, rtol=1e-6)


@pytest.mark.exhaustive
def test_a_collector_gives_chunks_of_the_data():
    world = tabletop.make_environment(num_discs=0, max_steps=4)
    env = chunked(world, length=2, discount=0.5)

    def dataset():
        """One row of two episodes: cut after four steps, ended after three."""
        leaf = jnp.arange(7.0)[:, None]
        place = jnp.broadcast_to(leaf[..., None], (7, 1, 4))
        return Transition(
            observation=place,
            action=jnp.stack([leaf, -leaf], axis=-1),
            behavior_log_prob=0.0 * leaf,
            reward=leaf,
            terminated=leaf == 6.0,
            truncated=leaf == 3.0,
            next_observation=place + 1.0,
            first=(leaf == 0.0) | (leaf == 4.0),
        )

    collector = make_chunk_collector(env, None, unchunked=world, dataset=dataset, batch_size=64, discount=0.5)
    _, batch, _ = jax.jit(collector.collect)(collector.init(jax.random.key(0), None), None, jax.random.key(1))
    start = np.asarray(batch.transition.observation[0, :, 0]).astype(int)
    assert set(start) == set(range(6))
    reward = np.array([0.5, 2.0, 3.5, 3.0, 6.5, 8.0])  # r_t + r_{t+1} / 2, but nothing after the end at 3
    returns = np.array([0.0 + 0.5 + 0.5 + 0.375, 1.0 + 1.0 + 0.75, 2.0 + 1.5, 3.0, 4.0 + 2.5 + 1.5, 5.0 + 3.0])
    np.testing.assert_allclose(batch.transition.reward[0], reward[start])
    np.testing.assert_allclose(batch.transition.extras["return_to_go"][0], returns[start])
    np.testing.assert_allclose(batch.weight, start != 3)
    np.testing.assert_allclose(batch.transition.action[0, :, 2], np.where(start == 3, 0.0, start + 1.0))


def test_worlds_that_are_not_of_the_chunks_are_refused():
    world = tabletop.make_environment(max_steps=40)
    options = {"dataset": None, "batch_size": 8}
    with pytest.raises(ValueError, match="must take chunks of the actions of `unchunked`, got 16 numbers in 5 steps"):
        make_chunk_collector(
            chunked(world, length=8), None, unchunked=tabletop.make_environment(max_steps=48), **options
        )

"""Fixed data sets: made by a seed, written, read, refused, and sampled from without environment steps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.datasets import (
    from_arrays,
    load_dataset,
    make_dataset_collector,
    make_prior_buffer,
    save_dataset,
    with_returns,
)
from jaxagents.environments.adapters.gymnax import make_environment
from jaxagents.policies.scripted import make_cartpole_expert, make_pendulum_expert
from jaxagents.rollouts.demonstrations import make_demonstrations
from jaxagents.types import Box, PolicyInput, Sample

KEY = jax.random.key(0)
PENDULUM = make_environment("Pendulum-v1")
CARTPOLE = make_environment("CartPole-v1")
SWINGS = make_demonstrations(PENDULUM, make_pendulum_expert(), num_rows=4, num_steps=6, noise=[0.0, 1.0], seed=1)


@pytest.fixture(scope="module")
def swings():
    return jax.jit(SWINGS)()


def arrays(**changes):
    """Returns the arrays of two rows of three steps of CartPole."""
    shape = (3, 2)
    fields = {
        "observation": np.zeros((*shape, 4), np.float32),
        "next_observation": np.zeros((*shape, 4), np.float32),
        "action": np.array([[0, 1], [1, 1], [0, 0]], np.int32),
        "reward": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        "terminated": np.array([[0, 0], [0, 1], [0, 0]], bool),
        "truncated": np.array([[0, 0], [0, 0], [1, 0]], bool),
        "first": np.array([[1, 0], [0, 0], [0, 1]], bool),
    }
    return {name: value for name, value in (fields | changes).items() if value is not None}


def test_a_seed_makes_the_same_data_and_rows_take_turns_in_noise(swings):
    again = jax.jit(SWINGS)()
    np.testing.assert_array_equal(swings.action, again.action)
    assert swings.reward.shape == (6, 4)
    # Steps follow each other.
    np.testing.assert_array_equal(swings.next_observation[:-1], swings.observation[1:])
    expert = make_pendulum_expert()
    best = jax.vmap(lambda observation: expert.policy.apply((), (), _input(observation))[1].mode())(swings.observation)
    distance = np.abs(np.asarray(best - swings.action))[..., 0]
    assert distance[:, 0::2].max() < 0.2 < distance[:, 1::2].mean()


def _input(observation):
    return PolicyInput(observation=observation, first=jnp.zeros(observation.shape[:-1], bool))


def test_files_hold_actions_of_the_environment_and_come_back(tmp_path, swings):
    path = tmp_path / "swings.npz"
    save_dataset(path, SWINGS, PENDULUM)
    with np.load(path) as file:
        np.testing.assert_allclose(file["action"], 2.0 * np.tanh(swings.action), rtol=1e-5)
    back = load_dataset(path, PENDULUM)()
    np.testing.assert_allclose(2.0 * np.tanh(back.action), 2.0 * np.tanh(swings.action), atol=3e-3)
    np.testing.assert_array_equal(back.observation, swings.observation)
    with pytest.raises(
        ValueError, match=r"spaces of 'CartPole-v1', got observation \(3,\) for \(4,\); .*action \(1,\)"
    ):
        load_dataset(path, CARTPOLE)
    with pytest.raises(ValueError, match="`path` must be a file of a data set, got .*nothing.npz"):
        load_dataset(tmp_path / "nothing.npz", CARTPOLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": None, "first": None}, "got none for reward, first; it has action, next_observation"),
        ({"reward": np.zeros(6, np.float32)}, r"must have arrays \[T, E, ...\] like reward \(6,\), got"),
        ({"terminated": np.zeros((2, 2), bool)}, r"like reward \(3, 2\), got terminated \(2, 2\)"),
        ({"action": np.full((3, 2), 2, np.int32)}, "got actions 2 to 2 for 2 of them; try the world"),
        ({"action": np.zeros((3, 2), np.float32)}, "got action of float32 for integers"),
        ({"observation": np.zeros((3, 2, 5), np.float32)}, r"got observation \(5,\) for \(4,\); try the world"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_all_that_is_wrong(changes, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(arrays(**changes), CARTPOLE)


def test_returns_stop_at_ends_and_at_the_end_of_the_row():
    transition = with_returns(from_arrays(arrays(), CARTPOLE)(), 0.5)
    # 1 + 0.5 (3 + 0.5 * 5); the second row ends after two steps and begins again.
    expected = [[1 + 0.5 * (3 + 2.5), 2 + 0.5 * 4], [3 + 2.5, 4], [5, 6]]
    np.testing.assert_allclose(transition.extras["return_to_go"], expected)


def test_samples_are_steps_of_the_data_and_split_over_shards():
    dataset = from_arrays(arrays(), CARTPOLE)
    collector = make_dataset_collector(CARTPOLE, None, dataset=dataset, batch_size=64, num_shards=2, sequence_length=2)
    state = jax.jit(collector.init)(KEY, None)
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(state))
    _, batch, metrics = jax.jit(collector.collect)(state, None, KEY)
    assert isinstance(batch, Sample) and metrics == {} and collector.steps_per_collect == 64
    pairs = {tuple(pair) for pair in np.asarray(batch.transition.reward).T.tolist()}
    assert pairs == {(1.0, 3.0), (3.0, 5.0), (2.0, 4.0), (4.0, 6.0)}
    # The first shard has the first row.
    assert set(np.asarray(batch.transition.reward)[0, :32].tolist()) == {1.0, 3.0}


def test_sizes_are_refused_before_anything_runs():
    dataset = from_arrays(arrays(), CARTPOLE)
    with pytest.raises(ValueError, match="`num_envs` must be divisible by `num_shards`, got 2 and 4"):
        make_dataset_collector(CARTPOLE, None, dataset=dataset, batch_size=4, num_shards=4)
    with pytest.raises(ValueError, match=r"`noise` must be in \[0, 1\], one number or a list, got \[2.0\]"):
        make_demonstrations(CARTPOLE, make_cartpole_expert(), num_rows=2, num_steps=2, noise=[2.0])
    unbounded = replace(PENDULUM, action_space=Box((1,)))
    with pytest.raises(ValueError, match="`action_space` must be Discrete or a bounded Box for random actions"):
        make_demonstrations(unbounded, make_pendulum_expert(), num_rows=2, num_steps=2)


def test_half_of_the_samples_are_of_the_data():
    """Rewards of the data are 1 to 6, those that are played 100."""
    dataset = from_arrays(arrays(), CARTPOLE)
    buffer = make_prior_buffer(dataset=dataset, capacity=16, batch_size=8, min_size=4)
    given = dataset()
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], given), 2)
    played = given.replace(reward=jnp.full((3, 2), 100.0))
    assert not buffer.can_sample(state)
    state = jax.jit(buffer.add)(state, played)
    assert buffer.can_sample(state)
    transition, weight, _ = jax.jit(buffer.sample)(state, KEY)
    reward = np.asarray(transition.reward)[0]
    assert np.all(reward[:4] == 100.0) and np.all(reward[4:] <= 6.0) and weight.shape == (8,)
    # Of two shards, the first one's samples are those of the first device.
    of_two = make_prior_buffer(dataset=dataset, capacity=16, batch_size=8, num_shards=2)
    state = jax.jit(of_two.add)(of_two.init(jax.tree.map(lambda leaf: leaf[0, 0], given), 2), played)
    reward = np.asarray(jax.jit(of_two.sample)(state, KEY)[0].reward)[0]
    np.testing.assert_array_equal(reward == 100.0, [True, True, False, False] * 2)
    assert set(reward[2:4]) <= {1.0, 3.0, 5.0} and set(reward[6:]) <= {2.0, 4.0, 6.0}  # The rows of the data.
    with pytest.raises(
        ValueError, match=r"`dataset` must have the arrays that rollouts have, got .action_mask missing"
    ):
        buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], given).replace(action_mask=jnp.ones(2, bool)), 2)
    with pytest.raises(ValueError, match="`prior_share` must leave samples for both, got 1.0 of 8; try 0.5"):
        make_prior_buffer(dataset=dataset, capacity=16, batch_size=8, prior_share=1.0)

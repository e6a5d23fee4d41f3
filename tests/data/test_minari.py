"""Data sets that are written for Minari, read by Minari and by ourselves."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.hdf5 import load_hdf5
from jaxagents.data.minari import save_minari
from jaxagents.environments.adapters.gymnax import make_environment
from jaxagents.environments.tmaze import make_environment as make_tmaze
from jaxagents.types import Box, Transition
from tests.fakes import make_transition

pytest.importorskip("h5py", reason="h5py is not installed; see the extra `datasets`.")
PENDULUM = make_environment("Pendulum-v1")
FLAGS = {  # [T, E]: row 0 ends by a terminal state after two steps, row 1 is cut after one; both are cut by the end.
    "terminated": [[0, 0], [1, 0], [0, 0]],
    "truncated": [[0, 1], [0, 0], [0, 0]],
    "first": [[1, 1], [0, 1], [1, 0]],
}


def dataset():
    """Three steps of two rows; observations count up, and successors are a tenth above them."""
    observation = jnp.arange(18.0).reshape(3, 2, 3)
    flags = {name: jnp.array(value, bool) for name, value in FLAGS.items()}
    action, reward = jnp.full((3, 2, 1), jnp.arctanh(0.5)), jnp.arange(6.0).reshape(3, 2)
    fields = {"behavior_log_prob": reward, "next_observation": observation + 0.1}
    return Transition(observation=observation, action=action, reward=reward, **fields, **flags)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root") / "ours" / "pendulum-v0"
    save_minari(folder, dataset, PENDULUM, dataset_id="ours/pendulum-v0", algorithm_name="nobody")
    return folder


def test_minari_reads_episodes_and_spaces(folder, monkeypatch):
    minari = pytest.importorskip("minari", reason="Minari is not installed; see the extra `test`.")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder.parents[1]))
    loaded = minari.load_dataset("ours/pendulum-v0")
    assert (loaded.total_episodes, loaded.total_steps) == (4, 6)
    assert loaded.action_space.low.tolist() == [-2.0] and loaded.observation_space.shape == (3,)
    episodes = list(loaded.iterate_episodes())
    assert [episode.rewards.tolist() for episode in episodes] == [[0, 2], [4], [1], [3, 5]]
    assert [episode.terminations.tolist() for episode in episodes] == [[False, True], [False], [False], [False] * 2]
    assert [episode.truncations.tolist() for episode in episodes] == [[False] * 2, [True], [True], [False, True]]
    # The observations of row 0 begin at 0 and 6; its second step ends it with the successor of that step.
    np.testing.assert_allclose(episodes[0].observations[:, 0], [0.0, 6.0, 6.1], rtol=1e-6)
    np.testing.assert_allclose(episodes[0].actions, 1.0, rtol=1e-6)  # Twice the half that tanh gives.
    assert loaded.observation_space.contains(episodes[0].observations[0])


def test_what_is_written_is_read_back(folder):
    transition = load_hdf5(folder / "data" / "main_data.hdf5", PENDULUM)()
    np.testing.assert_array_equal(transition.reward[:, 0], [0, 2, 4, 1, 3, 5])
    np.testing.assert_array_equal(transition.first[:, 0], [1, 0, 1, 1, 1, 0])
    np.testing.assert_allclose(transition.action, jnp.arctanh(0.5), rtol=1e-5)


def test_spaces_of_integers_have_their_number(tmp_path):
    def steps():
        seen = jnp.zeros((2, 1, *maze.observation_space.shape))
        return make_transition((2, 1), observation=seen, action=jnp.zeros((2, 1), jnp.int32))

    maze = make_tmaze(corridor_length=2)
    written = save_minari(tmp_path, steps, maze, dataset_id="maze-v0")
    space = {"type": "Discrete", "dtype": "int64", "start": 0, "n": maze.action_space.num_values}
    assert json.loads(written["action_space"]) == space and (written["total_episodes"], written["total_steps"]) == (
        1,
        2,
    )
    flags = replace(maze, observation_space=Box(maze.observation_space.shape, dtype=bool))
    written = save_minari(tmp_path / "flags", steps, flags, dataset_id="maze-v1")
    assert json.loads(written["observation_space"]) == {"type": "MultiBinary", "n": list(maze.observation_space.shape)}
    with pytest.raises(ValueError, match="`folder` must hold no data yet, got .*data; try another one"):
        save_minari(tmp_path, steps, maze, dataset_id="maze-v0")

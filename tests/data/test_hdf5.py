"""Files as D4RL and Minari write them, made here by h5py."""

import numpy as np
import pytest

from jaxagents.data.hdf5 import load_hdf5
from jaxagents.environments.adapters.gymnax import make_environment

h5py = pytest.importorskip("h5py", reason="h5py is not installed; see the extra `datasets`.")
PENDULUM = make_environment("Pendulum-v1")
SEEN = np.arange(24, dtype=np.float32).reshape(8, 3)


def write(path, fields):
    with h5py.File(path, "w") as file:
        for name, value in fields.items():
            file[name] = value
    return path


def flat(**changes):
    flags = {"terminals": np.array([0, 0, 1, 0, 0, 0, 0, 0]), "timeouts": np.array([0, 0, 0, 0, 0, 1, 0, 0])}
    fields = {"observations": SEEN, "actions": np.full((8, 1), 1.0), "rewards": np.arange(8.0)}
    return {name: value for name, value in (fields | flags | changes).items() if value is not None}


def test_time_outs_without_successors_are_dropped(tmp_path):
    transition = load_hdf5(write(tmp_path / "d4rl.hdf5", flat()), PENDULUM)()
    # The step of the time-out, 5, and the last one, 7, have no successor.
    np.testing.assert_array_equal(transition.reward[:, 0], [0, 1, 2, 3, 4, 6])
    np.testing.assert_array_equal(transition.terminated[:, 0], [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(transition.truncated[:, 0], [0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(transition.first[:, 0], [1, 0, 0, 1, 0, 1])
    going_on = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(transition.next_observation[going_on, 0], SEEN[[1, 2, 4, 5, 7]])
    np.testing.assert_allclose(2.0 * np.tanh(transition.action), 1.0, rtol=1e-5)


def test_successors_of_the_file_are_taken_and_steps_cut_into_rows(tmp_path):
    path = write(tmp_path / "d4rl.hdf5", flat(next_observations=SEEN + 100.0))
    transition = load_hdf5(path, PENDULUM, num_rows=3)()
    np.testing.assert_array_equal(transition.reward, [[0, 2, 4], [1, 3, 5]])
    np.testing.assert_array_equal(transition.truncated, [[0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(transition.next_observation[0, 1], SEEN[2] + 100.0)


def test_episodes_of_minari_come_in_the_order_of_their_numbers(tmp_path):
    fields = {}
    for number in (10, 2):
        ends = {"terminations": np.array([0, number == 2]), "truncations": np.array([0, number == 10])}
        extra = {
            "observations": SEEN[:3] + number,
            "actions": np.zeros((2, 1)),
            "rewards": np.array([number, 0.5]),
        } | ends
        fields |= {f"episode_{number}/{name}": value for name, value in extra.items()}
    transition = load_hdf5(write(tmp_path / "main_data.hdf5", fields), PENDULUM)()
    np.testing.assert_array_equal(transition.reward[:, 0], [2.0, 0.5, 10.0, 0.5])
    np.testing.assert_array_equal(transition.terminated[:, 0], [0, 1, 0, 0])
    np.testing.assert_array_equal(transition.truncated[:, 0], [0, 0, 0, 1])
    np.testing.assert_array_equal(transition.next_observation[1, 0], SEEN[2] + 2)


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="got none of rewards, timeouts in the file"):
        load_hdf5(write(tmp_path / "a.hdf5", flat(rewards=None, timeouts=None)), PENDULUM)
    with pytest.raises(ValueError, match="`num_rows` must be from 1 to the 6 steps of the file, got 7"):
        load_hdf5(write(tmp_path / "b.hdf5", flat()), PENDULUM, num_rows=7)
    with pytest.raises(ValueError, match=r"spaces of 'CartPole-v1', got observation \(3,\) for \(4,\)"):
        load_hdf5(write(tmp_path / "c.hdf5", flat()), make_environment("CartPole-v1"))
    with pytest.raises(ValueError, match="`path` must be an HDF5 file of D4RL or Minari, got .*nothing"):
        load_hdf5(tmp_path / "nothing", PENDULUM)

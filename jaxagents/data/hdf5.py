"""HDF5 data sets of other projects: the flat files of D4RL and the episodes of Minari."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.data.datasets import Dataset, from_arrays
from jaxagents.types import Environment

_FLAT = ("observations", "actions", "rewards", "terminals", "timeouts")
_EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")


def load_hdf5(path: str | Path, environment: Environment, *, num_rows: int = 1) -> Dataset:
    """Reads a downloaded file of D4RL (Fu et al., 2020) or Minari (`main_data.hdf5`).

    The steps are cut into rows of equal length; those that are left over at the end are dropped. If a D4RL file has no
    next observations, the steps that timed out, and a last step that is not terminal, have no known successor: they are
    dropped, and the step before counts as truncated.

    Args:
        path: path of the file.
        environment: environment whose spaces the data must match; its bounds are those of the actions.
        num_rows: E, number of rows, for instance a multiple of the number of devices.

    Returns:
        The data set.

    Raises:
        ValueError: there is no file, it lacks fields, has fewer steps than rows, or does not match the spaces.
        ModuleNotFoundError: h5py is not installed.
    """
    if not Path(path).is_file():
        raise ValueError(f"`path` must be an HDF5 file of D4RL or Minari, got {path}, which is none.")
    with import_h5py().File(path, "r") as file:
        names = sorted((name for name in file if name.startswith("episode_")), key=lambda name: int(name[8:]))
        steps = _of_minari(file, names) if names else _of_d4rl(file)
    count = len(steps["reward"])
    if not 1 <= num_rows <= count:
        raise ValueError(f"`num_rows` must be from 1 to the {count} steps of the file, got {num_rows}.")
    length = count // num_rows
    ended = steps["terminated"] | steps["truncated"]
    steps["first"] = np.concatenate([[True], ended[:-1]])
    rows = {
        name: value[: length * num_rows].reshape(num_rows, length, *value.shape[1:]) for name, value in steps.items()
    }
    return from_arrays({name: np.swapaxes(value, 0, 1) for name, value in rows.items()}, environment)


def _of_d4rl(file: Any) -> dict[str, np.ndarray]:
    _require_fields(file, _FLAT, "the file")
    observation, action, reward, terminated, truncated = (np.asarray(file[name]) for name in _FLAT)
    terminated, truncated = terminated.astype(bool), truncated.astype(bool)
    if "next_observations" in file:
        return _steps(observation, action, reward, terminated, truncated, np.asarray(file["next_observations"]))
    lost = truncated & ~terminated
    lost[-1] = not terminated[-1]
    before = np.append(lost[1:], False) & ~terminated
    following = np.concatenate([observation[1:], observation[-1:]])
    kept = ~lost
    arrays = observation, action, reward, terminated, before, following
    return _steps(*(array[kept] for array in arrays))


def _of_minari(file: Any, names: list[str]) -> dict[str, np.ndarray]:
    episodes = []
    for name in names:
        _require_fields(file[name], _EPISODE, name)
        observation, *others = (np.asarray(file[name][field]) for field in _EPISODE)
        if len(observation) != len(others[0]) + 1:
            raise ValueError(
                f"`observations` of {name} must be one more than its {len(others[0])} actions, got {len(observation)}."
            )
        episodes.append((observation[:-1], *others, observation[1:]))
    return _steps(*(np.concatenate(columns) for columns in zip(*episodes, strict=True)))


def _steps(
    observation: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    next_observation: np.ndarray,
) -> dict[str, np.ndarray]:
    return {
        "observation": observation,
        "action": action,
        "reward": reward,
        "terminated": terminated.astype(bool),
        "truncated": truncated.astype(bool),
        "next_observation": next_observation,
    }


def _require_fields(group: Any, fields: tuple[str, ...], what: str) -> None:
    missing = [name for name in fields if name not in group]
    if missing:
        raise ValueError(f"`path` must hold {', '.join(fields)}, got none of {', '.join(missing)} in {what}.")


def import_h5py() -> Any:
    """Imports h5py, or raises an error that names the extra that installs it."""
    try:
        return importlib.import_module("h5py")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Files of HDF5 need h5py; try `pip install jaxagents[datasets]`.") from error

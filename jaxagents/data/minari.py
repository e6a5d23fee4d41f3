"""Data sets of array worlds in Minari's folder format, for learners of other libraries."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxagents.data.datasets import Dataset
from jaxagents.data.hdf5 import import_h5py
from jaxagents.ops.distributions import is_bounded, squash
from jaxagents.types import Box, Discrete, Environment

_VERSION = "0.5.3"  # Version of Minari that defines this format.


def save_minari(
    folder: str | Path, dataset: Dataset, environment: Environment, *, dataset_id: str, algorithm_name: str = ""
) -> dict[str, Any]:
    """Writes a data set in the format of `minari.load_dataset`: `data/main_data.hdf5` and `data/metadata.json`.

    Every row is split into its episodes. The last episode of a row, if the data end before it does, counts as
    truncated.

    Args:
        folder: folder of the data set, for `minari.load_dataset` `$MINARI_DATASETS_PATH/<dataset_id>`. It must not
            contain `data` yet.
        dataset: see `datasets.Dataset`; its observations must be single arrays.
        environment: environment of the data.
        dataset_id: `namespace/name-v0`, Minari's name of the data set.
        algorithm_name: name of the algorithm that played, for readers.

    Returns:
        The metadata that was written.

    Raises:
        ValueError: the folder already contains data, or the spaces are not single arrays.
        ModuleNotFoundError: h5py is not installed.

    References:
        Younis et al. (2024), Minari; the data format is that of version 0.5.
    """
    spaces = {name: getattr(environment, name) for name in ("observation_space", "action_space")}
    metadata: dict[str, Any] = {name: json.dumps(_describe_space(name, space)) for name, space in spaces.items()}
    data = Path(folder) / "data"
    if data.exists():
        raise ValueError(f"`folder` must hold no data yet, got {data}; try another one.")
    h5py = import_h5py()
    data.mkdir(parents=True)
    count = steps = 0
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for count, episode in enumerate(_episodes(dataset, environment), start=1):
            group = file.create_group(f"episode_{count - 1}")
            group.attrs.update({"id": count - 1, "total_steps": len(episode["rewards"])})
            steps += len(episode["rewards"])
            for name, values in episode.items():
                group[name] = values
    metadata |= {"total_episodes": count, "total_steps": steps, "data_format": "hdf5", "jpeg_encoding": False}
    metadata |= {"dataset_id": dataset_id, "algorithm_name": algorithm_name, "minari_version": _VERSION}
    (data / "metadata.json").write_text(json.dumps(metadata))
    return metadata


def _episodes(dataset: Dataset, environment: Environment) -> Iterator[dict[str, np.ndarray]]:
    """Yields the episodes of all rows; observations have one more entry than the rest."""
    transition = jax.tree.map(np.asarray, jax.jit(dataset)())
    space, action = environment.action_space, transition.action
    if isinstance(space, Box) and is_bounded(space):
        action = np.asarray(squash(action, low=space.low, high=space.high))
    num_steps, num_rows = transition.reward.shape
    for row in range(num_rows):
        ended = transition.terminated[:, row] | transition.truncated[:, row]
        ended[-1] = True
        start = 0
        for end in np.flatnonzero(ended) + 1:
            steps = np.s_[start:end, row]
            truncated = transition.truncated[steps].copy()
            truncated[-1] |= end == num_steps and not transition.terminated[end - 1, row]
            last = transition.next_observation[end - 1 : end, row]
            yield {
                "observations": np.concatenate([transition.observation[steps], last]),
                "actions": action[steps],
                "rewards": transition.reward[steps],
                "terminations": transition.terminated[steps],
                "truncations": truncated,
            }
            start = int(end)


def _describe_space(name: str, space: Any) -> dict[str, Any]:
    """Returns a space in Minari's notation."""
    if isinstance(space, Discrete):
        if not space.shape:
            return {"type": "Discrete", "dtype": "int64", "start": 0, "n": space.num_values}
        values = np.full(space.shape, space.num_values)
        return {
            "type": "MultiDiscrete",
            "dtype": "int64",
            "nvec": values.tolist(),
            "start": np.zeros_like(values).tolist(),
        }
    if not isinstance(space, Box):
        raise ValueError(f"`{name}` must be a single array, got {space}.")
    if np.issubdtype(space.dtype, np.bool_):
        return {"type": "MultiBinary", "n": list(space.shape)}
    bounds = {bound: np.full(space.shape, getattr(space, bound), space.dtype).tolist() for bound in ("low", "high")}
    return {"type": "Box", "dtype": str(np.dtype(space.dtype)), "shape": list(space.shape), **bounds}

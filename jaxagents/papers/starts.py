"""What arms start from: trained once, kept in one immutable file with the results, so that all machines have the same.

`<results>/starts/<address>/<seed>.npz`; large ones are kept in the cache in place of the results.
"""

import base64
import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.papers.arms import Recipe, build_stages, start_address, start_asked
from jaxagents.papers.leases import leased
from jaxagents.papers.runs import write_asked
from jaxagents.papers.seeds import train_seeds
from jaxagents.reporting.progress import open_progress
from jaxagents.training.build import Stage
from jaxagents.training.store import set_aside, write_whole
from jaxagents.types import LanguagePolicy, Params

STARTS_FOLDER = "starts"
SMALL = 4 * 2**20  # Bytes of what is kept with the results.
_INFO = "information"
_POLL_SECONDS = 1.0


class Start(NamedTuple):
    """Parameters that several runs start from.

    Attributes:
        digest: of the parameters themselves.
        params: of one seed.
        evaluation: means by name, of the held-out evaluation.
        stage: that was trained last, built for one seed.
    """

    digest: str
    params: Params
    evaluation: dict[str, float]
    stage: Stage


def prepare_start(
    recipe: Recipe, seed: int, results: str | Path, cache: str | Path, *, say: Callable[[str], Any]
) -> Start:
    """Loads a start, or trains and keeps it.

    It waits where another worker is training it.

    Args:
        recipe: its stages.
        seed: of all of them.
        results: folder that small ones are kept in.
        cache: folder that large ones are kept in.
        say: hears what is trained, and which file is damaged.

    Returns:
        The start.

    Raises:
        ValueError: the file is of other settings than its place says.
        FloatingPointError: it diverged.
    """
    address = start_address(recipe)
    stages = build_stages(recipe, 1)
    places = [start_path(folder, address, seed) for folder in (results, cache)]
    while True:
        for path in places:
            found = _load(path, stages[-1], address, say) if path.exists() else None
            if found is not None:
                return found
        with leased(results, f"start-{address}-{seed}") as mine:
            if mine and not any(path.exists() for path in places):
                say(f"Training the start {address} ({' and '.join(recipe.stages)}, seed {seed}).")
                write_asked(_train(stages, seed, address, places).parent, start_asked(recipe))
                continue
        time.sleep(0.0 if mine else _POLL_SECONDS)


def start_path(folder: str | Path, address: str, seed: int) -> Path:
    """Returns the file of a start."""
    return Path(folder) / STARTS_FOLDER / address / f"{seed}.npz"


def stack_params(params: Sequence[Params]) -> Params:
    """Returns parameters as runs of several seeds take them: with a leading axis, unless there is one."""
    return params[0] if len(params) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def _train(stages: Sequence[Stage], seed: int, address: str, places: Sequence[Path]) -> Path:
    progress = open_progress(sum(stage.num_updates * stage.steps_per_update for stage in stages), stages[-1].name)
    try:
        trained = train_seeds(stages, [seed], None, progress=progress)
    finally:
        progress.close()
    if trained.diverged[0]:
        raise FloatingPointError(f"The start {address} diverged with the seed {seed}; try a smaller learning rate.")
    (curves,), params = trained.curves, jax.device_get(trained.params)
    evaluation = {name: curve["values"][-1] for name, curve in curves.items() if name.startswith("eval/")}
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    information = {
        "address": address,
        "digest": _digest(leaves),
        "evaluation": evaluation,
        "tokenizer": _tokenizer(stages[-1]),
        "dtypes": [str(leaf.dtype) for leaf in leaves],
    }
    # Types that numpy does not know, such as bfloat16, are kept as bytes.
    arrays: dict[str, Any] = {
        str(i): np.ascontiguousarray(leaf).view(np.uint8) if leaf.ndim else leaf for i, leaf in enumerate(leaves)
    }
    content = _pack(arrays, information)
    path = places[0 if len(content) <= SMALL else 1]
    write_whole(path, content, once=True)
    return path


def copy_start(path: Path, target: Path, address: str) -> bool:
    """Writes a start to the place of another address, unless there is one; returns whether it was written."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name != _INFO}
        information = json.loads(str(file[_INFO])) | {"address": address}
    return write_whole(target, _pack(arrays, information), once=True)


def _pack(arrays: Mapping[str, np.ndarray], information: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    named: dict[str, Any] = {**arrays, _INFO: np.array(json.dumps(information))}
    np.savez(buffer, **named)
    return buffer.getvalue()


def _load(path: Path, stage: Stage, address: str, say: Callable[[str], Any]) -> Start | None:
    """Returns a start; None, and the file set aside, where it is damaged."""
    abstract, structure = jax.tree.flatten(stage.runner.abstract.learner.params)
    try:
        with np.load(path, allow_pickle=False) as file:
            information = json.loads(str(file[_INFO]))
            leaves = [
                _as_array(file[str(i)], name, leaf.shape)
                for i, (name, leaf) in enumerate(zip(information["dtypes"], abstract, strict=True))
            ]
        if _digest(leaves) != information["digest"]:
            raise ValueError("its parameters are not those of its digest")
        if information["tokenizer"] != _tokenizer(stage):
            raise ValueError("its tokenizer was another one")
    except Exception as error:  # Whatever a damaged archive makes numpy, zipfile and json say.
        say(f"`{path}` must hold a start, got a damaged file ({error}); it is {set_aside(path)} now.")
        return None
    if information["address"] != address:
        raise ValueError(
            f"`{path}` must hold the start of its place, got that of {information['address']}; remove it: the start is "
            "trained again."
        )
    params = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])
    return Start(information["digest"], params, information["evaluation"], stage)


def _as_array(stored: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    return (stored.view(jnp.dtype(dtype)) if len(shape) else stored).reshape(shape)


def _digest(leaves: Sequence[np.ndarray]) -> str:
    content = hashlib.sha256()
    for leaf in leaves:
        content.update(f"{leaf.dtype}{leaf.shape}".encode())
        content.update(np.ascontiguousarray(leaf).tobytes())
    return content.hexdigest()[:16]


def _tokenizer(stage: Stage) -> str | None:
    """Returns what the tokenizer is made of: training it again may give another one."""
    policy = stage.policy
    return base64.b64encode(policy.tokenizer.data).decode() if isinstance(policy, LanguagePolicy) else None

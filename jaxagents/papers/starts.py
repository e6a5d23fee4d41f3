"""Starts of arms: trained once, and kept in one immutable file with the results, so that all machines share them.

The path is `<results>/starts/<address>/<seed>.npz`; large ones are kept in the cache instead.
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

from jaxagents.data.files import write_whole
from jaxagents.papers.arms import Recipe, build_stages, start_address, start_asked
from jaxagents.papers.leases import take_lease
from jaxagents.papers.metrics import Curves
from jaxagents.papers.runs import write_asked
from jaxagents.papers.seeds import train_seeds
from jaxagents.reporting.progress import open_progress
from jaxagents.training.build import Stage
from jaxagents.training.store import set_aside
from jaxagents.types import LanguagePolicy, Params

STARTS_FOLDER = "starts"
SMALL = 4 * 2**20  # Largest size in bytes of what is kept with the results.
_INFO = "information"
_POLL_SECONDS = 1.0


class Start(NamedTuple):
    """Parameters that several runs start from.

    Attributes:
        digest: digest of the parameters themselves.
        params: parameters of one seed.
        evaluation: means of the held-out evaluation, by name.
        stage: last trained stage, built for one seed.
    """

    digest: str
    params: Params
    evaluation: dict[str, float]
    stage: Stage


def prepare_starts(
    recipe: Recipe,
    seeds: Sequence[int],
    results: str | Path,
    cache: str | Path,
    *,
    say: Callable[[str], Any],
    stages: Sequence[Stage] | None = None,
) -> dict[int, Start]:
    """Loads the starts of seeds; missing ones are trained in parallel and stored.

    It waits for starts that another worker is training.

    Args:
        recipe: recipe whose stages are trained.
        seeds: seeds, with one start each.
        results: folder where small starts are kept.
        cache: folder where large starts are kept.
        say: function that reports what is trained, and which file is damaged.
        stages: stages of the recipe, built for one seed; None: builds them.

    Returns:
        The starts by seed.

    Raises:
        ValueError: a file has other settings than its path says.
        FloatingPointError: a start diverged; the others are kept.
    """
    address = start_address(recipe)
    stages = stages or build_stages(recipe, 1)
    places = {seed: [start_path(folder, address, seed) for folder in (results, cache)] for seed in seeds}
    starts: dict[int, Start] = {}
    missing = [*places]
    while True:
        for seed in missing:
            loaded = (_load(path, stages[-1], address, say) for path in places[seed] if path.exists())
            if (found := next((start for start in loaded if start is not None), None)) is not None:
                starts[seed] = found
        if not (missing := [seed for seed in places if seed not in starts]):
            return starts
        leases = {seed: take_lease(results, f"start-{address}-{seed}") for seed in missing}
        mine = [seed for seed in missing if leases[seed] and not any(path.exists() for path in places[seed])]
        try:
            if mine:
                several = f"seed{'s' * (len(mine) > 1)} {', '.join(map(str, mine))}"
                say(f"Training the start {address} ({' and '.join(recipe.stages)}, {several}).")
                group = stages if len(mine) == 1 else build_stages(recipe, len(mine))
                write_asked(_train(group, mine, address, places).parent, start_asked(recipe))
        finally:
            for lease in leases.values():
                if lease is not None:
                    lease.release()
        if not any(leases.values()):
            time.sleep(_POLL_SECONDS)


def start_path(folder: str | Path, address: str, seed: int) -> Path:
    """Returns the file of a start."""
    return Path(folder) / STARTS_FOLDER / address / f"{seed}.npz"


def stack_params(params: Sequence[Params]) -> Params:
    """Returns parameters in the form that runs of several seeds take: with a leading axis for several starts."""
    return params[0] if len(params) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def _train(stages: Sequence[Stage], seeds: Sequence[int], address: str, places: Mapping[int, Sequence[Path]]) -> Path:
    progress = open_progress(sum(stage.num_updates * stage.steps_per_update for stage in stages), stages[-1].name)
    try:
        trained = train_seeds(stages, seeds, None, progress=progress)
    finally:
        progress.close()
    params = jax.device_get(trained.params)
    for index, seed in enumerate(seeds):
        if not trained.diverged[index]:
            own = params if len(seeds) == 1 else jax.tree.map(lambda leaf, index=index: leaf[index], params)
            path = _write(own, trained.curves[index], stages[-1], address, places[seed])
    if any(trained.diverged):
        failed = ", ".join(str(seed) for seed, diverged in zip(seeds, trained.diverged) if diverged)
        raise FloatingPointError(f"The start {address} diverged with the seed {failed}; try a smaller learning rate.")
    return path


def _write(params: Params, curves: Curves, stage: Stage, address: str, places: Sequence[Path]) -> Path:
    evaluation = {name: curve["values"][-1] for name, curve in curves.items() if name.startswith("eval/")}
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    information = {
        "address": address,
        "digest": _digest(leaves),
        "evaluation": evaluation,
        "tokenizer": _tokenizer(stage),
        "dtypes": [str(leaf.dtype) for leaf in leaves],
    }
    # Dtypes that numpy does not know, such as bfloat16, are stored as bytes.
    arrays: dict[str, Any] = {
        str(i): np.ascontiguousarray(leaf).view(np.uint8) if leaf.ndim else leaf for i, leaf in enumerate(leaves)
    }
    content = _pack(arrays, information)
    path = places[0 if len(content) <= SMALL else 1]
    write_whole(path, content, once=True)
    return path


def copy_start(path: Path, target: Path, address: str) -> bool:
    """Copies a start to another address, unless one is there; returns whether it was written."""
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
    """Returns a start; if its file is damaged, sets the file aside and returns None."""
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
    except Exception as error:  # Covers whatever numpy, zipfile and json raise for a damaged archive.
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
    """Returns a fingerprint of the tokenizer, because training it again may give a different one."""
    policy = stage.policy
    return base64.b64encode(policy.tokenizer.data).decode() if isinstance(policy, LanguagePolicy) else None

"""Whether two codes are one program: then the runs of the earlier one count for today's, and nothing is run again.

Code is followed by name, so that runs become stale where a function is only moved, renamed or said differently. What an
arm computes is told by its traced programs: `<results>/programs/<train>/<evaluation>/<code>.json` has a hash of all of
them, for every code that runs were made with. Where that of an earlier code is today's, its runs count. Unlike a seed
that is run again, this does not depend on the machine.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxagents.papers.arms import Composed, Recipe, build_stages, start_address
from jaxagents.papers.closure import code_digest
from jaxagents.papers.fingerprint import fingerprint
from jaxagents.papers.runs import Address, content_digest, write_once
from jaxagents.training.build import Stage

PROGRAMS_FOLDER = "programs"
_HOST = ("jaxagents.papers.seeds.train_seeds",)  # What is not traced: chunks, evaluations and curves.


class _Told(NamedTuple):
    """What a file holds: the hash of programs, and of the code that runs them; the versions of packages are in both."""

    program: str
    host: str


def program_digest(*recipes: Recipe) -> str:
    """Computes the hash of the programs of stages: how they start, train and are evaluated.

    Args:
        *recipes: trained one after the other, the later ones from the parameters of the earlier one.

    Returns:
        16 hexadecimal digits.
    """
    told: list[str] = []
    start: Any = None
    for recipe in recipes:
        more, start = _of_recipe(recipe, start)
        told += more
    return content_digest({"programs": told})


def note_programs(results: str | Path, composed: Composed) -> str:
    """Writes down what the programs of an arm, and of what it starts from, are with today's code.

    What cannot be traced fails no run: a user's code may do on the host what it likes.

    Args:
        results: folder of the store.
        composed: the arm; a function may do anything, and has none.

    Returns:
        Why they cannot be traced, "" where they can.
    """
    try:
        for start in (one for one in (composed.start, *composed.companions.values()) if one is not None):
            _note(results, start_address(start), start)
        if composed.recipe is not None:
            _note(results, composed.address, *(one for one in (composed.start, composed.recipe) if one is not None))
    except OSError:  # A full disk is told as for runs.
        raise
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _note(results: str | Path, address: Address, *recipes: Recipe) -> None:
    path = _path(results, address)
    if _read(path) is None:
        told = {"program": program_digest(*recipes), "host": code_digest(_HOST)}
        write_once(path, (json.dumps({"digest": content_digest(told), **told}, indent=1) + "\n").encode())


def same_programs(results: str | Path, address: Address) -> frozenset[str]:
    """Returns the hashes of earlier codes that are known to be the program of an address; none if its own is unknown.

    Args:
        results: folder of the store.
        address: of the arm as it is now.
    """
    path = _path(results, address)
    today = _read(path)
    others = [] if today is None else [other for other in path.parent.glob("*.json") if other != path]
    return frozenset(other.stem for other in others if _read(other) == today)


def _of_recipe(recipe: Recipe, start: Any) -> tuple[list[str], Any]:
    """Returns the hashes of the programs of stages, and the shapes of the parameters that the last one ends with."""
    told: list[str] = []
    ends: dict[str, Any] = {}
    stages = build_stages(recipe, 1)
    for index, stage in enumerate(stages, start=recipe.first):
        begin = None if stage.start is None else ends.get(stage.start, start)
        told += _of_stage(stage, index, begin)
        ends[stage.name] = stage.runner.abstract.learner
    return told, jax.eval_shape(stages[-1].runner.params, stages[-1].runner.abstract)


def _of_stage(stage: Stage, index: int, start: Any) -> list[str]:
    runner, abstract = stage.runner, stage.runner.abstract
    limits = {unit: np.zeros(abstract.update.shape, np.int32) for unit in stage.training.experience}
    return [
        fingerprint(partial(runner.init, 0, index), start),
        fingerprint(lambda state: runner.run(state, 1, limits=limits), abstract),
        *(
            fingerprint(lambda learner, evaluate=evaluate: evaluate(learner.params), abstract.learner)
            for evaluate in (stage.evaluate, stage.evaluate_last)
        ),
        f"{stage.num_updates} updates of {stage.steps_per_update}",
    ]


def _path(results: str | Path, address: Address) -> Path:
    return Path(results) / PROGRAMS_FOLDER / address.train / address.evaluation / f"{address.code}.json"


def _read(path: Path) -> _Told | None:
    """Reads a file; None where there is none, or a damaged one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        told = {name: content[name] for name in _Told._fields}
        return _Told(**told) if content["digest"] == content_digest(told) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None

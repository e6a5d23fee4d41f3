"""What the arms of a paper start from: trained once, and kept for the next time."""

import base64
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.papers.arms import Composed
from jaxagents.papers.seeds import train_seeds
from jaxagents.reporting.progress import open_progress
from jaxagents.training.build import Stage, build_stage, stage_configs
from jaxagents.training.checkpoints.manager import open_checkpoints
from jaxagents.training.config import DevicesConfig, config_hash, make_section
from jaxagents.types import LanguagePolicy, Params

_DETERMINE = ("environment", "learner", "collector", "quick")


class Start(NamedTuple):
    """Parameters that several runs start from.

    Attributes:
        digest: of everything that determines them.
        params: of one seed.
        evaluation: means by name, of the held-out evaluation.
        trained: whether they were trained just now.
    """

    digest: str
    params: Params
    evaluation: dict[str, float]
    trained: bool


def start_digest(composed: Composed, start: str, seed: int) -> str:
    """Returns the hash of what determines a start and its evaluation: not logs, devices, other stages."""
    config = stage_configs(composed.config)[start]
    counted = {name: config[name] for name in _DETERMINE}
    evaluation = {name: value for name, value in config["evaluation"].items() if name != "every_steps"}
    length = config["training"]["total_steps"]
    return config_hash({**counted, "evaluation": evaluation, "total_steps": length, "seed": seed})


def prepare_start(
    composed: Composed, start: str, seed: int, folder: str | Path, *, say: Callable[[str], Any], redo: bool = False
) -> Start:
    """Loads the start of an arm, or trains and keeps it.

    Args:
        composed: the arm.
        start: name of its first stage.
        seed: of the stage.
        folder: where starts are kept, one folder of each digest.
        say: hears what is trained, and why a kept one is not used.
        redo: trains it in any case, as after a change of the code.

    Returns:
        The start.
    """
    digest = start_digest(composed, start, seed)
    config = stage_configs({**composed.config, "seeds": 1})[start]
    stage = build_stage(start, config, make_section(DevicesConfig, "devices", config["devices"]))
    home = Path(folder).expanduser() / digest
    kept = None if redo else _load(home, stage, say)
    if kept is not None:
        return Start(digest=digest, params=kept[0], evaluation=kept[1], trained=False)
    say(f"Training the start {digest} ({start} of {composed.name}, seed {seed}).")
    progress = open_progress(stage.num_updates * stage.steps_per_update, start)
    try:
        (curves,), params = train_seeds([stage], [seed], None, progress=progress)
    finally:
        progress.close()
    evaluation = {name: curve["values"][-1] for name, curve in curves.items() if name.startswith("eval/")}
    _keep(home, params, {"evaluation": evaluation, "config": config, "tokenizer": _tokenizer(stage)})
    return Start(digest=digest, params=params, evaluation=evaluation, trained=True)


def _load(home: Path, stage: Stage, say: Callable[[str], Any]) -> tuple[Params, dict[str, float]] | None:
    if not home.is_dir():
        return None
    try:
        with closing(open_checkpoints(home, keep=1)) as checkpoints:
            restored = checkpoints.restore(stage.runner.abstract.learner.params, on_fallback=lambda message: None)
        if restored is None:
            raise ValueError("its save was cut off")
        if restored.metadata["tokenizer"] != _tokenizer(stage):
            raise ValueError("its tokenizer was another one")
    except (ValueError, OSError, KeyError) as error:
        say(f"The kept start in {home} is not used, and trained again: {error}")
        return None
    return restored.state, restored.metadata["evaluation"]


def _keep(home: Path, params: Params, metadata: Mapping[str, Any]) -> None:
    """Saves beside the final place and moves the whole folder there: it is complete, or it is not there."""
    temporary = home.with_name(f"{home.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with closing(open_checkpoints(temporary, keep=1)) as checkpoints:
        checkpoints.save(0, params, dict(metadata))
    shutil.rmtree(home, ignore_errors=True)
    os.replace(temporary, home)


def _tokenizer(stage: Stage) -> str | None:
    """Returns what the tokenizer is made of: training it again may give another one."""
    speaks = isinstance(stage.policy, LanguagePolicy)
    return base64.b64encode(stage.policy.tokenizer.data).decode() if speaks else None

"""The results of a run: `result.json`, and `report.html`, one self-contained file."""

import base64
import datetime
import importlib.metadata
import json
import platform
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from jaxagents.data.files import write_whole
from jaxagents.reporting.curves import CURVES_FILE, draw_other_curves, write_curves
from jaxagents.reporting.html import write_page
from jaxagents.reporting.loggers import read_metrics, to_json
from jaxagents.reporting.statistics import describe
from jaxagents.reporting.tables import describe_interval
from jaxagents.reporting.transcript_html import TRANSCRIPTS_FILE

RESULT_FILE = "result.json"
REPORT_FILE = "report.html"
FILM_FILE = "play.gif"
CONFIG_FILES = ("config.yaml", ".hydra/config.yaml")  # The first that exists in a run directory is its resolved config.

_MAX_TILES = 8
_LARGEST_FILM = 4 * 2**20  # Bytes; larger films are not embedded in the page.
_FIRST_TILES = ("success", "episode_return", "win_rate", "exploitability")
_PACKAGES = ("jaxagents", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "hydra-core")


def versions() -> dict[str, str]:
    """Describes the software and hardware of a run.

    Returns:
        Versions of python and the installed packages, `platform`, `device`, and `commit` if the code is a git checkout
        (with "+changes" if files differ from it).
    """
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    kinds = sorted({device.device_kind for device in jax.devices()})
    found["platform"] = platform.platform()
    found["device"] = f"{jax.device_count()} x {', '.join(kinds)} ({jax.default_backend()})"
    # If the package is installed inside another repository, that commit would not be the code's.
    commit = _git("rev-parse", "HEAD") if _git("ls-files", Path(__file__).name) else ""
    if commit:
        found["commit"] = commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    return found


def write_result(run_dir: str | Path, result: Mapping[str, Any]) -> Path:
    """Writes `result.json` atomically, with `versions` and the time `finished` unless the result contains them.

    Args:
        run_dir: directory of the run, created if missing.
        result: nested dict of numbers, arrays and strings; non-finite numbers become null.

    Returns:
        Path of the file.
    """
    path = Path(run_dir) / RESULT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = {**result, "versions": result.get("versions", versions()), "finished": result.get("finished", finished)}
    write_whole(path, json.dumps(to_json(content), indent=2, allow_nan=False) + "\n")
    return path


def write_report(run_dir: str | Path, *, curves: bool = True) -> Path:
    """Writes `report.html` from the contents of the run directory: metrics, result and resolved config.

    Args:
        run_dir: directory of the run.
        curves: whether the report has pictures of the metrics.

    Returns:
        Path of the report.

    Raises:
        ValueError: `run_dir` is not a directory, or its metrics are damaged.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise ValueError(f"`run_dir` must be the directory of a run, got {run_dir}.")
    result = _read_result(run_dir)
    made_with = result.pop("versions", None) or versions()
    numbers = {name: value for name, value in _flatten(result) if not isinstance(value, str)}
    words = {name: value for name, value in _flatten(result) if isinstance(value, str)}
    last = _last_values(read_metrics(run_dir))
    scalars = [(name, value) for name, value in last.items() if isinstance(value, int | float)]
    return write_page(
        run_dir / REPORT_FILE,
        "report.html",
        title=words.get("experiment", run_dir.resolve().name),
        subtitle=_subtitle(run_dir, words, made_with),
        tiles=headline(result) or dict(scalars[:_MAX_TILES]),
        command=_command(run_dir),
        judged=_judged(run_dir, result),
        picture=_picture(run_dir) if curves else "",
        others=base64.b64encode((draw_other_curves(run_dir) if curves else None) or b"").decode(),
        film=_film(run_dir),
        result={**numbers, **words},
        transcripts=_read_first(run_dir, TRANSCRIPTS_FILE),
        last=last,
        config=_read_first(run_dir, *CONFIG_FILES),
        made_with=made_with,
    )


def headline(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the main results: the last evaluation, with intervals over seeds, then counts and time."""
    evaluation = result.get("evaluation", {})
    names = sorted(evaluation, key=_rank)
    tiles: dict[str, Any] = {}
    for name in names:
        values = np.asarray(evaluation[name], np.float64)
        if not np.isfinite(values).any():
            continue
        several = values.size > 1
        value = describe_interval(describe(values)) if several else float(values.ravel()[0])
        tiles[f"{name}, {values.size} seeds" if several else name] = value
    tiles = dict(list(tiles.items())[: _MAX_TILES - 3])
    for name in ("steps", "num_seeds", "seconds"):
        if name in result:
            tiles[name] = result[name]
    return tiles


def _judged(run_dir: Path, result: Mapping[str, Any]) -> str:
    """Describes in a sentence or two the last evaluation, and whether the run reached its target."""
    config = yaml.safe_load(_read_first(run_dir, *CONFIG_FILES)) or {}
    evaluation, training = config.get("evaluation") or {}, config.get("training") or {}
    sentences = []
    if "greedy" in evaluation and result.get("evaluation"):
        number = evaluation.get("final_episodes") or evaluation.get("num_episodes")
        actions = "the most probable actions" if evaluation["greedy"] else "sampled actions"
        sentences.append(f"Evaluated on {number} episodes of fixed tasks, by {actions}.")
    if training.get("target_return") is not None and "reached_target" in result:
        reached = "was reached" if result["reached_target"] else "was not reached"
        sentences.append(f"The target, a return of {training['target_return']:g}, {reached}.")
    return " ".join(sentences)


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST_TILES.index(name) if name in _FIRST_TILES else len(_FIRST_TILES), name)


def _command(run_dir: Path) -> str:
    """Returns the command that made a run; "" if its arguments are not stored."""
    path = run_dir / ".hydra" / "overrides.yaml"
    if not path.exists():
        return ""
    overrides = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    return " ".join(["python experiments/train.py", *(_quote(str(override)) for override in overrides)])


def _quote(override: str) -> str:
    """Returns a setting as it is typed in a shell, without its own quotes around a plain path."""
    name, _, value = override.partition("=")
    if re.fullmatch(r"'[\w.+-]*/[\w./+-]*'", value):
        return f"{name}={value[1:-1]}"
    return f'"{override}"' if "'" in override and not re.search(r'["$`\\!]', override) else shlex.quote(override)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _read_result(run_dir: Path) -> dict[str, Any]:
    path = run_dir / RESULT_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _flatten(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _last_values(rows: list[dict[str, Any]]) -> dict[str, Any]:
    last = {}
    for row in rows:
        last.update({name: value for name, value in row.items() if "/" in name})
    return dict(sorted(last.items()))


def _subtitle(run_dir: Path, words: Mapping[str, str], made_with: Mapping[str, str]) -> list[str]:
    commit = made_with.get("commit", "")
    parts = [
        str(run_dir.resolve()),
        words.get("finished", ""),
        made_with.get("device", ""),
        f"commit {commit[:10]}" if commit else "",
    ]
    return [part for part in parts if part]


def _picture(run_dir: Path) -> str:
    """Returns the picture of the curves in base64, drawn if it does not exist; "" if there is nothing to draw."""
    drawn = run_dir / CURVES_FILE
    path = drawn if drawn.exists() else write_curves(run_dir)
    return "" if path is None else base64.b64encode(path.read_bytes()).decode()


def _film(run_dir: Path) -> str:
    """Returns the film of the playing agent in base64; "" if there is none that is small enough."""
    path = run_dir / FILM_FILE
    small = path.exists() and path.stat().st_size <= _LARGEST_FILM
    return base64.b64encode(path.read_bytes()).decode() if small else ""


def _read_first(run_dir: Path, *names: str) -> str:
    """Returns the text of the first of these files that exists; "" if none does."""
    texts = ((run_dir / name).read_text(encoding="utf-8") for name in names if (run_dir / name).exists())
    return next(texts, "")

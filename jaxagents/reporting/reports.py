"""What is left of a run: `result.json`, and `report.html`, one file that needs nothing else."""

import base64
import datetime
import html
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxagents.reporting.curves import CURVES_FILE, write_curves
from jaxagents.reporting.loggers import read_metrics, to_json, write_atomically
from jaxagents.reporting.transcript_html import TRANSCRIPTS_FILE

RESULT_FILE = "result.json"
REPORT_FILE = "report.html"
CONFIG_FILES = ("config.yaml", ".hydra/config.yaml")  # the first that a run directory has is its resolved config

_PACKAGES = ("jaxagents", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "hydra-core")

_STYLE = """
:root { color-scheme: light dark; --page: #f5f7fa; --card: #fff; --text: #1f2933; --quiet: #616e7c; --line: #e4e7eb;
  --accent: #2e6f95; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --card: #1e242b; --text: #e4e7eb; --quiet: #9aa5b1;
  --line: #323f4b; --accent: #7cc4e8; } main img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
.quiet { color: var(--quiet); margin: 4px 0 24px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-bottom: 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 12px; margin-bottom: 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 22px; color: var(--accent); font-variant-numeric: tabular-nums; }
.tile span { color: var(--quiet); font-size: 13px; overflow-wrap: anywhere; }
img { display: block; width: 100%; background: #fff; border-radius: 6px; padding: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
th { font-weight: 500; color: var(--quiet); width: 40%; }
pre { margin: 0; overflow-x: auto; font: 13px/1.5 ui-monospace, monospace; }
summary { cursor: pointer; font-weight: 600; font-size: 17px; }
details[open] summary { margin-bottom: 12px; }
iframe { width: 100%; height: 70vh; border: 1px solid var(--line); border-radius: 6px; }
"""


def versions() -> dict[str, str]:
    """Describes what a run was made with.

    Returns:
        Versions of python and the packages at hand, `platform`, `device`, and `commit` where the code is a git
        checkout ("+changes" when files differ from it).
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
    # Installed into an environment that lies inside somebody's repository, that commit would not be the code's.
    commit = _git("rev-parse", "HEAD") if _git("ls-files", Path(__file__).name) else ""
    if commit:
        found["commit"] = commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    return found


def write_result(run_dir: str | Path, result: Mapping[str, Any]) -> Path:
    """Writes `result.json` atomically, with `versions` and the time `finished` unless the result has its own.

    Args:
        run_dir: directory of the run, created if missing.
        result: nested dict of numbers, arrays, strings; what is not finite becomes null.

    Returns:
        Path of the file.
    """
    path = Path(run_dir) / RESULT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = {**result, "versions": result.get("versions", versions()), "finished": result.get("finished", finished)}
    write_atomically(path, json.dumps(to_json(content), indent=2, allow_nan=False) + "\n")
    return path


def write_report(run_dir: str | Path) -> Path:
    """Writes `report.html` from what the run directory has: metrics, result and resolved config.

    Args:
        run_dir: directory of the run.

    Returns:
        Path of the report.

    Raises:
        ValueError: `run_dir` is no directory, or its metrics are damaged.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise ValueError(f"`run_dir` must be the directory of a run, got {run_dir}.")
    result = _read_result(run_dir)
    made_with = result.pop("versions", None) or versions()
    numbers = {name: value for name, value in _flatten(result) if not isinstance(value, str)}
    words = {name: value for name, value in _flatten(result) if isinstance(value, str)}
    last = _last_values(read_metrics(run_dir))
    title = html.escape(run_dir.resolve().name)
    body = [
        f"<h1>{title}</h1>",
        f'<p class="quiet">{html.escape(" · ".join(_subtitle(words, made_with)))}</p>',
        _tiles(numbers or last),
        _section("Curves", _picture(run_dir)),
        _section("Result", _table({**numbers, **words})),
        _section("Transcripts before and after training", _transcripts(run_dir), folded=True),
        _section("Last value of every metric", _table(last), folded=True),
        _section("Config", _config(run_dir), folded=True),
        _section("Made with", _table(made_with)),
    ]
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><main>\n{''.join(body)}</main></body></html>\n"
    )
    path = run_dir / REPORT_FILE
    write_atomically(path, page)
    return path


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


def _subtitle(words: Mapping[str, str], made_with: Mapping[str, str]) -> list[str]:
    commit = made_with.get("commit", "")
    parts = [words.get("finished", ""), made_with.get("device", ""), f"commit {commit[:10]}" if commit else ""]
    return [part for part in parts if part]


def _tiles(numbers: Mapping[str, Any]) -> str:
    shown = [(name, value) for name, value in numbers.items() if isinstance(value, int | float)][:8]
    tiles = [f'<div class="tile"><b>{_show(value)}</b><span>{html.escape(name)}</span></div>' for name, value in shown]
    return f'<div class="tiles">{"".join(tiles)}</div>\n' if tiles else ""


def _section(title: str, content: str, folded: bool = False) -> str:
    if not content:
        return ""
    if folded:
        return f"<section><details><summary>{title}</summary>{content}</details></section>\n"
    return f"<section><h2>{title}</h2>{content}</section>\n"


def _picture(run_dir: Path) -> str:
    path = run_dir / CURVES_FILE
    path = path if path.exists() else write_curves(run_dir)
    if path is None:
        return ""
    return f'<img alt="Learning curves" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'


def _transcripts(run_dir: Path) -> str:
    """Puts the page that a run of a text world leaves into a frame: its style stays its own."""
    path = run_dir / TRANSCRIPTS_FILE
    if not path.exists():
        return ""
    return f'<iframe title="Transcripts" srcdoc="{html.escape(path.read_text(encoding="utf-8"))}"></iframe>'


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"<tr><th>{html.escape(name)}</th><td>{_show(value)}</td></tr>" for name, value in values.items()]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _config(run_dir: Path) -> str:
    for name in CONFIG_FILES:
        if (run_dir / name).exists():
            return f"<pre>{html.escape((run_dir / name).read_text(encoding='utf-8'))}</pre>"
    return ""


def _show(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(_show(item) for item in value)
    return html.escape(str(value))

"""What was measured of a paper: `experiments/results/<id>.json`."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagents.reporting.loggers import to_json, write_atomically

_KEYS = ("paper", "arms", "starts")


def read_results(path: str | Path, paper_id: str | None = None) -> dict[str, Any]:
    """Reads the results of a paper, empty ones where there is no file.

    Args:
        path: of the file.
        paper_id: of the paper; None takes any.

    Returns:
        `{"paper": id, "arms": {name: {"hash", "start", "budget", "runs": {seed: run}}}, "starts": {hash: means}, ...}`;
        arms of earlier settings are listed in `earlier`, see `select_arms`.

    Raises:
        ValueError: the file is damaged, or of another paper.
    """
    path = Path(path)
    if not path.exists():
        return {"paper": paper_id, "arms": {}, "starts": {}}
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(results, dict) or [key for key in _KEYS if key not in results]:
            raise ValueError(f"it lacks one of {', '.join(_KEYS)}")
        for arm in [*results["arms"].values(), *results.get("earlier", ())]:
            _ = arm["hash"], [run["curves"] for seed, run in arm["runs"].items() if int(seed) >= 0]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must hold the results of a paper, got a damaged file ({error}); nothing was changed; "
            "try the version in git, or delete it to start from scratch."
        ) from error
    if paper_id is not None and results["paper"] != paper_id:
        raise ValueError(f"`{path}` must hold the results of {paper_id}, got those of {results['paper']}.")
    return results


def write_results(path: str | Path, results: Mapping[str, Any]) -> None:
    """Writes the results of a paper; after a kill the file holds what it held before, or all of this."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_json(results), indent=1, allow_nan=False)
    # Curves on one line each.
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda match: re.sub(r"\s+", " ", match.group(0)), text)
    write_atomically(path, text + "\n")


def select_arms(results: Mapping[str, Any], digests: Mapping[str, str], redo: Sequence[str] = ()) -> dict[str, Any]:
    """Separates results of today's settings from stale ones, which are kept and never mixed with them.

    Args:
        results: see `read_results`.
        digests: hash of every arm of the paper as it is now.
        redo: arms whose results of today's settings are dropped.

    Returns:
        The results with today's arms, found among the earlier ones where settings were set back, in `arms`; what they
        start from in `starts`; and all others in `earlier`, each with its name and the evaluation of its start.
    """
    stored = [
        {"name": name, **arm, "start_evaluation": results["starts"].get(arm.get("start"))}
        for name, arm in results["arms"].items()
    ]
    arms, starts, earlier = {}, {}, []
    for arm in [*stored, *results.get("earlier", ())]:
        name, digest, evaluation = arm["name"], arm.get("start"), arm["start_evaluation"]
        if arm["hash"] != digests.get(name) or name in arms or starts.get(digest, evaluation) != evaluation:
            earlier.append(arm)
        elif name not in redo:
            arms[name] = {key: value for key, value in arm.items() if key not in ("name", "start_evaluation")}
            starts |= {digest: evaluation} if digest else {}
    return {**results, "arms": arms, "starts": starts, "earlier": earlier}


def stale_arms(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the arms of earlier settings by a name that says so."""
    named: dict[str, dict[str, Any]] = {}
    for arm in results.get("earlier", ()):
        name = f"{arm['name']} (stale)"
        named[f"{arm['name']} (stale {arm['hash'][:6]})" if name in named else name] = arm
    return named

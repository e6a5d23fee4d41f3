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
        `{"paper": id, "arms": {name: {"hash", "start", "budget", "runs": {seed: run}}}, "starts": {hash: means}, ...}`.

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
        for arm in results["arms"].values():
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


def select_arms(
    results: Mapping[str, Any], digests: Mapping[str, str], redo: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Returns the arms of earlier results that may be gone on with.

    Args:
        results: see `read_results`.
        digests: hash of every arm of the paper as it is now.
        redo: arms whose earlier results are dropped.

    Returns:
        The arms that are kept.

    Raises:
        ValueError: an arm that is not redone was made with another config, or is not in the paper any more.
    """
    kept = {name: arm for name, arm in results["arms"].items() if name not in redo}
    changed = [
        f"{name} (config {arm['hash']}, now {digests.get(name, 'not an arm of it')})"
        for name, arm in kept.items()
        if arm["hash"] != digests.get(name)
    ]
    if changed and not redo:
        raise ValueError(
            f"`{results['paper']}` must have the config that its earlier results were made with, got changed arms: "
            f"{'; '.join(changed)}; try redo=true, which replaces the results of changed arms, or set them back."
        )
    return {name: arm for name, arm in kept.items() if arm["hash"] == digests.get(name)}

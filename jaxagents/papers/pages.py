"""The page of all papers: `experiments/results/README.md`, from the JSON files beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxagents.papers.arms import compose_arms
from jaxagents.papers.spec import load_paper
from jaxagents.papers.store import read_results, select_arms, stale_arms
from jaxagents.papers.verdicts import conclude
from jaxagents.reporting.loggers import write_atomically
from jaxagents.reporting.tables import describe_finding, describe_interval

REPORT_FILE = "README.md"
_HEAD = """# Papers, reproduced small

Written by `python experiments/report.py` from the JSON files beside it; do not edit. A number is the mean over seeds
with its 95 % Student interval. Differences are taken seed by seed; their interval decides, by the rule of
`jaxagents/papers/verdicts.py`, on expectations that were written down before the runs. Stale
numbers were measured with earlier settings: they are shown, but not compared with new ones, and say no verdict.

| paper | verdict | metric | arms | minutes |
|---|---|---|---|---|
"""


def write_paper_report(folder: str | Path, config_folder: str | Path) -> Path:
    """Writes the page of all results in a folder.

    Args:
        folder: holds `<id>.json` files of `experiments/reproduce.py`, and the pictures beside them.
        config_folder: holds the papers as they are now.

    Returns:
        Path of the page.

    Raises:
        ValueError: `folder` is missing, or a file in it is damaged or was cut off before its verdict.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"`results_folder` must be a folder of results, got {folder}; run reproduce.py first.")
    papers = {path.stem: read_conclusion(path, config_folder) for path in sorted(folder.glob("*.json"))}
    sections = [_section(name, results, folder) for name, results in papers.items()]
    lines = [_line(name, results) for name, results in papers.items()]
    path = folder / REPORT_FILE
    write_atomically(path, _HEAD + "".join(lines) + "".join(sections))
    return path


def read_conclusion(path: str | Path, config_folder: str | Path) -> dict[str, Any]:
    """Reads results and concludes from those of today's settings; stale ones are told apart and get no verdict.

    Args:
        path: file of `experiments/reproduce.py`.
        config_folder: holds the paper as it is now.

    Returns:
        See `conclude`.

    Raises:
        ValueError: the file is damaged, or was cut off before its verdict.
    """
    results = read_results(path)
    if "verdict" not in results:
        raise ValueError(f"`{path}` must be finished, got no verdict; run reproduce.py again.")
    paper = load_paper(Path(config_folder) / "paper", results["paper"])
    composed = compose_arms(paper, Path(config_folder), **results.get("settings", {}))
    return conclude(paper, select_arms(results, {name: arm.digest for name, arm in composed.items()}))


def _line(name: str, results: Mapping[str, Any]) -> str:
    metric = results["metrics"][0]
    arms = [f"{arm} {describe_interval(means.get(metric))}" for arm, means in _summaries(results)]
    return _row(f"[{name}](#{name})", results["verdict"], metric, "; ".join(arms), f"{results['minutes']:.1f}")


def _section(name: str, results: Mapping[str, Any], folder: Path) -> str:
    metrics = [metric for metric in results["metrics"] if any(metric in arm for _, arm in _summaries(results))]
    lines = [
        f"\n## {name}\n\n*{results['title']}*\n\n",
        f"The paper: {results['claim']}\n\n**{results['verdict'].capitalize()}.**\n\n",
        *[f"- {f['verdict']}: {f['expectation']}; {describe_finding(f)}\n" for f in results["findings"]],
        "\n",
        _row("arm", "seeds", *metrics, "minutes"),
        _row(*["---"] * (len(metrics) + 3)),
        *[_arm(arm, means, results, metrics) for arm, means in _summaries(results)],
    ]
    for metric, values in results["start"].items():
        if values:
            lines.append(f"\nBefore training, {metric}: {', '.join(f'{value:.3g}' for value in values.values())}.\n")
    if results["notes"]:
        lines.append(f"\n{results['notes'].strip()}\n")
    if (folder / f"{name}.png").exists():
        lines.append(f"\n![{name}]({name}.png)\n")
        if results["stale"] and not results["summary"]:
            lines.append("\nThe picture is of the earlier settings, too.\n")
    made = results.get("versions", {})
    lines.append(f"\nMade on {made.get('device', '?')}, commit {made.get('commit', '?')[:10]}.\n")
    return "".join(lines)


def _summaries(results: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns means by arm: those of today's settings, then stale ones."""
    return [*results["summary"].items(), *results["stale"].items()]


def _arm(arm: str, means: Mapping[str, Any], results: Mapping[str, Any], metrics: list[str]) -> str:
    runs = {**results["arms"], **stale_arms(results)}[arm]["runs"].values()
    cells = [describe_interval(means.get(metric)) for metric in metrics]
    return _row(arm, str(len(runs)), *cells, f"{sum(run['minutes'] for run in runs):.1f}")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"

"""The page of all papers: `experiments/results/README.md`, from the JSON files beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxagents.papers.store import read_results
from jaxagents.reporting.loggers import write_atomically
from jaxagents.reporting.tables import describe_finding, describe_interval

REPORT_FILE = "README.md"
_HEAD = """# Papers, reproduced small

Written by `python experiments/report.py` from the JSON files beside it; do not edit. A number is the mean over seeds
with its 95 % bootstrap interval. Differences are taken seed by seed; their Student interval decides, by the rule of
`jaxagents/papers/verdicts.py`, on expectations that were written down before the runs.

| paper | verdict | metric | arms | minutes |
|---|---|---|---|---|
"""


def write_paper_report(folder: str | Path) -> Path:
    """Writes the page of all results in a folder.

    Args:
        folder: holds `<id>.json` files of `experiments/reproduce.py`, and the pictures beside them.

    Returns:
        Path of the page.

    Raises:
        ValueError: `folder` is missing, or a file in it is damaged or was cut off before its verdict.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"`results_folder` must be a folder of results, got {folder}; run reproduce.py first.")
    papers = {path.stem: read_results(path) for path in sorted(folder.glob("*.json"))}
    for name, results in papers.items():
        if "verdict" not in results:
            raise ValueError(f"`{folder / name}.json` must be finished, got no verdict; run reproduce.py again.")
    sections = [_section(name, results, folder) for name, results in papers.items()]
    lines = [_line(name, results) for name, results in papers.items()]
    path = folder / REPORT_FILE
    write_atomically(path, _HEAD + "".join(lines) + "".join(sections))
    return path


def _line(name: str, results: Mapping[str, Any]) -> str:
    metric = results["metrics"][0]
    arms = [f"{arm} {describe_interval(means.get(metric))}" for arm, means in results["summary"].items()]
    return _row(f"[{name}](#{name})", results["verdict"], metric, "; ".join(arms), f"{results['minutes']:.1f}")


def _section(name: str, results: Mapping[str, Any], folder: Path) -> str:
    metrics = [metric for metric in results["metrics"] if any(metric in arm for arm in results["summary"].values())]
    lines = [
        f"\n## {name}\n\n*{results['title']}*\n\n",
        f"The paper: {results['claim']}\n\n**{results['verdict'].capitalize()}.**\n\n",
        *[f"- {f['verdict']}: {f['expectation']}; {describe_finding(f)}\n" for f in results["findings"]],
        "\n",
        _row("arm", "seeds", *metrics, "minutes"),
        _row(*["---"] * (len(metrics) + 3)),
        *[_arm(arm, results, metrics) for arm in results["summary"]],
    ]
    for metric, values in results["start"].items():
        if values:
            lines.append(f"\nBefore training, {metric}: {', '.join(f'{value:.3g}' for value in values.values())}.\n")
    if results["notes"]:
        lines.append(f"\n{results['notes'].strip()}\n")
    if (folder / f"{name}.png").exists():
        lines.append(f"\n![{name}]({name}.png)\n")
    made = results.get("versions", {})
    lines.append(f"\nMade on {made.get('device', '?')}, commit {made.get('commit', '?')[:10]}.\n")
    return "".join(lines)


def _arm(arm: str, results: Mapping[str, Any], metrics: list[str]) -> str:
    runs = results["arms"][arm]["runs"].values()
    cells = [describe_interval(results["summary"][arm].get(metric)) for metric in metrics]
    return _row(arm, str(len(runs)), *cells, f"{sum(run['minutes'] for run in runs):.1f}")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"

"""The page of all papers: `experiments/results/README.md`, from the files of runs beside it."""

from pathlib import Path

from jaxagents.papers.execution import read_paper_runs
from jaxagents.papers.judge import judge
from jaxagents.papers.library import load_paper, paper_files
from jaxagents.papers.study import Paper
from jaxagents.reporting.loggers import write_atomically
from jaxagents.reporting.tables import describe_interval

REPORT_FILE = "README.md"
_HEAD = """# Papers, reproduced small

Written by `python experiments/report.py` from the files of runs beside it; do not edit. A paper's headline is one or
two expectations that were written down before its runs, and decides the verdict; secondary ones are counted. What is
measured is a mean over seeds with its 95 % Student interval; differences are taken seed by seed. The rule is that of
`jaxagents/papers/judge.py`.

| paper | verdict | headline | secondary | seeds | minutes |
|---|---|---|---|---|---|
"""


def write_paper_report(results: str | Path, config_folder: str | Path) -> Path:
    """Writes the table of all papers.

    Args:
        results: folder of results.
        config_folder: `configs`.

    Returns:
        Path of the page.

    Raises:
        ValueError: there is no such folder.
    """
    results = Path(results)
    if not results.is_dir():
        raise ValueError(f"`results_folder` must be a folder of results, got {results}; run reproduce.py first.")
    papers = [load_paper(config_folder, paper_id) for paper_id in paper_files(config_folder)]
    path = results / REPORT_FILE
    write_atomically(path, _HEAD + "".join(_line(paper, results, config_folder) for paper in papers))
    return path


def _line(paper: Paper, results: Path, config_folder: str | Path) -> str:
    verdict = judge(paper, read_paper_runs(paper, config_folder, results))
    headline = [
        f"{finding.expectation.describe()}: "
        + (finding.outcome if finding.measured is None else describe_interval(finding.measured._asdict()))
        for finding in verdict.headline
    ]
    cells = (paper.id, verdict.describe(), "; ".join(headline), verdict.count_secondary(), str(len(paper.seeds)))
    return f"| {' | '.join((*cells, f'{verdict.minutes:.1f}'))} |\n"

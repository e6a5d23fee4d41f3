"""Writes the page of all papers: `python experiments/report.py [results_folder=experiments/results]`."""

import json
from pathlib import Path

from omegaconf import DictConfig

from jaxagents.papers.pages import write_paper_report
from jaxagents.training.command import command

ROOT = Path(__file__).parents[1]


@command("report")
def main(config: DictConfig) -> None:
    """Writes `README.md` into the folder of results; the last line on stdout is one JSON object."""
    quick = "runs/reproduce" if config.quick else None
    path = write_paper_report(config.results_folder or quick or ROOT / "experiments" / "results", ROOT / "configs")
    print(json.dumps({"report": str(path.resolve())}))


if __name__ == "__main__":
    main()

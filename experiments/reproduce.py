"""Tests a paper's claim: `python experiments/reproduce.py paper=gigpo`; settings: configs/paper/reproduce.yaml."""

import json
from pathlib import Path

from omegaconf import DictConfig

from jaxagents.papers.curves import write_paper_curves
from jaxagents.papers.execution import reproduce
from jaxagents.papers.plan import make_request
from jaxagents.papers.spec import load_paper
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.tables import print_paper
from jaxagents.training.command import command

ROOT = Path(__file__).parents[1]


@command("reproduce", folder="configs/paper")  # In configs, `paper=` would choose an option of the group.
def main(config: DictConfig) -> None:
    """Runs what is missing, prints the verdict and, as the last line on stdout, one JSON object."""
    paper = load_paper(ROOT / "configs" / "paper", config.paper)
    request = make_request(config, paper, ROOT)
    results = reproduce(paper, request)
    print_paper(results)
    picture = write_paper_curves(request.results_file.with_suffix(".png"), results)
    means = {arm: {name: told["mean"] for name, told in of.items()} for arm, of in results["summary"].items()}
    files = {"results": str(request.results_file.resolve()), "picture": str(picture.resolve())}
    told = {name: results[name] for name in ("paper", "verdict", "minutes")}
    print(json.dumps(files | to_json(told | {"means": means})))


if __name__ == "__main__":
    main()

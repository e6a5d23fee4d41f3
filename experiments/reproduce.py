"""Tests papers' claims: `python experiments/reproduce.py paper=gigpo,nft`; settings: configs/reproduce.yaml."""

import json
from dataclasses import replace
from pathlib import Path

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.training.command import command
    from jaxagents.training.composition import joined_configs, own_folders
    from jaxagents.training.interrupts import when_interrupted

ROOT = Path(__file__).parents[1]


@command("reproduce", lists=("paper", "study", "arms", "overrides"))
def main(config: DictConfig) -> None:
    """Runs what is missing, prints the verdicts and, as the last line on stdout, one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.papers.execution import run_papers
    from jaxagents.papers.library import load_paper, select_papers
    from jaxagents.papers.migration import migrate
    from jaxagents.papers.plan import check_request, make_request
    from jaxagents.papers.reproduce import check, end_with_parent, run_missing, tell
    from jaxagents.papers.runs import require_layout
    from jaxagents.reporting.loggers import to_json

    own = own_folders()
    with joined_configs(ROOT / "configs", own) as configs, joined_configs(ROOT / "experiments", own) as folder:
        request = replace(make_request(config, ROOT), config_folder=configs)
        papers = [load_paper(folder, name) for name in select_papers(folder, config.paper or (), config.study or ())]
        if not papers:
            raise ValueError(
                "`paper` must be ids, <family>/* or all, or `study` a file of experiments/studies, got neither."
            )
        check_request(papers, request)
        if config.worker is not None:
            end_with_parent()
            turn = config.worker * len(papers) // max(config.workers, 1)  # Each begins elsewhere.
            raise SystemExit(1 if run_papers([*papers[turn:], *papers[:turn]], request) else 0)
        if config.migrate:
            moved = migrate(papers, request, config.renamed or {}, config.added or {})
            print(json.dumps({"results": str(request.results.resolve()), "moved": moved}), flush=True)
            return
        require_layout(request.results)
        if config.check:
            differences, failed = check(papers, request)
            output = {"results": str(request.results.resolve()), "differences": to_json(differences)}
            print(json.dumps(output), flush=True)
            raise SystemExit(int(failed))
        failed = False
        if not config.status and not config.plan:
            with when_interrupted(lambda: "what is stored stays, and the same command runs the rest"):
                failed = run_missing(papers, request, config, Path(__file__).resolve())
        told = {"results": str(request.results.resolve()), "verdicts": tell(papers, request, config)}
    print(json.dumps(told), flush=True)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

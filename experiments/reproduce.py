"""Measures methods, `python experiments/reproduce.py study=turns`, and tests papers' claims, `paper=gigpo,nft`.

Settings: configs/reproduce.yaml.
"""

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
    """Runs what is missing, prints tables or verdicts and, as the last line on stdout, one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.papers.plan import make_request
    from jaxagents.papers.reproduce import end_with_parent, reproduce_papers, reproduce_studies

    if not config.paper and not config.study:
        raise ValueError(
            "`paper` must be ids, <family>/* or all, or `study` a file of experiments/studies, got neither."
        )
    own = own_folders()
    with joined_configs(ROOT / "configs", own) as configs, joined_configs(ROOT / "experiments", own) as folder:
        request = replace(make_request(config, ROOT), config_folder=configs)
        if config.worker is not None:
            end_with_parent()
        run = reproduce_papers if config.paper or config.check or config.migrate else reproduce_studies
        with when_interrupted(lambda: "what is stored stays, and the same command runs the rest"):
            output, failed = run(config, folder, request, Path(__file__).resolve())
    print(json.dumps({"results": str(request.results.resolve()), **output}), flush=True)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

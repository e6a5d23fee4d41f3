"""Writes the index of methods and the pages of studies, `python experiments/report.py`, a site, or the page of a paper.

Settings: configs/report.yaml.
"""

import json
import sys
from pathlib import Path

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.training.command import command
    from jaxagents.training.interrupts import when_interrupted

ROOT = Path(__file__).parents[1]


@command("report")
def main(config: DictConfig) -> None:
    """Writes index, pages of studies and site, or the page of a paper; the last line on stdout is one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.papers.catalogue import read_cards
    from jaxagents.papers.index import read_index
    from jaxagents.papers.pages import write_index, write_study_pages, write_summary
    from jaxagents.papers.site import find_worlds, write_method_page, write_site, write_worlds

    committed = ROOT / "experiments" / "results"
    results = Path(config.results_folder or ("runs/reproduce" if config.quick and not config.site else committed))
    is_committed = results.resolve() == committed.resolve()  # It holds no runs of small variants.
    written: dict[str, str] = {}
    with when_interrupted(lambda: "what is written stays, and the same command writes the rest"):
        families = read_cards(ROOT / "experiments" / "cards")
        if results.is_dir():
            _say(f"Reading the runs of {config.paper or 'all papers'} in {results} ...")
        settings = {"quick": config.quick and not is_committed, "only": config.paper}
        index = read_index(families, ROOT / "experiments", ROOT / "configs", results, **settings)
        if config.paper is not None:
            page = write_method_page(config.page or f"runs/{config.paper}.html", families, index, config.paper)
            return print(json.dumps({"page": str(page)}))
        written["report"] = str(write_index(results, families, index).resolve())
        write_study_pages(results, index)
        if is_committed:
            write_summary(ROOT / "README.md", index)
        if config.site:
            worlds = find_worlds(ROOT / "configs" / "environment", ["frozenlake"] if config.quick else None)
            written["site"] = str(write_site(config.site_folder, families, index, worlds).resolve())
            _say(f"The papers of the site are written, {written['site']}; its worlds follow.")
            write_worlds(config.site_folder, worlds, num_episodes=config.num_episodes, say=_say)
    print(json.dumps(written))


def _say(text: str) -> None:
    """Describes what is done now; the site takes minutes."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

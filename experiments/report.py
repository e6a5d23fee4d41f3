"""Writes the pages of all papers: `python experiments/report.py [site=true]`; settings: configs/report.yaml."""

import json
import sys
from pathlib import Path

from omegaconf import DictConfig

from jaxagents.training.command import command

ROOT = Path(__file__).parents[1]


@command("report")
def main(config: DictConfig) -> None:
    """Writes the pages of results, and the site if wanted; the last line on stdout is one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.papers.catalogue import read_cards, read_entries
    from jaxagents.papers.pages import write_pages, write_summary
    from jaxagents.papers.site import play_worlds, write_site

    results = Path(config.results_folder or ("runs/reproduce" if config.quick else ROOT / "experiments" / "results"))
    families = read_cards(ROOT / "experiments" / "cards")
    if results.is_dir():
        tell(f"Reading the runs of all papers in {results} ...")
    entries = read_entries(families, ROOT / "configs", results, quick=config.quick)
    written = {"report": str(write_pages(results, families, entries).resolve())}
    if results.resolve() == (ROOT / "experiments" / "results").resolve():
        write_summary(ROOT / "README.md", entries)
    if config.site:
        names = ["frozenlake"] if config.quick else None
        told = {"num_episodes": config.num_episodes, "names": names, "say": lambda world: tell(f"Playing {world} ...")}
        worlds = play_worlds(ROOT / "configs" / "environment", **told)
        tell("Writing the site ...")
        written["site"] = str(write_site(config.site_folder, families, entries, worlds).resolve())
    print(json.dumps(written))


def tell(text: str) -> None:
    """Says what is done now; the site takes minutes."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""Writes the pages of all papers: `python experiments/report.py [site=true]`; settings: configs/report.yaml."""

import json
import sys
from pathlib import Path

from omegaconf import DictConfig

from jaxagents.training.command import command
from jaxagents.training.interrupts import when_interrupted

ROOT = Path(__file__).parents[1]


@command("report", lists=("arms",))
def main(config: DictConfig) -> None:
    """Writes the pages of results, the site if wanted, or one picture; the last line on stdout is one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.papers.catalogue import read_cards, read_entries
    from jaxagents.papers.pages import write_pages, write_summary
    from jaxagents.papers.site import play_worlds, write_site

    written: dict[str, str] = {}
    results = Path(config.results_folder or ("runs/reproduce" if config.quick else ROOT / "experiments" / "results"))
    if config.curves is not None:
        return _draw(config, results)
    with when_interrupted(lambda: "the pages are written, the site is not" if written else "not all is written"):
        families = read_cards(ROOT / "experiments" / "cards")
        if results.is_dir():
            _say(f"Reading the runs of all papers in {results} ...")
        entries = read_entries(families, ROOT / "configs", results, quick=config.quick)
        written["report"] = str(write_pages(results, families, entries).resolve())
        if results.resolve() == (ROOT / "experiments" / "results").resolve():
            write_summary(ROOT / "README.md", entries)
        if config.site:
            names = ["frozenlake"] if config.quick else None
            told = {
                "num_episodes": config.num_episodes,
                "names": names,
                "say": lambda world: _say(f"Playing {world} ..."),
            }
            worlds = play_worlds(ROOT / "configs" / "environment", **told)
            _say("Writing the site ...")
            written["site"] = str(write_site(config.site_folder, families, entries, worlds).resolve())
    print(json.dumps(written))


def _say(text: str) -> None:
    """Says what is done now; the site takes minutes."""
    print(text, file=sys.stderr, flush=True)


def _draw(config: DictConfig, results: Path) -> None:
    from jaxagents.papers.execution import read_paper_runs
    from jaxagents.papers.library import load_paper
    from jaxagents.papers.pictures import draw_arms

    paper = load_paper(ROOT / "configs", config.curves)
    runs = read_paper_runs(paper, ROOT / "configs", results, quick=config.quick)
    picture = draw_arms(config.picture or Path("runs") / f"{paper.id}.png", paper, runs, config.arms)
    print(json.dumps({"picture": str(picture)}))


if __name__ == "__main__":
    main()

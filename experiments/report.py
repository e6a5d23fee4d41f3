"""Writes the pages of all papers: `python experiments/report.py [site=true]`; settings: configs/report.yaml."""

import json
import sys
from pathlib import Path

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
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
    from jaxagents.papers.site import find_worlds, write_site, write_worlds

    written: dict[str, str] = {}
    committed = ROOT / "experiments" / "results"
    results = Path(config.results_folder or ("runs/reproduce" if config.quick and not config.site else committed))
    is_committed = results.resolve() == committed.resolve()  # It holds no runs of small variants.
    if config.curves is not None:
        return _draw(config, results)
    with when_interrupted(lambda: "what is written stays, and the same command writes the rest"):
        families = read_cards(ROOT / "experiments" / "cards")
        if results.is_dir():
            _say(f"Reading the runs of all papers in {results} ...")
        entries = read_entries(
            families, ROOT / "experiments", ROOT / "configs", results, quick=config.quick and not is_committed
        )
        written["report"] = str(write_pages(results, families, entries).resolve())
        if is_committed:
            write_summary(ROOT / "README.md", entries)
        if config.site:
            worlds = find_worlds(ROOT / "configs" / "environment", ["frozenlake"] if config.quick else None)
            written["site"] = str(write_site(config.site_folder, families, entries, worlds).resolve())
            _say(f"The papers of the site are written, {written['site']}; its worlds follow.")
            write_worlds(config.site_folder, worlds, entries, num_episodes=config.num_episodes, say=_say)
    print(json.dumps(written))


def _say(text: str) -> None:
    """Describes what is done now; the site takes minutes."""
    print(text, file=sys.stderr, flush=True)


def _draw(config: DictConfig, results: Path) -> None:
    from jaxagents.papers.execution import read_paper_runs
    from jaxagents.papers.library import load_paper
    from jaxagents.papers.pictures import draw_arms
    from jaxagents.papers.study import parse_seeds

    paper = load_paper(ROOT / "experiments", config.curves)
    runs = read_paper_runs(paper, ROOT / "configs", results, quick=config.quick)
    seeds = None if config.seeds is None else parse_seeds("seeds", config.seeds)
    picture = draw_arms(config.picture or Path("runs") / f"{paper.id}.png", paper, runs, config.arms, seeds)
    print(json.dumps({"picture": str(picture)}))


if __name__ == "__main__":
    main()

"""The static site: an index of all papers with search and filters, a page per paper, a page per text world."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.utils import instantiate

from jaxagents.papers.catalogue import Entry, Family
from jaxagents.papers.forest import lay_out_forest
from jaxagents.papers.judge import NOT_RUN, VERDICTS, Finding
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.summary import (
    NOT_TESTED,
    arm_rows,
    authors_rows,
    describe_carried,
    describe_finding,
    describe_seeds,
    panels_of,
    steps_unit,
    tell_finding,
    verdict_of,
)
from jaxagents.reporting.experts import play_experts
from jaxagents.reporting.html import write_page
from jaxagents.reporting.reports import versions
from jaxagents.reporting.transcript_html import describe_episode

_SIZES = {
    "S": "a config and under 60 lines of Python",
    "M": "under 300 lines of Python",
    "L": "a new part of the code base",
}
_MOST_WORLDS = 3  # Cards that need a world before it is offered as a filter.


class WorldPage(NamedTuple):
    """What the page of a text world shows.

    Attributes:
        name: option of `configs/environment`.
        about: in a sentence.
        facts: in a few words each.
        episodes: that its expert plays, see `describe_episode`.
    """

    name: str
    about: str
    facts: list[str]
    episodes: list[dict[str, Any]]


def write_site(
    folder: str | Path, families: Sequence[Family], entries: Mapping[str, Entry], worlds: Sequence[WorldPage]
) -> Path:
    """Writes all pages; they refer to nothing outside of the folder.

    Args:
        folder: of the site, created if missing.
        families: see `read_cards`.
        entries: by id, see `read_entries`.
        worlds: see `play_worlds`.

    Returns:
        Path of the index.
    """
    folder = Path(folder)
    for name in ("papers", "worlds"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    made = versions().get("commit", "")[:10]
    for family in families:
        around = [None, *family.cards, None]
        for before, card, after in zip(around, around[1:], around[2:]):
            facts = _paper_facts(entries[card.id]) if entries[card.id].paper else {"paper": None, "claim": ""}
            write_page(
                folder / "papers" / f"{card.id}.html",
                "site_paper.html",
                **{"title": card.title, "root": "../", "made": made, "family": family.title, "card": card},
                **{"before": before, "after": after, "world_pages": [world.name for world in worlds]},
                **{"verdict": verdict_of(entries[card.id]), "told": _told(entries[card.id])},
                **facts,
                size_told=_SIZES[card.size],
            )
    for world in worlds:
        needed = [(e.card, verdict_of(e)) for e in entries.values() if world.name in e.card.worlds]
        needed.sort(key=lambda pair: (pair[1] == NOT_TESTED, pair[1] == NOT_RUN))  # What has run comes first.
        write_page(
            folder / "worlds" / f"{world.name}.html",
            "site_world.html",
            **{"title": world.name, "root": "../", "made": made, "world": world, "papers": needed},
        )
    _write_findings(folder / "findings.html", families, entries, made)
    return _write_index(folder / "index.html", families, entries, worlds, made)


def play_worlds(
    folder: str | Path,
    *,
    num_episodes: int,
    names: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda world: None,
) -> list[WorldPage]:
    """Lets the expert of every text world play.

    Args:
        folder: `configs/environment`.
        num_episodes: of each world, the levels in turn.
        names: of worlds; None: all.
        say: hears the name of every world before it is played.

    Returns:
        Their pages, by name.
    """
    pages = []
    for path in sorted(Path(folder).glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        node = yaml.safe_load(text)
        if (names is not None and path.stem not in names) or ".environments.text." not in str(node.get("_target_")):
            continue
        environment = instantiate(node)
        if environment.text is None:
            continue
        say(path.stem)
        facts = [f"at most {environment.max_steps} turns", f"{len(environment.text.words)} words"]
        facts += [f"{environment.text.num_levels} levels"] if environment.text.num_levels > 1 else []
        facts += [f"{environment.num_players} players"] if environment.num_players > 1 else []
        episodes = [describe_episode(episode) for episode in play_experts(environment, num_episodes=num_episodes)]
        pages.append(WorldPage(path.stem, text.partition("\n")[0].removeprefix("#").strip(), facts, episodes))
    return pages


def _write_findings(path: Path, families: Sequence[Family], entries: Mapping[str, Entry], made: str) -> None:
    """Writes the page of what came out: a picture of every family's headlines, and a sentence on each of them."""
    shown = []
    for family in families:
        tested = [entries[card.id] for card in family.cards if entries[card.id].paper is not None]
        if tested:
            papers = [(e.card, verdict_of(e), _told(e), [*map(tell_finding, e.verdict.headline)]) for e in tested]
            headlines = {entry.card.id: entry.verdict.headline for entry in tested}
            forest = lay_out_forest(f"Headlines against their margins: {family.title}", headlines)
            shown.append({"title": family.title, "forest": forest, "papers": papers})
    write_page(path, "site_findings.html", title="What came out", root="", made=made, families=shown)


def _write_index(
    path: Path, families: Sequence[Family], entries: Mapping[str, Entry], worlds: Sequence[WorldPage], made: str
) -> Path:
    words = Counter(verdict_of(entry) for entry in entries.values())
    verdicts = {word: words[word] for word in (*VERDICTS, NOT_TESTED) if words[word]}
    kinds = Counter(entry.card.kind for entry in entries.values())
    needed = Counter(world for entry in entries.values() for world in entry.card.worlds)
    return write_page(
        path,
        "site_index.html",
        title="Papers, reproduced small",
        root="",
        made=made,
        count=len(entries),
        tested=sum(entry.paper is not None for entry in entries.values()),
        untested=NOT_TESTED,
        verdicts=verdicts,
        families=_index_families(families, entries),
        family_titles={family.name: f"{family.title} ({len(family.cards)})" for family in families},
        kinds={kind: f"{kind} ({number})" for kind, number in kinds.most_common()},
        verdict_choices={word: f"{word} ({number})" for word, number in verdicts.items()},
        world_choices={name: f"{name} ({n})" for name, n in needed.most_common() if n >= _MOST_WORLDS},
        worlds=worlds,
    )


def _index_families(families: Sequence[Family], entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """Returns the lines of the index by family: what is tested here comes first, and of that what has run."""
    tested = {card.id: entries[card.id].paper is not None for family in families for card in family.cards}
    shown = []
    for family in sorted(families, key=lambda family: -sum(tested[card.id] for card in family.cards)):
        cards = sorted(family.cards, key=lambda card: (not tested[card.id], verdict_of(entries[card.id]) == NOT_RUN))
        rows = [_index_row(entries[card.id]) for card in cards]
        shown.append({"name": family.name, "title": family.title, "rows": rows})
    return shown


def _index_row(entry: Entry) -> dict[str, Any]:
    card = entry.card
    shown = {name: getattr(card, name) for name in ("id", "title", "kind", "what", "worlds")}
    searched = " ".join((card.id, card.title, card.what, card.headline, *card.worlds)).lower()
    return {**shown, "verdict": verdict_of(entry), "told": _told(entry), "text": searched}


def _told(entry: Entry) -> str:
    return NOT_TESTED if entry.verdict is None else entry.verdict.describe()


def _paper_facts(entry: Entry) -> dict[str, Any]:
    paper, verdict = entry.paper, entry.verdict
    return {
        "paper": paper,
        "claim": paper.claim,
        "changed": entry.changed,
        "forest": lay_out_forest(
            "What was expected, against its margin",
            {"headline": verdict.headline, "secondary": verdict.secondary, "baselines": verdict.checks},
        ),
        "carried": describe_carried(verdict),
        "headline": _rows(verdict.headline),
        "secondary": _rows(verdict.secondary),
        "secondary_count": verdict.count_secondary(),
        "checks": _rows(verdict.checks),
        "pictures": panels_of(entry),
        "steps": steps_unit(entry),
        "arm_names": [arm.name for arm in paper.arms],
        "arms": arm_rows(entry),
        "metrics": reported_metrics(paper),
        "seeds": describe_seeds(paper.seeds),
        "authors": authors_rows(entry),
    }


def _rows(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [
        {"expected": one.expectation.describe(), "outcome": one.outcome, "told": describe_finding(one)}
        for one in findings
    ]

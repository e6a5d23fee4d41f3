"""The static site: an index of all papers with search and filters, a page per paper, a page per text world."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.utils import instantiate

from jaxagents.papers.catalogue import Entry, Family
from jaxagents.papers.forest import lay_out_forest
from jaxagents.papers.judge import NOT_RUN, TRIAL, VERDICTS, Finding
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.summary import (
    NOT_TESTED,
    arm_rows,
    authors_rows,
    describe_finding,
    describe_seeds,
    panels_of,
    steps_unit,
    verdict_of,
)
from jaxagents.reporting.experts import play_experts
from jaxagents.reporting.html import write_page
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.reports import versions
from jaxagents.reporting.transcript_html import describe_episode
from jaxagents.training.config import config_hash
from jaxagents.training.store import holds, read_fields, write_record
from jaxagents.types import Environment

_SIZES = {
    "S": "a config and under 60 lines of Python",
    "M": "under 300 lines of Python",
    "L": "a new part of the code base",
}
_MOST_WORLDS = 3  # Cards that need a world before it is offered as a filter.


class World(NamedTuple):
    """A text world that has a page.

    Attributes:
        name: option of `configs/environment`.
        about: in a sentence.
        node: of its file.
        environment: that it makes.
    """

    name: str
    about: str
    node: Mapping[str, Any]
    environment: Environment


def write_site(
    folder: str | Path, families: Sequence[Family], entries: Mapping[str, Entry], worlds: Sequence[World]
) -> Path:
    """Writes all pages but those of worlds, see `write_worlds`; they refer to nothing outside of the folder.

    Args:
        folder: of the site, created if missing.
        families: see `read_cards`.
        entries: by id, see `read_entries`.
        worlds: see `find_worlds`.

    Returns:
        Path of the index.
    """
    folder = Path(folder)
    (folder / "papers").mkdir(parents=True, exist_ok=True)
    made = _made()
    for family in families:
        around = [None, *family.cards, None]
        for before, card, after in zip(around, around[1:], around[2:]):
            facts = _paper_facts(entries[card.id]) if entries[card.id].paper else {"paper": None, "claim": ""}
            write_page(
                folder / "papers" / f"{card.id}.html",
                "site_paper.html",
                **{"title": card.title, "root": "../", "made": made, "family": family.title, "card": card},
                **{"before": before, "after": after, "world_pages": [world.name for world in worlds]},
                **{"verdict": verdict_of(entries[card.id]), "detail": _outcome(entries[card.id])},
                **facts,
                size=_SIZES[card.size],
            )
    _write_findings(folder / "findings.html", families, entries, made)
    return _write_index(folder / "index.html", families, entries, worlds, made)


def find_worlds(folder: str | Path, names: Sequence[str] | None = None) -> list[World]:
    """Finds the text worlds.

    Args:
        folder: `configs/environment`.
        names: of worlds; None: all.

    Returns:
        The worlds, by name.
    """
    worlds = []
    for path in sorted(Path(folder).glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        node = yaml.safe_load(text)
        if (names is not None and path.stem not in names) or ".environments.text." not in str(node.get("_target_")):
            continue
        environment = instantiate(node)
        if environment.text is not None:
            about = text.partition("\n")[0].removeprefix("#").strip()
            worlds.append(World(path.stem, about, node, environment))
    return worlds


def write_worlds(
    folder: str | Path,
    worlds: Sequence[World],
    entries: Mapping[str, Entry],
    *,
    num_episodes: int,
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Lets the expert of every world play, and writes its page before the next one plays.

    What was played lies beside the page, and is played again where the world, or code that it reaches, has changed.

    Args:
        folder: of the site.
        worlds: see `find_worlds`.
        entries: by id, see `read_entries`.
        num_episodes: of each world, the levels in turn.
        say: hears of every world before it is played.
    """
    folder = Path(folder) / "worlds"
    folder.mkdir(parents=True, exist_ok=True)
    for number, world in enumerate(worlds):
        path, asked = folder / f"{world.name}.json", config_hash({"node": world.node, "episodes": num_episodes})
        if not _is_played(path, asked):
            say(f"Playing {world.name} ({number + 1} of {len(worlds)}) ...")
            write_record(path, asked, _play(world.environment, num_episodes))
        played = read_fields(path)
        needed = [(e.card, verdict_of(e)) for e in entries.values() if world.name in e.card.worlds]
        needed.sort(key=lambda pair: (pair[1] == NOT_TESTED, pair[1] == NOT_RUN))  # What has run comes first.
        write_page(
            folder / f"{world.name}.html",
            "site_world.html",
            **{"title": world.name, "root": "../", "made": _made(), "papers": needed},
            world={"name": world.name, "about": world.about, **played},
        )


def _play(environment: Environment, num_episodes: int) -> dict[str, Any]:
    """Returns what the page of a world shows: facts in a few words each, and episodes, see `describe_episode`."""
    facts = [f"at most {environment.max_steps} turns", f"{len(environment.text.words)} words"]
    facts += [f"{environment.text.num_levels} levels"] if environment.text.num_levels > 1 else []
    facts += [f"{environment.num_players} players"] if environment.num_players > 1 else []
    played = play_experts(environment, num_episodes=num_episodes)
    return to_json({"facts": facts, "episodes": [describe_episode(episode) for episode in played]})


def _is_played(path: Path, asked: str) -> bool:
    try:
        return holds(path, asked)
    except ValueError:  # A damaged file is written anew.
        return False


def _made() -> str:
    return versions().get("commit", "")[:10]


def _write_findings(path: Path, families: Sequence[Family], entries: Mapping[str, Entry], made: str) -> None:
    """Writes the page of what came out: every family's headlines, in a picture and in words."""
    sections = []
    for family in families:
        tested = [entries[card.id] for card in family.cards if entries[card.id].paper is not None]
        if tested:
            papers = [(e.card, verdict_of(e), _outcome(e), _rows(e.verdict.headline)) for e in tested]
            headlines = {entry.card.id: entry.verdict.headline for entry in tested}
            forest = lay_out_forest(f"Headlines against their margins: {family.title}", headlines)
            sections.append({"title": family.title, "forest": forest, "papers": papers})
    write_page(path, "site_findings.html", title="What came out", root="", made=made, families=sections)


def _write_index(
    path: Path, families: Sequence[Family], entries: Mapping[str, Entry], worlds: Sequence[World], made: str
) -> Path:
    words = Counter(verdict_of(entry) for entry in entries.values())
    verdicts = {word: words[word] for word in (*VERDICTS, TRIAL, NOT_TESTED) if words[word]}
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
    sections = []
    for family in sorted(families, key=lambda family: -sum(tested[card.id] for card in family.cards)):
        cards = sorted(family.cards, key=lambda card: (not tested[card.id], verdict_of(entries[card.id]) == NOT_RUN))
        rows = [_index_row(entries[card.id]) for card in cards]
        sections.append({"name": family.name, "title": family.title, "rows": rows})
    return sections


def _index_row(entry: Entry) -> dict[str, Any]:
    card = entry.card
    fields = {name: getattr(card, name) for name in ("id", "title", "kind", "what", "worlds")}
    searched = " ".join((card.id, card.title, card.what, card.headline, *card.worlds)).lower()
    return {**fields, "verdict": verdict_of(entry), "detail": _outcome(entry), "text": searched}


def _outcome(entry: Entry) -> str:
    return NOT_TESTED if entry.verdict is None else entry.verdict.describe(trial=entry.is_trial)


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
        {"expected": one.expectation.describe(), "outcome": one.outcome, "detail": describe_finding(one)}
        for one in findings
    ]

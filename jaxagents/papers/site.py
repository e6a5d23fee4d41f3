"""The static site: an index with search and filters, and a page for each paper, study and text world."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.utils import instantiate

from jaxagents.papers.batch_page import lay_out_batch
from jaxagents.papers.batch_table import BASELINE, cells_of, columns_of, notes_of
from jaxagents.papers.catalogue import Card, Family
from jaxagents.papers.claims import Claim
from jaxagents.papers.forest import lay_out_forest
from jaxagents.papers.index import LEVELS, Entry, Index, StudyEntry
from jaxagents.papers.judge import Finding
from jaxagents.papers.pages import by_progress, summary_of, switch_of, what_stood_out
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.summary import (
    arm_rows,
    authors_rows,
    describe_finding,
    describe_seeds,
    panels_of,
    steps_unit,
    study_panel,
)
from jaxagents.reporting.experts import play_experts
from jaxagents.reporting.html import write_page
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.reports import versions
from jaxagents.reporting.tables import describe_number
from jaxagents.reporting.transcript_html import describe_episode
from jaxagents.training.config import config_hash
from jaxagents.training.store import holds, read_fields, write_record
from jaxagents.types import Environment

_CODE = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{7,40})(?: ([\w./-]+\.\w+)(?::(\d+)(?:-(\d+))?)?)?")


class World(NamedTuple):
    """A text world that has a page.

    Attributes:
        name: option of `configs/environment`.
        about: description in a sentence.
        node: config node of its file.
        environment: environment that the node makes.
    """

    name: str
    about: str
    node: Mapping[str, Any]
    environment: Environment


def write_site(folder: str | Path, families: Sequence[Family], index: Index, worlds: Sequence[World]) -> Path:
    """Writes all pages except those of worlds, see `write_worlds`; pages load nothing from outside the folder.

    Args:
        folder: folder of the site, created if missing.
        families: see `read_cards`.
        index: see `read_index`.
        worlds: see `find_worlds`.

    Returns:
        Path of the index.
    """
    folder = Path(folder)
    for family in families:
        around = [None, *family.cards, None]
        for before, card, after in zip(around, around[1:], around[2:]):
            path = folder / "methods" / f"{card.id}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_method(path, index.entries[card.id], family, index, "../", before, after)
    for name, study in index.studies.items():
        path = folder / "studies" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_page(path, "site_study.html", **_common(name, "../../"), **_study_facts(study, index))
    return _write_index(folder / "index.html", families, index, worlds)


def write_method_page(path: str | Path, families: Sequence[Family], index: Index, paper: str) -> Path:
    """Writes the page of one paper alone, without links to other pages; returns its path."""
    (family,) = [family for family in families if paper in {card.id for card in family.cards}]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return _write_method(path, index.entries[paper], family, index, None)


def find_worlds(folder: str | Path, names: Sequence[str] | None = None) -> list[World]:
    """Finds the text worlds.

    Args:
        folder: `configs/environment`.
        names: names of worlds; None: all.

    Returns:
        The worlds, in order of their names.
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
    *,
    num_episodes: int,
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Lets the expert of every world play, and writes the world's page before the next one plays.

    Episodes are stored beside the page, and played again only if the world, or code that it uses, has changed.

    Args:
        folder: folder of the site.
        worlds: see `find_worlds`.
        num_episodes: number of episodes of each world; they cycle through the levels.
        say: function that reports every world before it is played.
    """
    folder = Path(folder) / "worlds"
    folder.mkdir(parents=True, exist_ok=True)
    for number, world in enumerate(worlds):
        path, asked = folder / f"{world.name}.json", config_hash({"node": world.node, "episodes": num_episodes})
        if not _is_played(path, asked):
            say(f"Playing {world.name} ({number + 1} of {len(worlds)}) ...")
            write_record(path, asked, _play(world.environment, num_episodes))
        write_page(
            folder / f"{world.name}.html",
            "site_world.html",
            **_common(world.name, "../"),
            world={"name": world.name, "about": world.about, **read_fields(path)},
        )


def code_link(text: str) -> str | None:
    """Returns the link to the first file that the field `Code` of a method names; None if it names none."""
    found = _CODE.search(text)
    if found is None:
        return None
    repository, commit, path, first, last = found.groups()
    lines = f"#L{first}" + (f"-L{last}" if last else "") if first else ""
    return f"https://github.com/{repository}/" + (f"blob/{commit}/{path}{lines}" if path else f"tree/{commit}")


def _play(environment: Environment, num_episodes: int) -> dict[str, Any]:
    """Returns the contents of a world's page: facts in a few words each, and episodes, see `describe_episode`."""
    facts = [f"at most {environment.max_steps} turns", f"{len(environment.text.words)} words"]
    facts += [f"{environment.text.num_levels} levels"] if environment.text.num_levels > 1 else []
    facts += [f"{environment.num_players} players"] if environment.num_players > 1 else []
    played = play_experts(environment, num_episodes=num_episodes)
    return to_json({"facts": facts, "episodes": [describe_episode(episode) for episode in played]})


def _is_played(path: Path, asked: str) -> bool:
    try:
        return holds(path, asked)
    except ValueError:  # A damaged file is rewritten.
        return False


def _common(title: str, root: str | None) -> dict[str, Any]:
    return {"title": title, "root": root, "made": versions().get("commit", "")[:10]}


def _write_index(path: Path, families: Sequence[Family], index: Index, worlds: Sequence[World]) -> Path:
    entries = index.entries.values()
    levels, words = Counter(entry.level for entry in entries), Counter(entry.word for entry in entries if entry.word)
    families = by_progress(families, index)
    rows = {family.name: sorted(family.cards, key=lambda card: _rank(index.entries[card.id])) for family in families}
    studies = [
        {
            "name": name,
            "question": study.batch.study.question,
            "stood_out": what_stood_out(study, entries),
            "arms": len(study.batch.arms),
        }
        for name, study in index.studies.items()
    ]
    return write_page(
        path,
        "site_index.html",
        **_common("Methods of papers", ""),
        counts=index.counts(),
        families=[(family, [_index_row(index.entries[card.id]) for card in rows[family.name]]) for family in families],
        family_titles={family.name: f"{family.title} ({len(family.cards)})" for family in families},
        levels={level: f"{level} ({levels[level]})" for level in LEVELS if levels[level]},
        words={word: f"{word} ({number})" for word, number in words.most_common()},
        studies=studies,
        worlds=worlds,
    )


def _rank(entry: Entry) -> tuple[int, str]:
    return LEVELS.index(entry.level), entry.card.id


def _index_row(entry: Entry) -> dict[str, Any]:
    card, method = entry.card, entry.method
    searched = [card.id, card.title, card.what, card.headline, *entry.studies]
    searched += [method.name, method.summary] if method is not None else []
    return {
        "id": card.id,
        "name": card.title if method is None else f"{method.name}: {summary_of(entry)}",
        "about": card.what if method is None else card.title,
        "level": entry.level,
        "word": entry.word,
        "outcome": entry.describe(),
        "text": " ".join(searched).lower(),
    }


def _study_facts(study: StudyEntry, index: Index) -> dict[str, Any]:
    batch, further = study.batch, reported_metrics(study.batch)[1:]
    panel = study_panel(study, [row.arm for row in study.rows])
    tested = [entry for entry in index.entries.values() if batch.study.id in entry.studies]
    return {
        "study": batch.study,
        "command": f"python experiments/reproduce.py study={batch.id.partition('/')[2]}",
        "forest": lay_out_batch(batch, study.rows) if study.rows else None,
        "pictures": [panel] if panel is not None else [],
        "head": [*columns_of(batch.study.metric), *further],
        "rows": [[*cells_of(row), *(describe_number(row.mean_of(name)) for name in further)] for row in study.rows],
        "arms": [(arm.name, list(arm.overrides), arm.function) for arm in batch.arms],
        "names": [row.arm for row in study.rows],
        "sentences": notes_of(study.rows, study.checks) if study.rows else [],
        "entries": [(entry.card, entry.level, entry.word) for entry in tested],
    }


def _write_method(
    path: str | Path,
    entry: Entry,
    family: Family,
    index: Index,
    root: str | None,
    before: Card | None = None,
    after: Card | None = None,
) -> Path:
    method = entry.method
    facts = {
        "name": entry.card.title if method is None else method.name,
        "about": "" if method is None else summary_of(entry),
        "switch": _command(entry, index),
        "code": None if method is None else code_link(method.fields["Code"]),
        "settings": {} if method is None else {**method.groups, **method.settings, **(method.function or {})},
        "measured": [_measured_facts(name, entry, index.studies[name]) for name in dict(entry.measured)],
        "tests": [_test_facts(one) for one in (entry.confirmed, entry.first) if one is not None],
    }
    around = {"before": before, "after": after, "family": family, "entry": entry}
    return write_page(path, "site_method.html", **_common(entry.card.title, root), **around, **facts)


def _command(entry: Entry, index: Index) -> str | None:
    """Returns the command that trains with a method in the world of its study, or that runs a function."""
    if entry.level == LEVELS[-1]:
        return None
    if entry.method is None or entry.method.function is not None:
        return f"python experiments/reproduce.py {switch_of(entry)}"
    arms = [arm for name in entry.studies for arm in index.studies[name].arms_of(entry.card.id)]
    chosen = [text for arm in arms[:1] for text in arm.overrides if re.match(r"(experiment|world|algorithm)=", text)]
    return f"python experiments/train.py {' '.join([*chosen, switch_of(entry)])}"


def _measured_facts(name: str, entry: Entry, study: StudyEntry) -> dict[str, Any]:
    """Returns the table rows of a method's arms and of the baselines, and their curves."""
    own = [row.arm for of_study, row in entry.measured if of_study == name]
    rows = [row for row in study.rows if row.role == BASELINE or row.arm in own]
    names = [row.arm for row in rows]
    panel = study_panel(study, names)
    return {
        "study": name,
        "question": study.batch.study.question,
        "head": columns_of(study.batch.study.metric),
        "rows": [cells_of(row) for row in rows],
        "panels": [panel] if panel is not None else [],
        "names": names,
    }


def _test_facts(tested: Claim) -> dict[str, Any]:
    paper, verdict = tested.paper, tested.verdict
    findings = {"headline": verdict.headline, "secondary": verdict.secondary, "baselines": verdict.checks}
    return {
        "paper": paper,
        "detail": tested.describe(),
        "word": verdict.word if tested.decides else "",
        "changed": tested.changed,
        "forest": lay_out_forest("What was expected, against its margin", findings),
        "headline": _rows(verdict.headline),
        "secondary": _rows(verdict.secondary),
        "secondary_count": verdict.count_secondary(),
        "checks": _rows(verdict.checks),
        "panels": panels_of(tested),
        "steps": steps_unit(tested),
        "names": [arm.name for arm in paper.arms],
        "arms": arm_rows(tested),
        "metrics": reported_metrics(paper),
        "seeds": describe_seeds(paper.seeds),
        "authors": authors_rows(tested),
    }


def _rows(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [
        {"expected": one.expectation.describe(), "outcome": one.outcome, "detail": describe_finding(one)}
        for one in findings
    ]

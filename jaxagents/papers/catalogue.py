"""All papers: cards of what they say, and for those that are tested here their runs and verdicts."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxagents.papers.arms import Composed, compose_arms, settings_of
from jaxagents.papers.judge import NOT_RUN, Verdict, judge
from jaxagents.papers.library import load_paper, paper_files
from jaxagents.papers.registration import changes_since, read_registrations
from jaxagents.papers.runs import ArmRuns, read_runs, require_layout
from jaxagents.papers.study import Paper

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # Ten times as fast, where it was built.


class Card(NamedTuple):
    """What a paper says, tested here or not: an entry of `experiments/cards/<family>.yaml`.

    Attributes:
        id: of the paper.
        number: of the paper.
        title: of the paper.
        kind: method, data, system, analysis, benchmark, survey, environment or theory.
        what: the idea in a sentence or two.
        headline: the paper's own numbers.
        source: where it is, and its code.
        worlds: that a small version of it needs.
        size: S, M or L, what it asks of this code base.
        family: name of the file.
    """

    id: str
    number: int
    title: str
    kind: str
    what: str
    headline: str
    source: str
    worlds: tuple[str, ...]
    size: str
    family: str


_FIELDS = tuple(name for name in Card._fields if name != "family")


class Family(NamedTuple):
    """A file of cards.

    Attributes:
        name: of the file.
        title: in words.
        cards: by number.
    """

    name: str
    title: str
    cards: tuple[Card, ...]


class Entry(NamedTuple):
    """A paper with all that there is of it.

    Attributes:
        card: what it says.
        paper: how it is tested here; None: it is not.
        runs: of its arms by name.
        verdict: what they say; None without a test.
        settings: resolved config of what the treatment ends with, or the node of its function.
        changed: what differs from what was registered before the first run.
        is_trial: whether the runs are those of small variants, which say nothing about the claim.
    """

    card: Card
    paper: Paper | None = None
    runs: Mapping[str, ArmRuns] = {}
    verdict: Verdict | None = None
    settings: Mapping[str, Any] = {}
    changed: tuple[str, ...] = ()
    is_trial: bool = False


def read_cards(folder: str | Path) -> list[Family]:
    """Reads the cards of all papers.

    Args:
        folder: `experiments/cards`.

    Raises:
        ValueError: there are none, a card lacks a field or has another one, or two have the same id.
    """
    families = []
    for path in sorted(Path(folder).glob("*.yaml")):
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        cards = tuple(_make_card(path, node) for node in content["cards"])
        families.append(Family(path.stem, content["title"], cards))
    ids = [card.id for family in families for card in family.cards]
    if not ids or len(set(ids)) < len(ids):
        twice = sorted({name for name in ids if ids.count(name) > 1})
        raise ValueError(f"`cards` must be of different papers, one at least, got {twice or 'none'} in {folder}.")
    return families


def read_entries(
    families: Sequence[Family],
    folder: str | Path,
    config_folder: str | Path,
    results: str | Path,
    *,
    quick: bool = False,
) -> dict[str, Entry]:
    """Reads the runs of all papers that are tested here and judges them.

    Args:
        families: see `read_cards`.
        folder: that holds `papers` and `studies`.
        config_folder: of the experiments that arms change.
        results: folder of the store.
        quick: reads the runs of the small variants.

    Returns:
        One entry per card, by id.

    Raises:
        ValueError: there is no such folder, a paper has no card (the nearest ones are offered), or see `load_paper`.
    """
    if not Path(results).is_dir():
        raise ValueError(f"`results_folder` must be a folder of results, got {results}; run reproduce.py first.")
    require_layout(results)
    entries = {card.id: Entry(card) for family in families for card in family.cards}
    tested = list(paper_files(folder))
    for paper_id in tested:  # Before any is read, which takes minutes.
        if paper_id not in entries:
            near = difflib.get_close_matches(paper_id, entries, n=1, cutoff=0.8)
            hint = f"; try {near[0]}" if near else ""
            files = ", ".join(f"{family.name}.yaml" for family in families)
            raise ValueError(
                f"`experiments/papers` must hold papers of experiments/cards, got {paper_id!r}{hint}; a new one has a "
                f"card in {files}, or in a file of its own, with the fields {', '.join(_FIELDS)}."
            )
    for paper_id in tested:
        paper = load_paper(folder, paper_id)
        entries[paper_id] = read_entry(entries[paper_id].card, paper, config_folder, results, quick=quick)
    return entries


def read_entry(
    card: Card, paper: Paper, config_folder: str | Path, results: str | Path, *, quick: bool = False
) -> Entry:
    """Reads the runs of a paper that is tested here and judges them; see `read_entries`."""
    composed, runs, verdict, changed = read_paper(paper, config_folder, results, quick=quick)
    treatment = composed[paper.arms[0].name]
    settings = treatment.function if treatment.recipe is None else [*treatment.recipe.stages.values()][-1]
    return Entry(card, paper, runs, verdict, settings or {}, changed, is_trial=quick and verdict.word != NOT_RUN)


def read_paper(
    paper: Paper, config_folder: str | Path, results: str | Path, *, quick: bool = False, overrides: Sequence[str] = ()
) -> tuple[dict[str, Composed], dict[str, ArmRuns], Verdict, tuple[str, ...]]:
    """Returns the arms of a paper as they are now, their runs, the verdict, and what was changed since registered.

    Args:
        paper: see `library.load_paper`.
        config_folder: of the experiments.
        results: folder of the store.
        quick: reads the runs of the small variants.
        overrides: of trials.
    """
    composed = compose_arms(paper, config_folder, quick=quick, overrides=overrides)
    registered = compose_arms(paper, config_folder) if quick or overrides else composed
    runs = {name: read_runs(results, arm.address) for name, arm in composed.items()}
    changed = changes_since(paper, settings_of(registered), read_registrations(results).get(paper.id, []))
    return composed, runs, judge(paper, runs), tuple(changed)


def _make_card(path: Path, node: Mapping[str, Any]) -> Card:
    problems = {"missing": sorted({*_FIELDS} - {*node}), "unknown": sorted({*node} - {*_FIELDS})}
    if any(problems.values()):
        description = " and ".join(f"{', '.join(names)} {word}" for word, names in problems.items() if names)
        raise ValueError(
            f"{path.name}: `{node.get('id', 'a card')}` must have {', '.join(sorted(_FIELDS))}, got {description}."
        )
    if not re.fullmatch(r"[\w-]+", str(node["id"])):  # It names a page.
        raise ValueError(f"{path.name}: `id` must be of letters, digits, _ and -, got {node['id']!r}.")
    return Card(**{**node, "worlds": tuple(node["worlds"]), "family": path.stem})

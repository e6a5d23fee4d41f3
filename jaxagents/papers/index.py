"""The index of methods: how far each paper has come, computed from the stored results whenever it is read."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.papers.arms import methods_of
from jaxagents.papers.batch import Line, compose_batch, read_batch
from jaxagents.papers.batch_table import FEW, Measured, counted_lines, measure_batch
from jaxagents.papers.catalogue import Card, Family
from jaxagents.papers.claims import Claim, read_confirmed, read_registered
from jaxagents.papers.confirm import CONFIRMATIONS_FILE, method_of, read_confirmations
from jaxagents.papers.judge import NOT_RUN, REPRODUCED, TRIAL, Finding
from jaxagents.papers.library import load_batch, load_paper, paper_files, study_files
from jaxagents.papers.plan import Request
from jaxagents.papers.study import LEAST_SEEDS, SEARCH_SEEDS, Arm, Paper, nearest
from jaxagents.reporting.statistics import Interval
from jaxagents.reporting.tables import describe_interval
from jaxagents.training.methods import Method, read_methods

NOT_IMPLEMENTED, IMPLEMENTED, MEASURED, JUDGED = "not implemented", "implemented", "measured", "judged"
LEVELS = (JUDGED, MEASURED, IMPLEMENTED, NOT_IMPLEMENTED)
_SEEDS = tuple(range(SEARCH_SEEDS, SEARCH_SEEDS + LEAST_SEEDS))


class StudyEntry(NamedTuple):
    """A study with the results of its batch.

    Attributes:
        batch: see `library.load_batch`.
        methods: methods that the arms switch on or call, by the arm's name.
        lines: runs that the table counts, by arm and seed.
        rows: measured arms; empty if no batch was run.
        checks: findings of the study's checks about its baselines.
    """

    batch: Paper
    methods: Mapping[str, Sequence[str]]
    lines: Mapping[str, Mapping[int, Line]] = {}
    rows: Sequence[Measured] = ()
    checks: Sequence[Finding] = ()

    def arms_of(self, method: str) -> list[Arm]:
        """Returns the arms that switch a method on: first the arm of the same name, then those with no other method."""
        arms = [arm for arm in self.batch.arms if method in self.methods[arm.name]]
        return sorted(arms, key=lambda arm: (arm.name != method, len(self.methods[arm.name])))


class Entry(NamedTuple):
    """A paper with everything that is known about it.

    Attributes:
        card: summary of the paper.
        method: its idea as an option of `configs/method`; None if it is not implemented.
        studies: studies that measure the method or test its claim, its own study first.
        measured: arms that switch the method on, with the study of each, its own study first.
        first: claim that was registered by hand, see `experiments/papers`.
        confirmed: claim that was registered by the rule, see `confirm`.
    """

    card: Card
    method: Method | None = None
    studies: tuple[str, ...] = ()
    measured: tuple[tuple[str, Measured], ...] = ()
    first: Claim | None = None
    confirmed: Claim | None = None

    @property
    def judged(self) -> Claim | None:
        """The claim that decides: the confirmation, whose seeds are fresh, else the first verdict."""
        return next((one for one in (self.confirmed, self.first) if one is not None and one.decides), None)

    @property
    def seen(self) -> tuple[str, Interval] | None:
        """The word and the difference of the method's first arm that was measured on enough seeds."""
        rows = [row for _, row in self.measured if row.word != FEW]
        return next(((row.word, row.difference) for row in rows if row.difference is not None), None)

    @property
    def level(self) -> str:
        """How far the paper has come."""
        if self.judged is not None or self.seen is not None:
            return JUDGED if self.judged is not None else MEASURED
        return NOT_IMPLEMENTED if self.method is None and self.first is None else IMPLEMENTED

    @property
    def word(self) -> str:
        """The result in one word to filter by: of the verdict, else of the batch; "" without a result."""
        if self.judged is not None:
            return self.judged.verdict.word
        if self.first is not None and self.first.is_trial:
            return TRIAL
        return "" if self.seen is None else self.seen[0].partition(" within ")[0]

    def describe(self) -> str:
        """Returns the measured or judged result as a phrase; "" without a result."""
        if self.judged is not None:
            before = f" (first: {self.first.describe()})" if self.first and self.judged is self.confirmed else ""
            return f"{self.judged.describe()}{before}"
        if self.seen is not None:
            return f"{self.seen[0]}: {describe_interval(self.seen[1]._asdict())}"
        begun = self.confirmed or self.first
        return "" if begun is None or begun.verdict.word == NOT_RUN else begun.describe()


class Index(NamedTuple):
    """All papers and studies.

    Attributes:
        entries: entries by id, one per card.
        studies: studies by `<family>/<name>`.
    """

    entries: Mapping[str, Entry]
    studies: Mapping[str, StudyEntry]

    def counts(self) -> dict[str, int]:
        """Returns how many papers have reached at least each level, and how many were reproduced."""
        levels = Counter(entry.level for entry in self.entries.values())
        words = Counter(entry.word for entry in self.entries.values() if entry.level == JUDGED)
        judged, measured = levels[JUDGED], levels[JUDGED] + levels[MEASURED]
        return {
            **{IMPLEMENTED: measured + levels[IMPLEMENTED], MEASURED: measured, JUDGED: judged},
            REPRODUCED: words[REPRODUCED],
        }

    def describe(self) -> str:
        """Returns these numbers in words."""
        numbers = self.counts()
        levels = ", ".join(f"{numbers[level]} {level}" for level in (IMPLEMENTED, MEASURED, JUDGED))
        return f"{levels}, of which {numbers[REPRODUCED]} {REPRODUCED}"


def read_index(
    families: Sequence[Family],
    folder: str | Path,
    config_folder: str | Path,
    results: str | Path,
    *,
    quick: bool = False,
    only: str | None = None,
) -> Index:
    """Reads everything that is stored about all papers: cards, methods, batches, verdicts and confirmations.

    Args:
        families: see `read_cards`.
        folder: folder that holds `papers` and `studies`.
        config_folder: folder of the configs of methods, and of the experiments that arms change.
        results: folder of the store.
        quick: whether to read the runs of the small variants.
        only: id of a paper: nothing is read about other papers, or about studies in which it has no part.

    Raises:
        ValueError: the folder does not exist, or a paper has no card (the nearest ones are offered); see also
            `load_paper`.
    """
    if not Path(results).is_dir():
        raise ValueError(f"`results_folder` must be a folder of results, got {results}; run reproduce.py first.")
    cards = {card.id: card for family in families for card in family.cards}
    tested, methods = paper_files(folder), read_methods(config_folder)
    _require_cards(("experiments/papers", tested), ("configs/method", methods), cards=cards)
    if only is not None and only not in cards:
        raise ValueError(f"`paper` must be a card of experiments/cards, got {only!r}; try {nearest(only, cards)}.")
    settings: dict[str, Any] = {"config_folder": config_folder, "results": results, "quick": quick}
    first = {name: read_registered(load_paper(folder, name), **settings) for name in tested if only in (None, name)}
    records = [one for one in read_confirmations(results).values() if only in (None, one.paper)]
    named = {own_study(method) for name, method in methods.items() if name == only}
    named |= {one.paper.study.id for one in first.values()}
    studies = {
        name: _read_study(folder, name, methods, **settings)
        for name in study_files(folder)
        if only is None or {name, name.partition("/")[2]} & {*named, *(one.study for one in records)}
    }
    if lost := [one for one in records if one.study not in studies]:
        raise ValueError(
            f"`experiments/studies` must have {lost[0].study}, where {lost[0].paper} was confirmed, got none of that "
            f"name; try {nearest(lost[0].study, studies)}, also in {CONFIRMATIONS_FILE}."
        )
    confirmed = {one.paper: read_confirmed(one, studies[one.study].batch, methods, **settings) for one in records}
    wanted = cards if only is None else {only: cards[only]}
    entries = {
        name: _entry(card, methods.get(name), studies, first.get(name), confirmed.get(name))
        for name, card in wanted.items()
    }
    return Index(entries, studies)


def own_study(method: Method) -> str:
    """Returns the name of the study that measures a method; the study may not exist yet."""
    return method.fields["Study"].split()[0]


def _require_cards(*found: tuple[str, Collection[str]], cards: Mapping[str, Card]) -> None:
    """Refuses papers and methods without a card before anything is read, because reading takes minutes."""
    for where, names in found:
        for name in names:
            if name not in cards:
                raise ValueError(
                    f"`{where}` must hold papers of experiments/cards, got {name!r}; try {nearest(name, cards)}, or "
                    f"write its card in a file of experiments/cards, with the fields of {next(iter(cards))}."
                )


def _entry(
    card: Card,
    method: Method | None,
    studies: Mapping[str, StudyEntry],
    first: Claim | None,
    confirmed: Claim | None,
) -> Entry:
    """Combines everything known about a paper; the study that its method names is its own."""
    own = "" if method is None else own_study(method)
    arms = {name: study.arms_of(card.id) for name, study in studies.items()}
    named = [name for name in studies if own in (name, name.partition("/")[2])]
    named += [one.paper.study.id for one in (first, confirmed) if one is not None]
    named += [name for name, of_study in arms.items() if of_study]
    named = [*dict.fromkeys(named)]
    rows = {name: {row.arm: row for row in studies[name].rows} for name in named}
    measured = [(name, rows[name][arm.name]) for name in named for arm in arms[name] if arm.name in rows[name]]
    return Entry(card, method, tuple(named), tuple(measured), first, confirmed)


def _read_study(
    folder: str | Path, name: str, known: Mapping[str, Method], config_folder: Any, results: str | Path, quick: bool
) -> StudyEntry:
    lines = read_batch(results, name)
    seeds = tuple(sorted({line.seed for line in lines if not line.overrides})) or _SEEDS
    batch = load_batch(folder, name, seeds)
    found = {arm.name: (methods_of(arm), method_of(batch, arm.name, known)) for arm in batch.arms}
    methods = {arm: named or [one.id for one in (called,) if one is not None] for arm, (named, called) in found.items()}
    if not lines:  # Composing its arms would take seconds.
        return StudyEntry(batch, methods)
    composed, failures = compose_batch(batch, Request(config_folder, Path(results), Path(results), quick=quick))
    rows, checks = measure_batch(batch, lines, composed, failures)
    return StudyEntry(batch, methods, counted_lines(batch, lines, composed), rows, checks)

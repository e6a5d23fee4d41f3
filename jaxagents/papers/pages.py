"""The pages of results: `experiments/results/README.md`, and one page per paper that is tested here."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxagents.papers.catalogue import Entry, Family
from jaxagents.papers.forest import lay_out_forest
from jaxagents.papers.judge import TRIAL, VERDICTS, Finding
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.summary import (
    arm_rows,
    authors_rows,
    describe_finding,
    describe_seeds,
    study_rows,
    tell_finding,
    verdict_of,
)
from jaxagents.reporting.html import write_page
from jaxagents.reporting.loggers import write_atomically

REPORT_FILE = "README.md"
OWN = "own"  # Family of papers of a user's own.
_HEAD = """# Papers, reproduced small

Written by `python experiments/report.py` from the files of runs beside it; do not edit. A paper's headline is one or
two expectations that were written down before its runs, and decides the verdict; secondary ones are counted. What is
measured is a mean over seeds with its 95 % Student interval; differences are taken seed by seed. The rule is that of
`jaxagents/papers/judge.py`. The pictures show every headline in units of its margin; signs are turned where less is
expected, so that the claim lies to the right. A difference holds where its mean reaches the green band and its interval
lies right of 0; other expectations hold where the whole interval lies in the band. A verdict with the word mechanism is
about a claim on named models, of which only the mechanism is tested.
"""


def write_pages(results: str | Path, families: Sequence[Family], entries: Mapping[str, Entry]) -> Path:
    """Writes the table of all papers that are tested here, and a page for each of them.

    Args:
        results: folder of results; pages of papers go to `papers/<family>/<id>.md`.
        families: see `read_cards`.
        entries: by id, see `read_entries`.

    Returns:
        Path of the table.
    """
    results = Path(results)
    lines = [_HEAD, f"\nAt a glance: {describe_verdicts(entries)}.\n"]
    for family in families:
        tested = [entries[card.id] for card in family.cards if entries[card.id].paper is not None]
        lines.append(f"\n## {family.title}\n\n{len(tested)} of {len(family.cards)} papers have an experiment here.\n")
        if tested:
            title = f"Headlines against their margins: {family.title}"
            picture = Path("papers") / f"{family.name}.svg"
            (results / picture).parent.mkdir(parents=True, exist_ok=True)
            forest = lay_out_forest(title, {entry.card.id: entry.verdict.headline for entry in tested})
            write_page(results / picture, "forest.svg", forest=forest)
            lines.append(f"\n![{title}]({picture.as_posix()})\n")
            lines.append("\n" + _row("paper", "verdict", "finding", "secondary", "seeds", "minutes"))
            lines.append(_row(*["---"] * 6))
        for entry in tested:
            path = Path("papers") / family.name / f"{entry.card.id}.md"
            (results / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(results / path, "".join(_page(entry)))
            lines.append(_line(entry, path))
    write_atomically(results / REPORT_FILE, "".join([*lines, *_studies(entries)]))
    return results / REPORT_FILE


def describe_verdicts(entries: Mapping[str, Entry]) -> str:
    """Returns how many papers have which verdict, such as "6 reproduced, 9 not run"; own papers do not count."""
    words = Counter(verdict_of(entry) for entry in entries.values() if entry.card.family != OWN)
    parts = [f"{words[word]} {word}" for word in VERDICTS if words[word]]
    parts += [f"{words[TRIAL]} trials without a verdict"] if words[TRIAL] else []
    return ", ".join(parts) or "none has an experiment"


def write_summary(readme: str | Path, entries: Mapping[str, Entry]) -> None:
    """Writes how many papers have which verdict into the row of a table that ends with a link to "the verdicts".

    Args:
        readme: of the project; without such a row it stays as it is.
        entries: by id, see `read_entries`.
    """
    readme = Path(readme)
    text = readme.read_text(encoding="utf-8")
    updated = re.sub(
        r"(?m)^(\| papers \|.*\|)[^|]*(\[the verdicts\]\(\S+\) \|)$",
        lambda row: f"{row[1]} {describe_verdicts(entries)}: {row[2]}",
        text,
    )
    if updated != text:
        write_atomically(readme, updated)


def _studies(entries: Mapping[str, Entry]) -> list[str]:
    """Returns a table of all arms for every study of several papers."""
    of_study: dict[str, list[Entry]] = {}
    for entry in entries.values():
        if entry.paper is not None:
            of_study.setdefault(entry.paper.study.id, []).append(entry)
    lines = []
    for name, tested in sorted(of_study.items()):
        rows, study = study_rows(tested), tested[0].paper.study
        if len(tested) > 1 and rows:
            title = f"\n## Study {name}: {study.question}\n\n"
            lines += [title, _row("arm", "seeds", study.metric, *study.metrics, "minutes")]
            lines.append(_row(*["---"] * (len(study.metrics) + 4)))
            lines += [_row(row.name, row.seeds, *row.values, f"{row.minutes:.1f}") for row in rows]
    return lines


def _line(entry: Entry, path: Path) -> str:
    verdict = entry.verdict
    return _row(
        f"[{entry.card.id}]({path.as_posix()})",
        verdict.describe(trial=entry.is_trial, changed=bool(entry.changed)),
        " ".join(_sentence(finding) for finding in verdict.headline),
        verdict.count_secondary(),
        describe_seeds(entry.paper.seeds),
        f"{verdict.minutes:.1f}",
    )


def _page(entry: Entry) -> list[str]:
    card, paper, verdict = entry.card, entry.paper, entry.verdict
    metrics = reported_metrics(paper)
    lines = [
        f"# {card.id}\n\n*{card.title}* ({card.source})\n\n{card.what}\n\n",
        f"The paper: {paper.claim}\n\n**{verdict.describe(trial=entry.is_trial).capitalize()}.**\n\n",
        *([f"Changed since it was registered: {', '.join(entry.changed)}.\n\n"] if entry.changed else []),
        *_findings("Headline", verdict.headline),
        *_findings(f"Secondary: {verdict.count_secondary()}", verdict.secondary),
        *_findings("What the baselines must show", verdict.checks),
        f"## Arms\n\nStudy {paper.study.id}: {paper.study.question}\n\n",
        _row("arm", "seeds", *metrics, "minutes"),
        _row(*["---"] * (len(metrics) + 3)),
        *[_row(row.name, row.seeds, *row.values, f"{row.minutes:.1f}") for row in arm_rows(entry)],
    ]
    if rows := authors_rows(entry):
        lines += ["\n## The authors' setting\n\n", _row("setting", "theirs", "here"), _row("---", "---", "---")]
        lines += [_row(*row) for row in rows]
    for title, text in (("Notes", paper.notes), ("How the setting was found", paper.study.notes)):
        if text:
            lines.append(f"\n## {title}\n\n{text.strip()}\n")
    lines.append(
        f"\nThe settings of arms and metrics, with comments, are in `configs/study/{paper.study.id}.yaml` and "
        f"`configs/paper/{card.family}/{card.id}.yaml`; functions say in their docstrings what they return.\n"
    )
    lines.append(f"\nRun it: `python experiments/reproduce.py paper={card.id}`, {paper.minutes:g} minutes planned.\n")
    return lines


def _findings(title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    lines = [f"- {one.outcome}: {one.expectation.describe()}; {describe_finding(one)}\n" for one in findings]
    return [f"## {title}\n\n", *lines, "\n"]


def _sentence(finding: Finding) -> str:
    sentence = tell_finding(finding)
    return sentence[0].upper() + sentence[1:]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"

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
    describe_seeds,
    study_rows,
    verdict_of,
)
from jaxagents.reporting.html import write_page
from jaxagents.reporting.loggers import write_atomically
from jaxagents.reporting.tables import describe_interval

REPORT_FILE = "README.md"
OWN = "own"  # Family of papers of a user's own.
_HEAD = """# Papers, reproduced small

Written by `python experiments/report.py` from the stored runs; do not edit.

- **Expected** was written down before the runs. One or two such expectations are the headline of a paper and decide its
  verdict; its page lists the others.
- **Measured** is a mean over seeds with its 95 % interval: Welch's of differences, which are paired by seed only where
  the measured correlation pays for it, and Student's of all else.
- **Outcome**: a difference is held where its interval excludes 0 and its mean reaches the margin. Any other expectation
  is held where its whole interval meets it. `jaxagents/papers/judge.py` is the rule, and
  [eight verdicts](../docs/papers.md#what-welchs-intervals-changed) changed with it.
- **p** in the table of a study is that of the difference to its first baseline, by Welch's test and adjusted by Holm
  over the arms of the table.
- A verdict with the word *mechanism* is about the mechanism of a claim alone: the claim is about named models, or an
  oracle takes the place of one.
- The pictures show headlines in units of their margins. The claim lies to the right, its margin is the green band.
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
            lines.append("\n" + _row("paper", "verdict", "expected", "measured", "outcome", "seeds", "minutes"))
            lines.append(_row(*["---"] * 7))
        for entry in tested:
            path = Path("papers") / family.name / f"{entry.card.id}.md"
            (results / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(results / path, "".join(_page(entry)))
            lines += _lines(entry, path)
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
            lines += [title, _row("arm", "seeds", study.metric, "p", *study.metrics, "minutes")]
            lines.append(_row(*["---"] * (len(study.metrics) + 5)))
            lines += [_row(row.name, row.seeds, *row.values, f"{row.minutes:.1f}") for row in rows]
    return lines


def _lines(entry: Entry, path: Path) -> list[str]:
    """Returns a row per expectation of the headline; the first one names the paper."""
    card, verdict = entry.card, entry.verdict
    words = verdict.describe(trial=entry.is_trial, changed=bool(entry.changed))
    rows = [["", "", *_cells(one), "", ""] for one in verdict.headline]
    rows[0][:2] = f"[{card.id}]({path.as_posix()})", words
    rows[0][-2:] = describe_seeds(verdict.seeds), f"{verdict.minutes:.1f}"
    return [_row(*row) for row in rows]


def _cells(finding: Finding) -> tuple[str, str, str]:
    measured = "-" if finding.measured is None else describe_interval(finding.measured._asdict())
    return finding.expectation.describe(), measured, finding.outcome


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
        f"\nThe settings of arms and metrics, with comments, are in `experiments/studies/{paper.study.id}.yaml` and "
        f"`experiments/papers/{card.family}/{card.id}.yaml`; functions say in their docstrings what they return.\n"
    )
    lines.append(f"\nRun it: `python experiments/reproduce.py paper={card.id}`, {paper.minutes:g} minutes planned.\n")
    return lines


def _findings(title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    reasons = [f"- {one.expectation.describe()}: {one.reason}\n" for one in findings if one.reason]
    rows = [_row("expected", "measured", "outcome"), _row(*["---"] * 3), *(_row(*_cells(one)) for one in findings)]
    return [f"## {title}\n\n", *rows, "\n", *reasons, "\n" * bool(reasons)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"

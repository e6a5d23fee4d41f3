"""The index of results, `experiments/results/README.md`, and the study pages to which it links."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jaxagents.data.files import write_whole
from jaxagents.papers.batch import STUDIES_FOLDER
from jaxagents.papers.batch_page import write_batch_page
from jaxagents.papers.batch_table import BETTER, METHOD, WORSE
from jaxagents.papers.catalogue import Family
from jaxagents.papers.index import LEVELS, NOT_IMPLEMENTED, Entry, Index, StudyEntry, own_study
from jaxagents.papers.judge import NOT_REPRODUCED, REPRODUCED
from jaxagents.reporting.tables import markdown_row

REPORT_FILE = "README.md"
_NAMED = (BETTER, WORSE, REPRODUCED, NOT_REPRODUCED)  # For other words, the list of studies only counts the arms.
_HEAD = """# Methods of papers

Written by `python experiments/report.py` from the stored runs; do not edit.

**{counts}.** A paper rises by levels, each with all before it:

- *implemented*: its method is switched on by name, in any world that it fits: `python experiments/train.py world=shop
  algorithm=grpo +method=gigpo`. The file behind its name says the equation, the source, and what differs.
- *measured*: its study was run as one batch on search seeds. The word and the difference to a baseline,
  mostly the first, are those of the study's table, which is adjusted for all of its arms, with 95 % intervals: an
  effect seen, not confirmed.
- *judged*: its claim was registered, and run on other seeds. *First* is an earlier verdict, from before the claim was
  confirmed by rule. *Mechanism*: only the mechanism of the claim was tested, as it is about named models, or an
  oracle takes the place of one. [What a verdict means](../docs/papers.md).

`python experiments/report.py paper=gigpo` writes the page of one paper: margins, intervals, curves, settings.
"""


def write_index(results: str | Path, families: Sequence[Family], index: Index) -> Path:
    """Writes the table of all studies, and of all methods by family; returns its path.

    Args:
        results: folder of results.
        families: see `read_cards`.
        index: see `read_index`.
    """
    results = Path(results)
    lines = [_HEAD.format(counts=index.describe().capitalize())]
    lines += ["\n## Studies\n\n", *_table("study", "question", "baselines + methods", "what stood out")]
    lines += [markdown_row(*_study_cells(study, index, results)) for study in index.studies.values()]
    for family in by_progress(families, index):
        rows = [index.entries[card.id] for card in family.cards]
        rows = [entry for entry in rows if entry.level != NOT_IMPLEMENTED]
        lines.append(f"\n## {family.title}\n\n{len(rows)} of {len(family.cards)} papers are here.\n")
        if rows:
            lines += ["\n", *_table("method", "what it does", "switch", "study", "level", "measured or judged")]
        for entry in sorted(rows, key=lambda entry: (LEVELS.index(entry.level), entry.card.id)):
            lines.append(markdown_row(*_cells(entry, results)))
    write_whole(results / REPORT_FILE, "".join(lines))
    return results / REPORT_FILE


def write_study_pages(results: str | Path, index: Index) -> list[Path]:
    """Rewrites the pages that `reproduce.py` has written for studies, with the current results on fresh seeds.

    Args:
        results: folder of results.
        index: see `read_index`.

    Returns:
        Paths of the pages.
    """
    claims = [entry.confirmed for entry in index.entries.values() if entry.confirmed is not None]
    written = []
    for name, study in index.studies.items():
        if (Path(results) / STUDIES_FOLDER / f"{name}.md").is_file():
            of_study = [claim for claim in claims if claim.paper.study.id == name]
            written.append(write_batch_page(Path(results), study.batch, study.rows, study.checks, of_study))
    return written


def write_summary(readme: str | Path, index: Index) -> None:
    """Writes the four numbers into the table row that ends with a link to "the index".

    Args:
        readme: README of the project; without such a row it is left unchanged.
        index: see `read_index`.
    """
    readme = Path(readme)
    text = readme.read_text(encoding="utf-8")
    row = r"(?m)^(\| methods of papers \|.*\|)[^|]*(\[the index\]\(\S+\) \|)$"
    updated = re.sub(row, lambda found: f"{found[1]} {index.describe()}: {found[2]}", text)
    if updated != text:
        write_whole(readme, updated)


def by_progress(families: Sequence[Family], index: Index) -> list[Family]:
    """Returns families with many implemented papers first."""
    return sorted(
        families, key=lambda family: -sum(index.entries[card.id].level != NOT_IMPLEMENTED for card in family.cards)
    )


def switch_of(entry: Entry) -> str:
    """Returns the setting that switches a method on; a method that is a function is called by its study."""
    if entry.method is None:
        return f"paper={entry.card.id}"
    called = entry.method.function is not None
    return f"study={own_study(entry.method)}" if called else f"+method={entry.card.id}"


def summary_of(entry: Entry) -> str:
    """Returns a description of a method, without its source."""
    if entry.method is None:
        return entry.card.title
    return re.sub(r"\s*\([^()]*\b\d{4}\b[^()]*\)\.?$", "", entry.method.summary)


def what_stood_out(study: StudyEntry, entries: Iterable[Entry]) -> str:
    """Returns the arms or papers of a study by their result, and the first sentence of what the study taught.

    Args:
        study: study, measured or not.
        entries: papers that are tested in the study; their verdicts are used if no batch was run.
    """
    words: dict[str, list[str]] = {}
    for name, word in _outcomes(study, entries):
        words.setdefault(word, []).append(name)
    order = sorted(words, key=lambda word: _NAMED.index(word) if word in _NAMED else len(_NAMED))
    parts = [f"{word}: {', '.join(words[word])}" if word in _NAMED else f"{len(words[word])} {word}" for word in order]
    taught = re.split(r"(?<=\.)\s", " ".join(study.batch.study.learned.split()))[0]
    return ". ".join(filter(None, ("; ".join(parts), taught)))


def _outcomes(study: StudyEntry, entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    if study.rows:
        yield from ((row.arm, row.word) for row in study.rows if row.role == METHOD and row.word)
        return
    for entry in entries:
        if entry.judged is not None and entry.judged.paper.study.id == study.batch.study.id:
            yield entry.card.id, entry.word


def _study_cells(study: StudyEntry, index: Index, results: Path) -> list[str]:
    baselines = len(study.batch.study.arms)
    return [
        _study_link(study.batch.id, results),
        study.batch.study.question,
        f"{baselines} + {len(study.batch.arms) - baselines}",
        what_stood_out(study, index.entries.values()),
    ]


def _study_link(study: str, results: Path) -> str:
    page = f"studies/{study}.md" if (results / "studies" / f"{study}.md").is_file() else f"../studies/{study}.yaml"
    return f"[{study.partition('/')[2]}]({page})"


def _cells(entry: Entry, results: Path) -> list[str]:
    name = entry.card.id if entry.method is None else entry.method.name
    linked = name if entry.method is None else f"[{name}](../../configs/method/{entry.card.id}.yaml)"
    study = _study_link(entry.studies[0], results) if entry.studies else own_study(entry.method)
    return [linked, summary_of(entry), f"`{switch_of(entry)}`", study, entry.level, entry.describe()]


def _table(*names: str) -> list[str]:
    return [markdown_row(*names), markdown_row(*["---"] * len(names))]

"""The page of a study, with its picture: what its batch measured, and what fresh seeds show."""

from collections.abc import Sequence
from pathlib import Path

from jaxagents.data.files import write_whole
from jaxagents.papers.batch import STUDIES_FOLDER
from jaxagents.papers.batch_table import Measured, cells_of, columns_of, has_begun, notes_of
from jaxagents.papers.claims import Claim
from jaxagents.papers.expectations import Expectation
from jaxagents.papers.forest import Forest, lay_out_forest
from jaxagents.papers.judge import Finding
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.study import Paper
from jaxagents.reporting.html import write_page
from jaxagents.reporting.tables import describe_interval, describe_number, markdown_row


def write_batch_page(
    results: Path,
    batch: Paper,
    rows: Sequence[Measured],
    checks: Sequence[Finding],
    claims: Sequence[Claim] = (),
) -> Path:
    """Writes the page of a study, `studies/<family>/<name>.md`, with its picture beside it.

    Args:
        results: folder of results.
        batch: see `library.load_batch`.
        rows: measured rows, see `measure_batch`.
        checks: findings about the baselines, which show whether the setting works.
        claims: claims that the rule has registered.

    Returns:
        The path of the page.
    """
    study = batch.study
    path = results / STUDIES_FOLDER / f"{study.id}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    first = study.arms[0].name if study.arms else ""
    picture = path.with_suffix(".svg")
    write_page(picture, "forest.svg", forest=lay_out_batch(batch, rows))
    further = reported_metrics(batch)[1:]
    lines = [
        f"# Study {study.id}\n\n{study.question}\n\n",
        "Written by `python experiments/reproduce.py` from the runs beside this page; do not edit.\n\n",
        *([f"{study.learned.strip()}\n\n"] if study.learned else []),
        f"![Differences to {first}]({picture.name})\n\n",
        markdown_row(*columns_of(study.metric), *further),
        markdown_row(*["---"] * (len(columns_of(study.metric)) + len(further))),
        *[
            markdown_row(*cells_of(row), *[describe_number(row.mean_of(name)) for name in further])
            for row in filter(has_begun, rows)
        ],
        "\n",
        *[f"- {line}\n" for line in notes_of(rows, checks)],
        f"\nDifferences are to `{first}`{_others(rows, first)}, more than 0 where an arm is better, with Welch's 95 % "
        "intervals; they are paired by seed where the measured correlation pays for it. p is adjusted by Holm over the "
        "arms. Trials are settings that were tried besides the arm's own.\n",
        f"\nRun it: `python experiments/reproduce.py study={study.id.partition('/')[2]}`.\n",
        *_confirmed(claims),
        *([f"\n## How the setting was found\n\n{study.notes.strip()}\n"] if study.notes else []),
    ]
    write_whole(path, "".join(lines))
    return path


def _confirmed(claims: Sequence[Claim]) -> list[str]:
    """Returns the table of the results on fresh seeds."""
    lines = []
    for claim in claims:
        for one in claim.verdict.headline:
            measured = one.reason if one.measured is None else describe_interval(one.measured._asdict())
            name = claim.paper.id if claim.number == 1 else f"{claim.paper.id} (registration {claim.number})"
            lines.append(
                markdown_row(name, one.expectation.describe(), claim.describe(), measured, str(len(one.seeds)))
            )
    if not lines:
        return []
    head = ("paper", "claim", "verdict", "measured", "seeds")
    return [
        "\n## On fresh seeds\n\nClaims that were registered by rule after the batch, and then run: "
        "[what a verdict means](../../../docs/papers.md#what-a-verdict-means).\n\n",
        markdown_row(*head),
        markdown_row(*["---"] * len(head)),
        *lines,
    ]


def _others(rows: Sequence[Measured], first: str) -> str:
    """Returns a note on the arms that are compared with another baseline; "" without such arms."""
    others: dict[str, list[str]] = {}
    for row in rows:
        if row.rival not in ("", first):
            others.setdefault(row.rival, []).append(f"`{row.arm}`")
    named = [f"of {', '.join(arms)} to `{rival}`" for rival, arms in others.items()]
    return f" (but {'; '.join(named)})" if named else ""


def lay_out_batch(batch: Paper, rows: Sequence[Measured]) -> Forest:
    """Lays out the differences of all arms from their rivals, in units of the smallest effect."""
    first, study = batch.study.arms[0].name if batch.study.arms else "", batch.study
    compared = {row.arm: row for row in rows if row.difference is not None}
    findings = {}
    for name, row in compared.items():
        expected = Expectation(study.metric, "higher", (name, row.rival), study.smallest_effect)
        findings[name] = [Finding(expected, "", row.word, row.difference)]
    forest = lay_out_forest(f"Differences to {first} in units of {study.smallest_effect:g}: {study.id}", findings)
    return forest._replace(caption=f"in units of {study.smallest_effect:g}, the smallest effect worth having (green)")

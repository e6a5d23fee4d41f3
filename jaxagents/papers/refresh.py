"""Whether runs of earlier code count today: by the programs of both, or by one seed that is run again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxagents.papers.arms import Composed, compose_arm
from jaxagents.papers.carried import Record, differences, read_carried, write_record
from jaxagents.papers.execution import run_papers
from jaxagents.papers.plan import Request, wanted_arms
from jaxagents.papers.programs import note_programs, same_programs
from jaxagents.papers.runs import Run, read_run, run_path
from jaxagents.papers.stored import read_runs
from jaxagents.papers.study import Paper
from jaxagents.reporting.progress import open_progress
from jaxagents.reporting.reports import versions

_NAMED = 4  # Of what differs.


def refresh_papers(papers: Sequence[Paper], request: Request) -> dict[str, str]:
    """Lets the runs of other code count that is the same program, or logs the same in one committed seed, run again.

    Programs are traced first, for every arm that has runs, and written down for codes to come. A seed tells what they
    do not, as of functions, and of codes whose programs nobody wrote down. Arms whose seeds train side by side are run
    again as one group: another number of seeds is another program.

    Args:
        papers: see `library.load_paper`.
        request: with `refresh`.

    Returns:
        Why arms failed, see `run_papers`.
    """
    progress = open_progress(1, "refresh", enabled=False)
    settings: dict[str, Any] = {"quick": request.quick, "overrides": request.overrides}
    arms = [
        (paper, compose_arm(paper.study, arm, request.config_folder, **settings))
        for paper in papers
        for arm in wanted_arms(paper, request)
    ]
    for paper, composed in arms:
        for line in compare_programs(paper, composed, request):
            progress.message(line)
    failures = run_papers(papers, request)
    for paper, composed in arms:
        for line in compare_codes(paper, composed, request):
            progress.message(line)
    return failures


def compare_programs(paper: Paper, composed: Composed, request: Request) -> list[str]:
    """Writes down the programs of an arm that has runs, and tells of earlier codes that are the same.

    Args:
        paper: that names the arm.
        composed: the arm.
        request: which results.

    Returns:
        A line for every earlier code that was not known to be the same program.
    """
    results, address = request.results, composed.address
    stored = read_runs(results, address)
    if not (stored.runs or stored.stale):
        return []
    known = same_programs(results, address)
    if said := note_programs(results, composed):
        return [f"{paper.id}: {composed.name}: its programs cannot be traced ({said}); a seed tells."]
    codes = [run.address.code for run in stored.stale.values()]
    return [
        f"{paper.id}: {composed.name}: the code {code} is the same program: its {codes.count(code)} runs count."
        for code in sorted(same_programs(results, address) - known)
        if code in codes
    ]


def compare_codes(paper: Paper, composed: Composed, request: Request) -> list[str]:
    """Compares the committed runs of an arm with those of every earlier code, and writes down where they are equal.

    Args:
        paper: that names the arm.
        composed: the arm.
        request: which results.

    Returns:
        What came out, one line for every earlier code that shares a seed with today's and was not known to be equal.
    """
    address, name = composed.address, f"{paper.id}: {composed.name}"
    folder = run_path(request.results, address, 0).parents[1]
    known = {*read_carried(request.results, address)[0], *same_programs(request.results, address)}
    told = []
    of_today = _runs_of(folder / address.code, paper)
    for other in sorted(path.name for path in folder.glob("*/") if path.is_dir()):
        earlier = {} if other == address.code or other in known else _runs_of(folder / other, paper)
        shared = sorted({*of_today} & {*earlier})
        if not shared:
            continue
        found = {seed: differences(earlier[seed], of_today[seed]) for seed in shared}
        unlike = next((seed for seed in shared if found[seed]), None)
        if unlike is not None:
            more = f" and {len(found[unlike]) - _NAMED} more" if len(found[unlike]) > _NAMED else ""
            what = f"{', '.join(found[unlike][:_NAMED])}{more}"
            told.append(f"{name}: seed {unlike} differs from that of the code {other} in {what}: its runs stay stale.")
            continue
        record = Record(address.code, other, shared[0], name, versions().get("commit"))
        write_record(request.results, address, record)
        told.append(
            f"{name}: seed {shared[0]} logged the same as with the code {other}: its {len(earlier)} runs count."
        )
    return told


def _runs_of(folder: Path, paper: Paper) -> dict[int, Run]:
    """Reads the undamaged runs of one code, of the seeds that the paper is committed to."""
    runs = {}
    for seed in paper.seeds:
        try:
            runs[seed] = read_run(folder / f"{seed}.json")
        except (ValueError, OSError):
            continue
    return runs

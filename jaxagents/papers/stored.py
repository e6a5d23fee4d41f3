"""All stored runs of an arm: those of today's code, those of earlier code that count, and those that do not."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jaxagents.papers.carried import read_carried
from jaxagents.papers.programs import same_programs
from jaxagents.papers.runs import Address, Run, read_run, run_path


class ArmRuns(NamedTuple):
    """All stored runs of an arm.

    Attributes:
        runs: that count, by seed: of today's code, or of an earlier one that is known to be the same program, or to log
            the same.
        stale: of other code, by seed: the newest one. They are shown, and compared with nothing.
        damaged: files that hold no run, and records of carried runs that are not believed.
        carried: hash of the earlier code of those of `runs` that are not of today's, by seed; see `carried` and
            `programs`.
    """

    runs: dict[int, Run]
    stale: dict[int, Run]
    damaged: tuple[Path, ...] = ()
    carried: Mapping[int, str] = {}


def read_runs(results: str | Path, address: Address) -> ArmRuns:
    """Reads all runs of an arm; nothing is changed.

    Args:
        results: folder of results, such as `experiments/results`.
        address: of the arm as it is now.

    Returns:
        Its runs; those of other code apart.
    """
    folder = run_path(results, address, 0).parents[1]
    records, refused = read_carried(results, address)
    counting = set(records)
    for code in same_programs(results, address):  # What counts for the same program counts here.
        counting |= {code, *read_carried(results, address._replace(code=code))[0]}
    runs: dict[int, Run] = {}
    earlier: dict[int, Run] = {}
    stale: dict[int, Run] = {}
    damaged = list(refused)
    for path in sorted(folder.glob("*/*.json"), key=lambda path: path.stat().st_mtime):
        try:
            run = read_run(path)
        except ValueError:
            damaged.append(path)
            continue
        kind = runs if run.address.code == address.code else earlier if run.address.code in counting else stale
        kind[run.seed] = run
    carried = {seed: run.address.code for seed, run in sorted(earlier.items()) if seed not in runs}
    return ArmRuns(dict(sorted({**earlier, **runs}.items())), dict(sorted(stale.items())), tuple(damaged), carried)

"""Claims with their stored runs: registered by hand, see `experiments/papers`, or by the rule of `confirm`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.papers.arms import Composed, compose_arms, settings_of
from jaxagents.papers.confirm import CONFIRMATIONS_FILE, Confirmation, confirmation_changes, confirmed_paper
from jaxagents.papers.judge import NOT_RUN, UNFINISHED, Verdict, judge
from jaxagents.papers.registration import changes_since, read_registrations
from jaxagents.papers.runs import ArmRuns, read_runs
from jaxagents.papers.study import Paper, nearest
from jaxagents.training.methods import Method


class Claim(NamedTuple):
    """A registered claim, with its runs.

    Attributes:
        paper: how the claim is tested.
        runs: runs of its arms by name.
        verdict: what the runs say.
        composed: current arms of the paper, by name.
        changed: what differs from what was registered before the first run.
        is_trial: whether the runs are of small variants or other settings, and thus say nothing about the claim.
        number: 1 for the first registration by the rule, 2 if the claim was registered again.
    """

    paper: Paper
    runs: Mapping[str, ArmRuns]
    verdict: Verdict
    composed: Mapping[str, Composed] = {}
    changed: tuple[str, ...] = ()
    is_trial: bool = False
    number: int = 1

    @property
    def decides(self) -> bool:
        """Whether the claim has a verdict."""
        return not self.is_trial and self.verdict.word not in (UNFINISHED, NOT_RUN)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Resolved config of the treatment's last stage, or the node of its function."""
        treatment = self.composed[self.paper.arms[0].name]
        node = treatment.function if treatment.recipe is None else [*treatment.recipe.stages.values()][-1]
        return node or {}

    def describe(self) -> str:
        """Returns the verdict in words."""
        return self.verdict.describe(trial=self.is_trial, changed=bool(self.changed))


def read_registered(
    paper: Paper, config_folder: str | Path, results: str | Path, *, quick: bool = False, overrides: Sequence[str] = ()
) -> Claim:
    """Reads the stored runs of a paper of `experiments/papers`.

    Args:
        paper: see `library.load_paper`.
        config_folder: folder of the experiments' configs.
        results: folder of the store.
        quick: whether to read the runs of the small variants.
        overrides: overrides of trials.
    """
    composed = compose_arms(paper, config_folder, quick=quick, overrides=overrides)
    registered = compose_arms(paper, config_folder) if quick or overrides else composed
    changed = changes_since(paper, settings_of(registered), read_registrations(results).get(paper.id, []))
    return _read(paper, composed, results, changed, quick or bool(overrides))


def read_confirmed(
    record: Confirmation,
    batch: Paper,
    methods: Mapping[str, Method],
    config_folder: str | Path,
    results: str | Path,
    *,
    quick: bool = False,
) -> Claim:
    """Reads the stored runs of a confirmation.

    Args:
        record: see `confirm.read_confirmations`.
        batch: batch of the study.
        methods: methods by id.
        config_folder: folder of the experiments' configs.
        results: folder of the store.
        quick: whether to read the runs of the small variants.

    Raises:
        ValueError: the method or arm no longer exists; the nearest names are offered.
    """
    if record.paper not in methods:
        raise ValueError(
            f"`configs/method` must have {record.paper}, which was confirmed, got none of that name; try "
            f"{nearest(record.paper, methods)}, also in {CONFIRMATIONS_FILE}."
        )
    paper = confirmed_paper(batch, record, methods[record.paper])
    composed = compose_arms(paper, config_folder, quick=quick)
    changed = confirmation_changes(record, composed)
    return _read(paper, composed, results, changed, quick)._replace(number=record.number)


def _read(
    paper: Paper, composed: Mapping[str, Composed], results: str | Path, changed: Sequence[str], is_trial: bool
) -> Claim:
    runs = {name: read_runs(results, arm.address) for name, arm in composed.items()}
    verdict = judge(paper, runs)
    return Claim(paper, runs, verdict, composed, tuple(changed), is_trial and verdict.word != NOT_RUN)

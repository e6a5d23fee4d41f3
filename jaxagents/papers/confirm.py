"""Confirming the results of a batch: the registration follows from a rule, and its runs use fresh seeds.

For an arm whose method claims `above <rival>`, with the batch's difference d in the direction of the claim:

| | |
|---|---|
| headline | the arm is better than the rival by the margin m |
| m | d / 2 where the 95 % interval of d excludes 0, else the smallest effect of the study |
| first look | after the fewest seeds with a power of 0.9 at the measured spread, for the effect d, or 2 m: 8 or more |
| | 8 if d contradicts the claim: to reject a claim needs no power |
| last look | after 24 seeds, or as many as are left, if the first look decides nothing |
| fresh | above all seeds of registered papers, below search seeds, no run of either arm, never registered for it |

The interval of d is the one in the batch's table: paired by seed where that narrows it, because starts differ from seed
to seed. If the arms of a claim have changed since, it can be registered again; earlier records stay in the file.
"below" reverses the sign; "equal to" asks for an interval within the smallest effect. A claim may be about another
metric that the study reports, as in "rollout/thought_tokens_per_turn below grpo"; because the study defines no smallest
effect for it, the interval of d must exclude 0. Nothing is typed by hand.
"""

import datetime
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxagents.data.files import write_whole
from jaxagents.papers.arms import Composed, methods_of
from jaxagents.papers.batch_table import METHOD, NO_HEADROOM, Measured
from jaxagents.papers.expectations import START, Expectation
from jaxagents.papers.leases import leased
from jaxagents.papers.plan import reported_metrics
from jaxagents.papers.power import first_look
from jaxagents.papers.registration import read_registrations
from jaxagents.papers.runs import read_runs
from jaxagents.papers.study import LEAST_SEEDS, SEARCH_SEEDS, Paper, nearest
from jaxagents.reporting.loggers import to_json
from jaxagents.reporting.reports import versions
from jaxagents.reporting.statistics import Interval, by_seed, paired_or_welch_interval, pairing_pays
from jaxagents.reporting.tables import describe_interval
from jaxagents.training.methods import Method

CONFIRMATIONS_FILE = "confirmations.json"
MOST_SEEDS = 24
_POWER = 0.9
_LEVEL = 0.05
_KINDS = {"above": "higher", "below": "lower", "equal to": "equal"}


class Confirmation(NamedTuple):
    """A claim that the rule has registered.

    Attributes:
        paper: id of the method.
        study: study in which it was measured.
        arm: arm that switches the method on.
        rival: arm that it is compared with, or START.
        kind: "higher", "lower" or "equal".
        margin: margin of the claim, see the rule.
        seeds: fresh seeds.
        power: power of the first look.
        measured: mean and interval ends of the difference in the batch, arm minus rival.
        settings: hashes of the arms without versions, see `arms.Composed.settings`.
        commit: commit of the code.
        time: time of the registration, UTC.
        looks: numbers of seeds after which a verdict may fall, see `study.Paper`; empty: only after all seeds.
        metric: compared metric; "" in older records, which mean the study's metric.
        digest: digest of all these fields; a mismatch shows that the record was changed by hand.
        number: 1 for the first registration of the paper, 2 for the second; not part of the file.
    """

    paper: str
    study: str
    arm: str
    rival: str
    kind: str
    margin: float
    seeds: Sequence[int]
    power: float
    measured: Sequence[float]
    settings: Mapping[str, str]
    commit: str | None
    time: str
    looks: Sequence[int] = ()
    metric: str = ""
    digest: str = ""
    number: int = 1


def read_confirmations(results: str | Path) -> dict[str, Confirmation]:
    """Reads the confirmations that count, by paper: the newest of each paper.

    Raises:
        ValueError: the file is damaged.
    """
    return {paper: records[-1] for paper, records in _read_all(results).items()}


def _read_all(results: str | Path) -> dict[str, list[Confirmation]]:
    """Reads all confirmations by paper, the earliest first."""
    path = Path(results) / CONFIRMATIONS_FILE
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {
            paper: [Confirmation(**record, number=number) for number, record in enumerate(records, start=1)]
            for paper, records in stored.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must hold confirmations, got a damaged file ({error}); try the one in git."
        ) from error


def confirmed_paper(batch: Paper, record: Confirmation, method: Method) -> Paper:
    """Returns the paper of a confirmation, which `execution.run_papers` runs and `judge.judge` judges.

    Args:
        batch: batch of the study, see `library.load_batch`.
        record: record of the registration.
        method: method of the paper.

    Raises:
        ValueError: the study no longer has one of the record's arms.
    """
    arms = {arm.name: arm for arm in batch.arms}
    named = [name for name in (record.arm, record.rival) if name != START]
    if missing := [name for name in named if name not in arms]:
        raise ValueError(
            f"`{record.study}` must have the arm {missing[0]}, which {record.paper} was confirmed with; try "
            f"{nearest(missing[0], arms)}."
        )
    return replace(
        batch,
        id=record.paper,
        title=method.name,
        claim=method.summary,
        headline=(
            Expectation(record.metric or batch.study.metric, record.kind, (record.arm, record.rival), record.margin),
        ),
        seeds=tuple(record.seeds),
        looks=tuple(record.looks),
        arms=tuple(arms[name] for name in named),
        study=replace(batch.study, checks=()),  # The batch has passed them; the other baselines have no runs here.
    )


def confirmation_changes(record: Confirmation, composed: Mapping[str, Composed]) -> list[str]:
    """Returns how things differ from the registration: arms with changed settings, or a record changed by hand."""
    changes = [
        name for name, settings in record.settings.items() if name in composed and composed[name].settings != settings
    ]
    return [*changes, *(["the record, by hand"] if record.digest != _digest(record) else [])]


def confirm_batch(
    batch: Paper,
    rows: Sequence[Measured],
    methods: Mapping[str, Method],
    composed: Mapping[str, Composed],
    results: str | Path,
    *,
    arms: Sequence[str] | None = None,
    anew: bool = False,
    say: Callable[[str], Any] = lambda text: None,
) -> dict[str, Confirmation]:
    """Registers the claims of a batch by the rule; existing registrations are left unchanged.

    Args:
        batch: see `library.load_batch`.
        rows: measured rows, see `batch_table.measure_batch`.
        methods: methods by id.
        composed: arms by name.
        results: folder of results.
        arms: arms to confirm; None: those whose difference from the baseline is separated, in either direction.
        anew: whether to register those claims again whose settings or arm have changed since the registration.
        say: function that reports claims that the rule cannot register, if no arms are named; the others are
            registered.

    Returns:
        The registered claims of these arms, by paper.

    Raises:
        ValueError: an arm is unknown, its method makes no claim that a run can test or is registered with another arm,
            it was not measured on enough seeds, or a check of the study has failed.
    """
    measured = {row.arm: row for row in rows}
    if any(row.word == NO_HEADROOM for row in rows):
        raise ValueError(
            f"`{batch.id}` must show what its methods are about, got checks that are not held; see its table."
        )
    wanted = (
        arms if arms is not None else [r.arm for r in rows if r.role == METHOD and r.p is not None and r.p < _LEVEL]
    )
    known = _read_all(results)
    made: dict[str, Confirmation] = {}
    for name in wanted:
        method = method_of(batch, name, methods)
        if method is None or (arms is None and "Claim" not in method.fields):
            continue
        earlier = known.get(method.id, [])
        record = made.get(method.id, earlier[-1] if earlier else None)
        if record is not None and method.id not in made and anew:
            record = None if record.arm != name or confirmation_changes(record, composed) else record
        if arms is not None and record is not None and record.arm != name:
            raise ValueError(
                f"`arms` must have one arm of {method.id}, got {name!r}: its claim is registered with {record.arm}; "
                "register=true registers it anew, and the page says how often that was done."
            )
        try:
            made[method.id] = record or _register(batch, method, name, measured, composed, results, earlier)
        except ValueError as error:
            if arms is not None:
                raise
            say(f"Not registered: {error}")
    _write(results, made)
    return made


def method_of(batch: Paper, name: str, methods: Mapping[str, Method]) -> Method | None:
    """Returns the method that an arm of a batch switches on or calls; None for an arm of the study itself.

    Raises:
        ValueError: the batch has no such arm; the nearest names are offered.
    """
    arms = {arm.name: arm for arm in batch.arms}
    if name not in arms:
        raise ValueError(f"`arms` must be of {batch.id}, got {name!r}; try {nearest(name, arms)}.")
    function = arms[name].function or {}
    named = methods_of(arms[name])
    if named or not function:
        return methods.get(named[0]) if named else None
    # A function of the study itself belongs to the only method that calls it there.
    calling = [
        method
        for method in methods.values()
        if method.function is not None
        and method.function["_target_"] == function["_target_"]
        and method.fields["Study"] == batch.study.id.partition("/")[2]
    ]
    return calling[0] if len(calling) == 1 else None


def _register(
    batch: Paper,
    method: Method,
    name: str,
    measured: Mapping[str, Measured],
    composed: Mapping[str, Composed],
    results: str | Path,
    earlier: Sequence[Confirmation],
) -> Confirmation:
    study = batch.study
    rivals = [*(arm.name for arm in batch.arms), *([START] if study.start is not None else [])]
    metric, kind, rival = read_claim(method, reported_metrics(batch), rivals)
    named = [arm for arm in (name, rival) if arm != START]
    if missing := [arm for arm in named if arm not in measured or len(measured[arm].values) < LEAST_SEEDS]:
        raise ValueError(
            f"`{method.id}` must be measured on {LEAST_SEEDS} seeds before it is confirmed, got fewer of {missing[0]}; "
            f"try reproduce.py study={study.id.partition('/')[2]}."
        )
    fresh = _fresh_seeds(results, [composed[arm] for arm in named], earlier)
    beside = measured[name].start if rival == START else measured[rival].values_of(metric, study)
    own, others = by_seed(measured[name].values_of(metric, study), beside)
    difference, paired = paired_or_welch_interval(own, others), pairing_pays(own, others)
    deviation = math.sqrt(sum(float(np.nanvar(x, ddof=1)) for x in ([own - others] if paired else [own, others])))
    margin, effect = margin_of(kind, difference, study.smallest_effect if metric == study.metric else math.nan)
    if math.isnan(margin):
        raise ValueError(
            f"`{method.id}` claims {metric}, of which the study names no smallest effect: a difference must be seen "
            f"before it is confirmed, got {describe_interval(difference._asdict())}."
        )
    expected = Expectation(metric, kind, (name, rival), margin)
    against = effect * difference.mean < 0.0
    count, power = first_look(expected, effect, deviation, len(fresh), 0.0 if against else _POWER, paired=paired)
    record = Confirmation(
        paper=method.id,
        study=study.id,
        arm=name,
        rival=rival,
        kind=kind,
        margin=float(f"{margin:.3g}"),
        seeds=fresh,
        looks=[count, len(fresh)] if count < len(fresh) else [],
        metric=metric,
        power=round(power, 3),
        measured=[float(f"{value:.4g}") for value in difference],
        settings={arm: composed[arm].settings for arm in named},
        commit=versions().get("commit"),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        number=len(earlier) + 1,
    )
    return record._replace(digest=_digest(record))


def read_claim(method: Method, metrics: Sequence[str], arms: Sequence[str]) -> tuple[str, str, str]:
    """Returns metric, direction and rival of a method's claim, `[<metric>] above|below|equal to <arm>`.

    Args:
        method: method with a field `Claim`.
        metrics: metrics that the study reports; a claim without a metric means the first one.
        arms: arms of the study.

    Raises:
        ValueError: there is no claim, or it is about an unreported metric or compares with an arm that does not exist.
    """
    claim = method.fields.get("Claim", "")
    found = re.match(r"(?:(.+?)\s+)??(above|below|equal to)\s+(\w+)", claim)
    own = found is not None and (found[1] in (None, metrics[0]) or (found[1] in metrics and found[3] != START))
    if found and own and found[3] in arms:
        return found[1] or metrics[0], _KINDS[found[2]], found[3]
    further = f", or another of {', '.join(metrics[1:])}" if metrics[1:] else ""
    raise ValueError(
        f"`{method.id}` must claim `{metrics[0]} above|below|equal to <arm>`{further} in its header, with one of "
        f"{', '.join(arms)}, got {claim or 'nothing'!r}."
    )


def margin_of(kind: str, difference: Interval, smallest: float) -> tuple[float, float]:
    """Returns the margin and the expected effect of a claim, by the rule of this module."""
    sign = -1.0 if kind == "lower" else 1.0
    if kind == "equal":
        return smallest, 0.0
    mean, low, high = (sign * value for value in difference)
    seen = mean > 0.0 and min(low, high) > 0.0
    margin = mean / 2.0 if seen else smallest
    return margin, sign * (mean if seen else 2.0 * margin)


def _fresh_seeds(results: str | Path, arms: Sequence[Composed], earlier: Sequence[Confirmation]) -> list[int]:
    registered = [one.content.get("seeds", []) for of in read_registrations(results).values() for one in of]
    first = max((seed for seeds in registered for seed in seeds if seed < SEARCH_SEEDS), default=-1) + 1
    known = {seed for arm in arms for seed in read_runs(results, arm.address).runs}
    known |= {seed for record in earlier for seed in record.seeds}
    fresh = [seed for seed in range(first, SEARCH_SEEDS) if seed not in known][:MOST_SEEDS]
    if len(fresh) < LEAST_SEEDS:
        raise ValueError(
            f"`{arms[0].name}` must have {LEAST_SEEDS} fresh seeds from {first} to {SEARCH_SEEDS - 1}, got "
            f"{len(fresh)}: of the others, runs of {' or '.join(arm.name for arm in arms)} are known, or they were "
            "registered for it before."
        )
    return fresh


def _write(results: str | Path, made: Mapping[str, Confirmation]) -> None:
    """Adds the missing records; a record that another process has added in the meantime is kept."""
    with leased(results, "confirmations"):
        known = _read_all(results)
        for paper, record in made.items():
            of_paper = known.setdefault(paper, [])
            if record.number > len(of_paper):
                of_paper.append(record)
        content = {
            paper: [{name: value for name, value in to_json(one._asdict()).items() if name != "number"} for one in of]
            for paper, of in sorted(known.items())
        }
        write_whole(Path(results) / CONFIRMATIONS_FILE, json.dumps(content, indent=1) + "\n")


def _digest(record: Confirmation) -> str:
    content = {name: value for name, value in to_json(record._asdict()).items() if name not in ("digest", "number")}
    for later in ("looks", "metric"):  # Older records lack these.
        if not content[later]:
            del content[later]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

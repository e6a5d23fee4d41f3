"""Studies as batches: every arm a row, what is missing is run, tables in words that follow from a rule."""

import json

import numpy as np
import pytest

from jaxagents.papers.arms import compose_arm
from jaxagents.papers.batch import Line, batch_path, check_batch, compose_batch, read_batch, run_batch, turned
from jaxagents.papers.batch_page import write_batch_page
from jaxagents.papers.batch_table import (
    BETTER,
    FEW,
    NO_HEADROOM,
    NOT_SEPARATED,
    WORSE,
    cells_of,
    describe,
    measure_batch,
    print_batch,
)
from jaxagents.papers.leases import take_lease
from jaxagents.papers.library import load_batch
from jaxagents.papers.reproduce import batch_seeds
from jaxagents.papers.runs import DIVERGED, Run
from jaxagents.papers.study import Arm, Paper, make_study
from jaxagents.reporting.statistics import Interval, paired_or_welch_p_value
from tests import CONFIGS
from tests.papers.requests import STUDY, TARGET, request

SEEDS = tuple(range(100, 108))
BOTH = {"base": TARGET, "other": TARGET}
ELSEWHERE = {"elsewhere": None, "far": "elsewhere", "alone": None}


def batch(seeds=SEEDS, methods=None, **changes):
    """Makes a batch of functions: a baseline, and arms above, at and below it."""
    offsets = {"up": 1.0, "same": 0.0, "down": -1.0} if methods is None else methods
    values = {"arms": {"base": TARGET}, "methods": [{name: {**TARGET, "offset": x}} for name, x in offsets.items()]}
    study = make_study(STUDY | {"seeds": "0-7"} | values | changes)
    return Paper("f/s", "f", "q", "", study, (*study.arms, *study.methods), (), 0.0, seeds)


def measure(of, tmp_path, failures=None, **options):
    asked = request(tmp_path, **options)
    composed, broken = compose_batch(of, asked)
    lines = read_batch(asked.results, of.study.id)
    rows, checks = measure_batch(of, lines, composed, {**broken, **(failures or {})})
    return {row.arm: row for row in rows}, checks


def test_a_batch_runs_what_is_missing_and_says_what_it_measured(calls, tmp_path, capsys):
    of = batch()
    assert run_batch(of, request(tmp_path)) == {} and len(calls) == 32
    assert run_batch(of, request(tmp_path)) == {} and len(calls) == 32
    rows, _ = measure(of, tmp_path)
    assert list(rows) == ["base", "up", "same", "down"]
    assert (rows["up"].word, rows["down"].word) == (BETTER, WORSE) and rows["base"].word == ""
    assert rows["up"].difference.mean == pytest.approx(1.0) and rows["up"].values[103] == pytest.approx(11.3)
    assert rows["up"].p < 0.05 and rows["same"].p == 1.0 and rows["up"].mean_of("curve") == 1.0
    print_batch(of, [*rows.values()], [])
    printed = capsys.readouterr().out
    assert "better" in printed and "3 differences; without adjustment 0.2 of them" in printed
    page = write_batch_page(tmp_path / "results", of, [*rows.values()], []).read_text(encoding="utf-8")
    assert "| up |" in page and (tmp_path / "results" / "studies" / "f" / "s.svg").exists()


def test_the_last_evaluation_of_a_diverged_run_counts_and_a_run_without_one_is_only_counted(tmp_path, monkeypatch):
    """As in verdicts: to leave out what diverged would favour arms that often do."""

    def diverge(job, seeds, session):
        early = {"score": {"steps": [0, 1], "values": [1.0, 2.0]}} if job.composed.name == "up" else {}
        curves = early | {"train/loss": {"steps": [0], "values": [float("nan")]}}
        return [Run(job.composed.address, seed, DIVERGED, curves, 0.1) for seed in seeds]

    monkeypatch.setattr("jaxagents.papers.batch.run_seeds", diverge)
    of = batch(methods={"up": 1.0}, arms={"base": TARGET})
    assert run_batch(of, request(tmp_path)) == {}
    rows, _ = measure(of, tmp_path)
    assert set(rows["up"].values.values()) == {2.0} and rows["up"].diverged == 8
    assert rows["base"].values == {} and rows["base"].diverged == 8 and rows["up"].word == FEW


def test_words_follow_from_the_rule():
    wide, narrow = Interval(0.0, -0.2, 0.2), Interval(0.01, -0.02, 0.03)
    assert describe(Interval(0.3, 0.1, 0.5), 0.04, wide, 0.05) == BETTER
    assert describe(Interval(-0.3, -0.5, -0.1), 0.04, wide, 0.05) == WORSE
    assert describe(Interval(0.3, 0.1, 0.5), 0.06, Interval(0.3, -0.1, 0.7), 0.05) == NOT_SEPARATED
    assert describe(narrow, 0.6, narrow, 0.05) == "no difference within 0.05"


def test_less_is_better_where_the_study_says_so(calls, tmp_path):
    of = batch(higher_is_better=False)
    run_batch(of, request(tmp_path))
    rows, _ = measure(of, tmp_path)
    assert rows["up"].word == WORSE and rows["up"].difference.mean == pytest.approx(-1.0)
    assert [*rows] == ["base", "down", "same", "up"]


def test_arms_of_another_world_are_compared_with_a_baseline_of_theirs_or_with_none(calls, tmp_path):
    arms = {"base": TARGET, "elsewhere": {**TARGET, "offset": 5.0}}
    of = batch(
        arms=arms, methods={"up": 1.0, "far": 5.5, "alone": 9.0, "near": 4.9}, rivals=ELSEWHERE | {"near": "elsewhere"}
    )
    run_batch(of, request(tmp_path))
    rows, _ = measure(of, tmp_path)
    assert {name: row.rival for name, row in rows.items()} == {
        "base": "",
        "elsewhere": "",
        "up": "base",
        "far": "elsewhere",
        "alone": "",
        "near": "elsewhere",
    }
    assert rows["far"].difference.mean == pytest.approx(0.5) and rows["up"].difference.mean == pytest.approx(1.0)
    assert rows["elsewhere"].difference is None and rows["elsewhere"].word == "" and rows["far"].word == BETTER
    page = write_batch_page(tmp_path / "results", of, [*rows.values()], []).read_text(encoding="utf-8")
    assert "Differences are to `base` (but of `far`, `near` to `elsewhere`), more" in page and "3 differences" in page
    assert [cells_of(rows[name])[4] for name in ("elsewhere", "alone")] == ["the baseline", "-"]


def test_without_headroom_no_arm_has_a_word_of_its_own(calls, tmp_path):
    of = batch(checks=[{"arm": "base", "above": 50.0}])
    run_batch(of, request(tmp_path))
    rows, (check,) = measure(of, tmp_path)
    assert check.outcome == "not held" and rows["up"].word == NO_HEADROOM
    passed = batch(checks=[{"arm": "base", "above": 5.0}])
    rows, (check,) = measure(passed, tmp_path)
    assert check.outcome == "held" and rows["up"].word == BETTER


def test_arms_without_a_run_are_named_below_the_table(calls, tmp_path, capsys):
    of = batch()
    run_batch(of, request(tmp_path, arms=["base", "down"]))
    rows, _ = measure(of, tmp_path, {"same": "RuntimeError: it broke"})
    page = write_batch_page(tmp_path / "results", of, [*rows.values()], []).read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in table[2:]] == ["| base", "| down", "| same"]
    assert "- Not run: `up`.\n" in page and "- Failed: same: RuntimeError: it broke\n" in page
    print_batch(of, [*rows.values()], [])
    assert "Not run: `up`." in capsys.readouterr().out


def test_few_seeds_give_no_word(calls, tmp_path):
    of = batch(seeds=SEEDS[:3])
    run_batch(of, request(tmp_path))
    rows, _ = measure(of, tmp_path)
    assert rows["up"].word == FEW and rows["up"].difference is not None


def test_an_arm_that_fails_is_a_row_and_stops_no_other(calls, tmp_path):
    of = batch(methods={"up": 1.0})
    broken = (
        Arm("unknown", ("experiment=grpo_frozenlake", "+method=no_such_method")),
        Arm("wrong", ("experiment=grpo_frozenlake", "learner.no_such_setting=1")),
        Arm("raises", (), {**TARGET, "fails": True}),
    )
    of = Paper("f/s", "f", "q", "", of.study, (*broken, *of.arms), (), 0.0, SEEDS)
    failures = run_batch(of, request(tmp_path))
    assert set(failures) == {"unknown", "wrong", "raises"}
    assert "`unknown` must be of configs/method, got 'no_such_method'" in failures["unknown"]
    assert "no_such_setting" in failures["wrong"] and failures["raises"] == "RuntimeError: it broke"
    rows, _ = measure(of, tmp_path, failures)
    assert rows["up"].word == BETTER and rows["raises"].word == "not run" and rows["raises"].failure
    assert set(check_batch(of, request(tmp_path))) == {"unknown", "wrong"}  # A function shows its faults when called.


@pytest.mark.slow
def test_a_start_that_cannot_be_evaluated_fails_before_any_run(tmp_path):
    of = load_batch(CONFIGS.parent / "experiments", "lm_rl/guards", (100,))
    asked = request(tmp_path, arms=("grpo",), overrides=("warm_start.environment.wrappers=null",))
    (reason,) = check_batch(of, asked).values()
    assert "`parts` must be what 'frozenlake' reports, got 'violations'" in reason
    assert check_batch(of, request(tmp_path, arms=("grpo",))) == {}


def test_a_line_that_a_kill_cut_short_is_run_again(calls, tmp_path):
    of = batch(seeds=SEEDS[:2])
    run_batch(of, request(tmp_path))
    path = batch_path(tmp_path / "results", "f/s")
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert len(read_batch(tmp_path / "results", "f/s")) == 7
    run_batch(of, request(tmp_path))
    assert len(calls) == 9 and len(read_batch(tmp_path / "results", "f/s")) == 8
    assert path.read_bytes().startswith(whole[:-30] + b"\n")


def test_what_another_worker_is_at_is_left_to_it(calls, tmp_path, monkeypatch):
    of = batch(seeds=SEEDS[:1], methods={})
    address = compose_arm(of.study, of.arms[0], CONFIGS).address
    lease = take_lease(tmp_path / "results", f"batch-{address}-100")

    def end(seconds):
        lease.release()

    monkeypatch.setattr("jaxagents.papers.batch.time.sleep", end)
    run_batch(of, request(tmp_path))
    assert len(calls) == 1


def test_trials_are_counted_and_are_no_runs_of_the_arm(calls, tmp_path):
    of = batch(seeds=(100, 101), methods={})
    asked = request(tmp_path)
    run_batch(of, asked)
    line = json.loads(batch_path(asked.results, "f/s").read_text().splitlines()[0])
    for rate in ("1e-3", "2e-3", "2e-3"):
        trial = Line(**{**line, "address": rate, "overrides": [f"optimizer.learning_rate={rate}"]})
        with batch_path(asked.results, "f/s").open("a") as file:
            file.write(json.dumps(trial._asdict()) + "\n")
    rows, _ = measure(of, tmp_path)
    assert rows["base"].trials == 2 and len(rows["base"].values) == 2


def test_arms_of_papers_join_the_batch_and_starts_are_their_own():
    of = load_batch(CONFIGS.parent / "experiments", "lake", SEEDS)
    names = [arm.name for arm in of.arms]
    assert names[:3] == ["grpo", "rloo", "dr_grpo"] and "step_only" in names
    assert of.study.start_seed is None and of.seeds == SEEDS and of.headline == ()


def test_seeds_of_verdicts_are_refused(tmp_path):
    assert batch_seeds(request(tmp_path)) == SEEDS and len(batch_seeds(request(tmp_path, quick=True))) == 2
    with pytest.raises(ValueError, match="`seeds` of a batch must be search seeds, from 100 on, got 7"):
        batch_seeds(request(tmp_path, seeds=(7, 100)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["a", "a"]}, "`methods` must have every name once, got a twice"),
        ({"methods": [{"base": []}]}, "`methods` must have other names than the baselines, got base"),
        ({"rivals": {"bas": None}}, "`rivals` must be of arms, got 'bas'; try base"),
        ({"arms": BOTH, "rivals": {"other": "up"}}, "`rivals.other` must be one of the other baselines base or null"),
        ({"arms": BOTH, "rivals": {"other": "other"}}, "`rivals.other` must be one of the other baselines base or"),
        ({"smallest_effect": 0.0}, "`smallest_effect` must be more than 0, got 0"),
    ],
)
def test_wrong_studies_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_study(STUDY | {"arms": {"base": TARGET}, "experiment": "grpo_frozenlake"} | changes)


def test_differences_are_paired_where_seeds_explain_most():
    rng = np.random.default_rng(0)
    starts = rng.normal(size=8)
    first, second = starts + 0.1 + 0.01 * rng.normal(size=8), starts
    assert paired_or_welch_p_value(first, second) < 1e-5 < 0.05 < paired_or_welch_p_value(first, rng.normal(size=8))


@pytest.mark.parametrize(
    ("count", "worker", "workers", "first"),
    [(6, 1, 2, 3), (3, 1, 2, 1), (1, 1, 2, 0), (0, 1, 2, 0), (5, 0, 3, 0), (5, 2, 3, 3)],
)
def test_workers_begin_with_different_arms_whatever_is_missing(count, worker, workers, first):
    items = [*range(count)]
    assert turned(items, worker / workers) == [*items[first:], *items[:first]]

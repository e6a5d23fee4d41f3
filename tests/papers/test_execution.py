"""Running papers: what is missing, shared runs, versions, failures, and what is registered first."""

import errno
import json
import pathlib

import pytest

from jaxagents.papers.arms import compose_arms
from jaxagents.papers.execution import run_papers
from jaxagents.papers.judge import judge
from jaxagents.papers.leases import take_lease
from jaxagents.papers.plan import check_request
from jaxagents.papers.printing import print_status, read_status
from jaxagents.papers.registration import read_registrations
from jaxagents.papers.runs import read_run
from jaxagents.training.config import config_hash
from tests.papers.requests import CONFIGS, TARGET, of_functions, read, request


def test_what_is_missing_is_run_and_judged(calls, tmp_path, capsys):
    paper = of_functions()
    assert run_papers([paper], request(tmp_path)) == {}
    assert calls == [(0, 1.0), (1, 1.0), (2, 1.0), (0, 0.0), (1, 0.0), (2, 0.0)]
    runs = read(paper, tmp_path)
    assert judge(paper, runs).describe() == "reproduced"
    assert runs["treatment"].runs[2].curves["curve"] == {"steps": [0, 1], "values": [0, 1]}
    assert runs["treatment"].runs[2].versions["jax"] and runs["treatment"].runs[2].start is None
    assert run_papers([paper], request(tmp_path)) == {} and len(calls) == 6
    assert "p: nothing to run, 6 stored runs are reused." in capsys.readouterr().err


def test_what_a_verdict_does_not_need_is_reported(calls, tmp_path, capsys):
    secondary = [{"better": "treatment", "worse": "unused", "margin": 0.5}]
    paper = of_functions(secondary=secondary)
    run_papers([paper], request(tmp_path, arms=("treatment", "baseline")))
    (status,) = read_status([paper], request(tmp_path))
    assert status.verdict == "reproduced" and status.unneeded == {"unused": 3}
    print_status([status])
    assert "p: runs are not there, and its verdict needs none of them: 3 of unused." in capsys.readouterr().out
    unfinished = of_functions({**TARGET, "offset": 7.0})
    assert read_status([unfinished], request(tmp_path))[0].unneeded == {}


def test_papers_that_name_the_same_arm_share_its_runs(calls, tmp_path):
    first, second = of_functions(), of_functions({**TARGET, "offset": 2.0}, id="q")
    assert run_papers([first, second], request(tmp_path)) == {}
    assert sorted(calls) == [(seed, offset) for seed in range(3) for offset in (0.0, 1.0, 2.0)]
    assert judge(second, read(second, tmp_path)).describe() == "reproduced"


def test_a_damaged_run_is_set_aside_and_run_again(calls, tmp_path, capsys):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    path = next((tmp_path / "results" / "runs").rglob("1.json"))
    path.write_text("{")
    capsys.readouterr()
    (status,) = read_status([paper], request(tmp_path))
    assert (status.done, status.needed, status.damaged) == (5, 6, (path,))
    print_status([status])
    assert f"Damaged: {path}; it counts nowhere. The same command without status=true" in capsys.readouterr().out
    assert run_papers([paper], request(tmp_path)) == {} and len(calls) == 7
    line = capsys.readouterr().err.replace("\n", "")
    assert f"`{path}` is damaged: it is {path}.damaged now; the run is missing, and is to be run again." in line
    assert read_status([paper], request(tmp_path))[0].damaged == ()
    assert read_run(path).seed == 1 and path.with_name("1.json.damaged").read_text() == "{"


@pytest.mark.parametrize("of_arm", [False, True])
def test_runs_of_an_earlier_version_count_no_longer_and_come_back(calls, tmp_path, of_arm):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    target = {**TARGET, "offset": 1.0, "version": 2}
    raised = of_functions(arms={"treatment": target}) if of_arm else of_functions(study={"version": 2})
    runs = read(raised, tmp_path)
    assert runs["treatment"].runs == {} and len(runs["baseline"].runs) == (3 if of_arm else 0)
    assert run_papers([raised], request(tmp_path)) == {} and len(calls) == (9 if of_arm else 12)
    assert judge(raised, read(raised, tmp_path)).word == "reproduced"
    assert run_papers([paper], request(tmp_path)) == {} and len(calls) == (9 if of_arm else 12)


def test_what_the_address_is_of_is_kept_beside_the_runs(calls, tmp_path):
    paper = of_functions()
    run_papers([paper], request(tmp_path))
    arm = compose_arms(paper, CONFIGS)["treatment"]
    asked = json.loads((tmp_path / "results" / "runs" / arm.address / "asked.json").read_text())
    assert asked == arm.asked and asked["version"] == [1, 1] and asked["train"]["function"]["offset"] == 1.0
    assert config_hash(asked) == arm.address


def test_a_failure_stops_nothing_else(calls, tmp_path):
    broken = {"_target_": "functions_of_test.score", "fails": True}
    paper, other = of_functions(arms={"treatment": broken}, id="broken"), of_functions()
    failures = run_papers([paper, other], request(tmp_path))
    (name, line), *more = failures.items()
    assert name == "broken: treatment" and "it broke" in line and not more
    assert len(calls) == 6 and judge(other, read(other, tmp_path)).word == "reproduced"
    verdict = judge(paper, read(paper, tmp_path))
    assert verdict.describe() == "unfinished (3 of 6 runs)"


@pytest.mark.parametrize("full_at", ["os.fsync", "os.link"])
def test_a_full_disk_fails_an_arm_in_one_line_and_loses_nothing(calls, tmp_path, monkeypatch, capsys, full_at):
    paper = of_functions()
    run_papers([paper], request(tmp_path, arms=("treatment",), seeds_at_once=1))
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()}

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(full_at, full)
        failures = run_papers([paper], request(tmp_path))
    line = f"No space left on device: {tmp_path / 'results'}; what is stored stays, and the same command runs the rest."
    assert failures == {"p: baseline": line}
    assert f"Failed: p: baseline: {line}" in capsys.readouterr().err.replace("\n", "")
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()} == before
    assert run_papers([paper], request(tmp_path)) == {} and calls[3:] == [(0, 0.0), *[(seed, 0.0) for seed in range(3)]]
    assert judge(paper, read(paper, tmp_path)).word == "reproduced"


def test_search_seeds_run_the_baselines_and_count_in_no_verdict(calls, tmp_path):
    paper = of_functions()
    run_papers([paper], request(tmp_path, seeds=(100, 101)))
    assert sorted(calls) == [(100, -1.0), (100, 0.0), (101, -1.0), (101, 0.0)]
    assert read_registrations(tmp_path / "results") == {}
    run_papers([paper], request(tmp_path, seeds=(100,), arms=("treatment",)))
    assert calls[-1] == (100, 1.0)
    verdict = judge(paper, read(paper, tmp_path))
    assert verdict.word == "not run" and (verdict.done, verdict.needed) == (0, 6)


def test_verdict_seeds_are_registered_first_and_changes_are_refused(calls, tmp_path):
    def paper(margin):
        headline = [{"better": "treatment", "worse": "baseline", "margin": margin}]
        made = of_functions(headline=headline)
        return made.__class__(**{**vars(made), "source": {"paper": {"headline": headline}, "study": {}}})

    run_papers([paper(0.5)], request(tmp_path))
    (registration,) = read_registrations(tmp_path / "results")["p"]
    assert registration.content["paper"]["headline"][0]["margin"] == 0.5 and registration.content["seeds"] == [0, 1, 2]
    (tmp_path / "results" / "runs").rename(tmp_path / "elsewhere")
    failures = run_papers([paper(0.1)], request(tmp_path))
    assert "`p` must be what was registered on" in failures["p"] and "got changes of paper.headline" in failures["p"]
    assert len(calls) == 6
    assert run_papers([paper(0.1)], request(tmp_path, register=True)) == {} and len(calls) == 12
    assert len(read_registrations(tmp_path / "results")["p"]) == 2


@pytest.mark.slow
def test_arms_of_others_are_left_to_them_and_taken_over(calls, tmp_path):
    import threading

    paper = of_functions()
    address = compose_arms(paper, CONFIGS)["treatment"].address
    lease = take_lease(tmp_path / "results", f"{address}-1")
    timer = threading.Timer(3.0, lease.release)  # As the kernel does when its holder is killed.
    timer.start()
    status = read_status([paper], request(tmp_path))[0]
    assert (status.running, status.done, status.needed, status.minutes_left) == (1, 0, 6, 6.0)
    assert run_papers([paper], request(tmp_path)) == {}
    timer.join()
    assert sorted(calls[:5]) == [(0, 0.0), (0, 1.0), (1, 0.0), (2, 0.0), (2, 1.0)] and calls[5:] == [(1, 1.0)]
    status = read_status([paper], request(tmp_path))[0]
    assert (status.verdict, status.done, status.running, status.minutes_left) == ("reproduced", 6, 0, 0.0)


def test_a_function_without_the_metric_fails_at_its_first_call(calls, tmp_path):
    misspelt = [{"metric": "scoer", "higher": "treatment", "lower": "baseline", "margin": 0.5}]
    failures = run_papers([of_functions(headline=misspelt)], request(tmp_path))
    assert set(failures) == {"p: treatment", "p: baseline"} and len(calls) == 2
    assert "got 'scoer'; try score; it logs curve, score." in failures["p: treatment"]


def test_a_metric_that_stored_calls_lack_is_refused_before_anything_is_registered(calls, tmp_path):
    misspelt = [{"metric": "scoer", "higher": "treatment", "lower": "baseline", "margin": 0.5}]
    assert run_papers([of_functions()], request(tmp_path, seeds=(100,), arms=("treatment", "baseline"))) == {}
    assert len(calls) == 2 and not read_registrations(tmp_path / "results")
    for changes in ({"headline": misspelt}, {"metrics": ["scoer"]}):
        failures = run_papers([of_functions(**changes)], request(tmp_path))
        assert set(failures) == {"p"} and "got 'scoer'; try score" in failures["p"]
    assert len(calls) == 2 and not read_registrations(tmp_path / "results")


def test_nothing_is_run_after_a_look_that_decides(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxagents.papers.execution._POLL_SECONDS", 0.0)
    paper = of_functions(study={"seeds": "0-15"}, looks=[4, 8, 16])
    assert run_papers([paper], request(tmp_path)) == {}
    looks = [[(seed, offset) for offset in (1.0, 0.0) for seed in seeds] for seeds in (range(4), range(4, 8))]
    assert calls == [*looks[0], *looks[1]]
    assert read_registrations(tmp_path / "results")["p"][0].content["seeds"] == list(range(16))
    (status,) = read_status([paper], request(tmp_path))
    assert status.verdict == "reproduced" and status.unneeded == {"treatment": 8, "baseline": 8}
    failing = of_functions({**TARGET, "fails": True}, id="q", study={"seeds": "0-15"}, looks=[4, 8, 16])
    assert list(run_papers([failing], request(tmp_path))) == ["q: treatment"]


def test_what_could_never_count_is_refused():
    paper = of_functions(study={"seeds": "0-7"})
    with pytest.raises(
        ValueError, match="`seeds` of p must be at least 8 to be registered, got 3, on which no verdict"
    ):
        check_request([of_functions()], request(pathlib.Path()))
    for options, match in (
        ({"arms": ("treatmnt",)}, "`arms` must be of the paper p, got 'treatmnt'; try treatment"),
        ({"seeds": (7, 8)}, "`seeds` of p must be committed ones, 0, .*, 7, or search seeds, from 100 on, got 8"),
        (
            {"overrides": ("nonsense=1",)},
            "arms that are trained, got functions, which take none: treatment, baseline of p; change",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            check_request([paper], request(pathlib.Path(), **options))
    for options in ({}, {"seeds": (1, 100)}, {"seeds": (8,), "quick": True}):
        check_request([paper], request(pathlib.Path(), **options))


def test_a_change_since_it_was_registered_is_told(calls, tmp_path):
    assert run_papers([of_functions()], request(tmp_path)) == {}
    changed = of_functions(headline=[{"better": "treatment", "worse": "baseline", "margin": 0.25}])
    assert read_status([changed], request(tmp_path))[0].verdict == "reproduced, changed since registered"


def test_functions_without_randomness_run_once(calls, tmp_path):
    paper = of_functions(study={"deterministic": True, "seeds": [0]})
    run_papers([paper], request(tmp_path))
    assert calls == [(0, 1.0), (0, 0.0)] and judge(paper, read(paper, tmp_path)).word == "reproduced"


def test_functions_share_arguments(calls, tmp_path):
    study = {"arguments": {"offset": 5.0, "fails": False}, "when_quick": {"arguments": {"offset": 0.25}}}
    run_papers([of_functions(study=study)], request(tmp_path))
    assert set(calls) == {(seed, offset) for seed in range(3) for offset in (0.0, 1.0)}  # An arm's own come first,
    run_papers([of_functions(study=study)], request(tmp_path / "quick", quick=True))
    assert calls[6:] == [(0, 0.25), (1, 0.25)]  # and those of a variant before them: both arms are one.


def test_what_a_run_gave_is_printed_as_the_studys_metric(calls, tmp_path, capsys):
    paper = of_functions({**TARGET, "offset": 4.0}, study={"metric": "until(curve, 1.0)"})
    run_papers([paper], request(tmp_path, arms=("treatment",)))
    assert "p: treatment, seed 2: until(curve, 1.0) 1 (" in capsys.readouterr().err  # The step at which 4 follows 0.

"""Stored runs move where only names of their settings have changed."""

from jaxagents.papers.execution import run_papers
from jaxagents.papers.judge import judge
from jaxagents.papers.migration import migrate
from tests.papers.requests import TARGET, of_functions, read, request


def test_runs_follow_a_renamed_function_and_a_new_option_without_a_run(calls, tmp_path, monkeypatch):
    import functions_of_test

    paper = of_functions()
    run_papers([paper], request(tmp_path))
    monkeypatch.setattr(functions_of_test, "points", functions_of_test.score, raising=False)
    target = {"_target_": "functions_of_test.points", "fails": False}
    today = of_functions(treatment=target, baseline=target)
    assert read(today, tmp_path)["treatment"].runs == {}
    names = {"functions_of_test.score": "functions_of_test.points"}
    assert migrate([today], request(tmp_path), names, {"fails": False}) == {"runs": 6, "starts": 0}
    assert judge(today, read(today, tmp_path)).describe() == "reproduced" and len(calls) == 6
    assert run_papers([today], request(tmp_path)) == {} and len(calls) == 6  # Also its registration has followed.
    assert len([*(tmp_path / "results" / "earlier" / "runs").glob("*/[0-9].json")]) == 6
    assert migrate([today], request(tmp_path), names, {"fails": False}) == {"runs": 0, "starts": 0}


def test_other_settings_are_not_moved(calls, tmp_path):
    run_papers([of_functions()], request(tmp_path))
    other = of_functions(treatment={**TARGET, "offset": 2.0})
    assert migrate([other], request(tmp_path), {}, {}) == {"runs": 0, "starts": 0}
    assert read(other, tmp_path)["treatment"].runs == {} and len(read(other, tmp_path)["baseline"].runs) == 3

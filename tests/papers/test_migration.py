"""Stored runs move where only names of their settings have changed, and from the earlier layout."""

import hashlib
import json

import pytest

from jaxagents.papers.arms import compose_arms
from jaxagents.papers.execution import run_papers
from jaxagents.papers.judge import judge
from jaxagents.papers.migration import migrate
from jaxagents.papers.registration import read_registrations
from jaxagents.papers.runs import require_layout, run_path
from jaxagents.training.config import config_hash
from tests.papers.requests import CONFIGS, TARGET, of_functions, read, request


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


def test_the_earlier_layout_is_named_and_the_newest_run_of_a_seed_is_taken(calls, tmp_path):
    paper, results = of_functions(), tmp_path / "results"
    run_papers([paper], request(tmp_path))
    for arm in compose_arms(paper, CONFIGS).values():
        hashes = [config_hash({name: arm.asked[name]}) for name in ("train", "evaluation")]
        for code in ("first", "second"):
            folder = (results / "runs").joinpath(*hashes, code)
            folder.mkdir(parents=True)
            for seed in (0, 1, 2):
                content = json.loads(run_path(results, arm.address, seed).read_text())
                content = {name: value for name, value in content.items() if name not in ("digest", "asked")}
                content["minutes"] = {"first": 1.0, "second": 2.0}[code]
                digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
                (folder / f"{seed}.json").write_text(json.dumps({"digest": digest, **content}))
        for path in run_path(results, arm.address, 0).parent.glob("*"):
            path.unlink()
    registered = read_registrations(results)["p"]
    (results / "registrations.json").write_text(
        json.dumps({"p": [{**one._asdict(), "content": without_resolved(one.content)} for one in registered]})
    )
    with pytest.raises(ValueError, match="of the earlier layout; try paper=all migrate=true 'added="):
        require_layout(results)
    assert migrate([paper], request(tmp_path), {}, {}) == {"runs": 6, "starts": 0}
    require_layout(results)
    runs = read(paper, tmp_path)["treatment"].runs
    assert len(runs) == 3 and {run.minutes for run in runs.values()} == {2.0}
    assert read_registrations(results)["p"] == registered and run_papers([paper], request(tmp_path)) == {}


def without_resolved(content):
    return {name: value for name, value in content.items() if name != "resolved"}

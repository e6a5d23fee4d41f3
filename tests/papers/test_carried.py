"""Runs of earlier code: which of them count today, and what a record must show for that."""

import json
import math

import pytest

from jaxagents.papers.carried import Record, differences, read_carried, write_record
from jaxagents.papers.judge import judge
from jaxagents.papers.programs import PROGRAMS_FOLDER
from jaxagents.papers.runs import DIVERGED, DONE, Address, Run, content_digest, run_path, write_run
from jaxagents.papers.stored import read_runs
from jaxagents.papers.study import make_paper, make_study

TODAY = Address("t", "e", "today")
EARLIER = TODAY._replace(code="earlier")
CURVE = {"x": {"steps": [0, 8], "values": [0.25, math.nan]}}


def run_of(seed, address, curves, **changes):
    values = {"status": DONE, "minutes": 0.5, "start": "s", "budget": ["episodes", 8], "versions": {"jax": "1"}}
    return Run(address=address, seed=seed, curves=curves, **values | changes)


@pytest.fixture
def stored(tmp_path):
    """Returns a store with three seeds of earlier code, the first of which ran again, and a record of it."""
    for seed in (0, 1, 2):
        write_run(tmp_path, run_of(seed, EARLIER, CURVE))
    write_run(tmp_path, run_of(0, TODAY, CURVE, minutes=9.0, versions={"jax": "2"}))
    write_record(tmp_path, TODAY, Record("today", "earlier", 0, "p: a", "abc"))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"minutes": 9.0, "versions": {}}, []),
        ({"status": DIVERGED, "start": "other"}, ["status", "start"]),
        ({"curves": {"x": {"steps": [0, 8], "values": [0.25, 0.0]}}}, ["x"]),
        ({"curves": {"x": {"steps": [0, 9], "values": [0.25, math.nan]}}}, ["x"]),
        ({"curves": CURVE | {"y": {"steps": [], "values": []}}}, ["y"]),
    ],
)
def test_what_two_runs_do_not_share_is_named(changes, expected):
    assert differences(run_of(0, EARLIER, CURVE), run_of(0, TODAY, **{"curves": CURVE} | changes)) == expected


def test_runs_of_a_code_that_logs_the_same_count_and_are_counted(stored):
    runs = read_runs(stored, TODAY)
    assert list(runs.runs) == [0, 1, 2] and runs.stale == {} and runs.damaged == ()
    assert runs.carried == {1: "earlier", 2: "earlier"} and runs.runs[0].minutes == 9.0
    study = make_study({"id": "f/s", "question": "q", "metric": "x", "seeds": "0-2", "arms": {"b": {"_target_": "f"}}})
    values = {"id": "p", "family": "f", "title": "t", "claim": "c", "minutes": 1, "study": "s"}
    paper = make_paper(values | {"arms": {"a": {"_target_": "g"}}, "headline": [{"arm": "a", "above": 0.0}]}, study, {})
    assert judge(paper, {"a": runs}).carried == {"a": 2}


def test_what_counts_for_a_code_counts_for_the_same_program(stored):
    tomorrow = TODAY._replace(code="tomorrow")
    assert read_runs(stored, tomorrow).runs == {}
    told = {"program": "p", "host": "h"}
    folder = stored / PROGRAMS_FOLDER / "t" / "e"
    folder.mkdir(parents=True)
    for code in ("today", "tomorrow"):
        (folder / f"{code}.json").write_text(json.dumps({"digest": content_digest(told), **told}))
    runs = read_runs(stored, tomorrow)
    assert runs.carried == {0: "today", 1: "earlier", 2: "earlier"} and runs.stale == {}
    told = {"program": "another", "host": "h"}
    (folder / "today.json").write_text(json.dumps({"digest": content_digest(told), **told}))
    assert read_runs(stored, tomorrow).runs == {}


def test_another_code_stays_stale(stored):
    write_run(stored, run_of(3, TODAY._replace(code="unknown"), CURVE))
    runs = read_runs(stored, TODAY)
    assert list(runs.runs) == [0, 1, 2] and list(runs.stale) == [3]
    # A record is of one pair of codes: nobody ran a seed again with the next one.
    assert list(read_runs(stored, TODAY._replace(code="tomorrow")).runs) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda record, old, new: record.write_text(record.read_text()[:40]),
        lambda record, old, new: record.write_text(record.read_text().replace('"seed": 0', '"seed": 1')),
        lambda record, old, new: record.write_text("{}"),
        lambda record, old, new: record.rename(record.with_name("unknown.json")),
        lambda record, old, new: new.unlink(),
        lambda record, old, new: old.write_text("{"),
        lambda record, old, new: old.write_bytes(old.with_name("1.json").read_bytes()),
    ],
)
def test_a_record_that_shows_nothing_is_not_believed(stored, damage):
    record = stored / "carried" / "t" / "e" / "today" / "earlier.json"
    damage(record, run_path(stored, EARLIER, 0), run_path(stored, TODAY, 0))
    runs = read_runs(stored, TODAY)
    assert runs.carried == {} and {1, 2} <= set(runs.stale)
    assert [path.parent.name for path in runs.damaged if "carried" in path.parts] == ["today"]


def test_a_record_of_runs_that_differ_is_not_believed(stored):
    other = TODAY._replace(code="other")
    write_run(stored, run_of(0, other, {"x": {"steps": [0, 8], "values": [0.5, math.nan]}}))
    write_record(stored, TODAY, Record("today", "other", 0, "p: a", None))
    records, refused = read_carried(stored, TODAY)
    assert list(records) == ["earlier"] and [path.name for path in refused] == ["other.json"]


def test_a_record_says_what_was_compared(stored):
    told = json.loads((stored / "carried" / "t" / "e" / "today" / "earlier.json").read_text())
    assert told.pop("digest")
    assert told == {"code": "today", "earlier": "earlier", "seed": 0, "arm": "p: a", "commit": "abc"}

"""The store: what is kept of a run, that it is written once, and what a damaged file does."""

import json
import math

import pytest

from jaxagents.papers.runs import DONE, Run, read_run, read_runs, run_path, write_asked, write_run
from jaxagents.training.store import set_aside, write_record

ADDRESS = "0123456789abcdef"
CURVES = {
    "eval/success": {"steps": [0, 8], "values": [0.25, math.nan]},
    "train/loss": {"steps": [4, 8], "values": [0.1234567, 12345678.5]},
    "rollout/turns": {"steps": [4, 8], "values": [1234567.0, 2345678.0]},
}


def run_of(seed=3, address=ADDRESS, curves=CURVES, **changes):
    values = {"status": DONE, "minutes": 0.5, "start": "s", "budget": ["episodes", 8], "versions": {"jax": "1"}}
    return Run(address=address, seed=seed, curves=curves, **values | changes)


def test_what_is_written_is_read(tmp_path):
    assert write_run(tmp_path, run_of())
    path = tmp_path / "runs" / ADDRESS / "3.json"
    run = read_run(path)
    assert run._replace(curves={}) == run_of(curves={})
    assert run.curves["eval/success"]["steps"] == [0, 8] and run.curves["eval/success"]["values"][0] == 0.25
    assert math.isnan(run.curves["eval/success"]["values"][1])
    # Five digits, but whole numbers as they are: counters of experience are exact.
    assert run.curves["train/loss"] == {"steps": [4, 8], "values": [0.12346, 12346000]}
    assert run.curves["rollout/turns"]["values"] == [1234567, 2345678]
    assert [file.name for file in path.parent.iterdir()] == ["3.json"]


def test_steps_that_curves_share_are_stored_once(tmp_path):
    write_run(tmp_path, run_of())
    assert json.loads(run_path(tmp_path, ADDRESS, 3).read_text())["points"] == [[0, 8], [4, 8]]


def test_a_stored_run_is_never_changed(tmp_path):
    write_run(tmp_path, run_of())
    before = run_path(tmp_path, ADDRESS, 3).read_bytes()
    assert not write_run(tmp_path, run_of(minutes=7.0))
    assert run_path(tmp_path, ADDRESS, 3).read_bytes() == before


def test_only_the_runs_of_an_arm_are_read(tmp_path):
    for address, seed in ((ADDRESS, 10), (ADDRESS, 1), ("other", 2)):
        write_run(tmp_path, run_of(seed, address))
    write_asked(tmp_path / "runs" / ADDRESS, {"train": {"k": 1}})
    stored = read_runs(tmp_path, ADDRESS)
    assert list(stored.runs) == [1, 10] and stored.runs[1].address == ADDRESS and stored.damaged == ()
    assert read_runs(tmp_path, "unknown") == ({}, ())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("0.12346", "0.12347"),
        lambda text: text.replace('"minutes"', '"hours"'),
        lambda text: "[]",
        lambda text: "",
    ],
)
def test_a_damaged_file_is_named_and_set_aside(tmp_path, damage):
    write_run(tmp_path, run_of())
    path = run_path(tmp_path, ADDRESS, 3)
    damaged = damage(path.read_text())
    path.write_text(damaged)
    with pytest.raises(ValueError, match=r"`.*3.json` must hold a result, got a damaged file"):
        read_run(path)
    stored = read_runs(tmp_path, ADDRESS)
    assert stored.runs == {} and stored.damaged == (path,)
    assert set_aside(path).read_text() == damaged and not path.exists()
    assert write_run(tmp_path, run_of()) and read_runs(tmp_path, ADDRESS).damaged == ()


@pytest.mark.parametrize("place", [(ADDRESS, 4), ("fedcba9876543210", 3)])
def test_a_file_that_was_moved_to_another_seed_or_arm_is_not_read_as_its_own(tmp_path, place):
    write_run(tmp_path, run_of())
    moved = run_path(tmp_path, *place)
    moved.parent.mkdir(exist_ok=True)
    run_path(tmp_path, ADDRESS, 3).rename(moved)
    with pytest.raises(ValueError, match=f"must hold the run of its place, got the seed 3 of {ADDRESS}; move it back"):
        read_run(moved)
    stored = read_runs(tmp_path, place[0])
    assert stored.runs == {} and stored.damaged == (moved,)


def test_an_address_that_was_changed_by_hand_is_damage(tmp_path):
    write_run(tmp_path, run_of())
    moved = run_path(tmp_path, "fedcba9876543210", 3)
    moved.parent.mkdir()
    moved.write_text(run_path(tmp_path, ADDRESS, 3).read_text().replace(ADDRESS, "fedcba9876543210"))
    with pytest.raises(ValueError, match="its content is not that of its digest"):
        read_run(moved)


def test_a_record_that_is_no_run_is_named(tmp_path):
    path = run_path(tmp_path, ADDRESS, 3)
    write_record(path, ADDRESS, {"seed": 3, "rows": []}, made_with={})
    with pytest.raises(ValueError, match="must hold a run, got another record \\('status'\\)"):
        read_run(path)

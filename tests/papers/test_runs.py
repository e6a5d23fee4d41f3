"""The store: what is kept of a run, that it is written once, and what a damaged file does."""

import json
import math

import pytest

from jaxagents.papers.runs import (
    DONE,
    Address,
    Run,
    read_run,
    run_path,
    set_aside,
    write_once,
    write_run,
)
from jaxagents.papers.stored import read_runs

ADDRESS = Address("t", "e", "c")
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
    path = tmp_path / "runs" / "t" / "e" / "c" / "3.json"
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


def test_runs_of_other_code_are_stale_and_never_mixed(tmp_path):
    for code, seed in (("c", 1), ("old", 1), ("old", 2)):
        write_run(tmp_path, run_of(seed, ADDRESS._replace(code=code)))
    write_run(tmp_path, run_of(5, ADDRESS._replace(evaluation="other")))
    stored = read_runs(tmp_path, ADDRESS)
    assert list(stored.runs) == [1] and stored.runs[1].address == ADDRESS
    assert sorted(stored.stale) == [1, 2] and stored.stale[2].address.code == "old" and stored.damaged == ()
    assert read_runs(tmp_path, Address("x", "y", "z")) == ({}, {}, (), {})


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
    with pytest.raises(ValueError, match=r"`.*3.json` must hold a run, got a damaged file"):
        read_run(path)
    stored = read_runs(tmp_path, ADDRESS)
    assert stored.runs == {} and stored.damaged == (path,)
    assert set_aside(path).read_text() == damaged and not path.exists()
    assert write_run(tmp_path, run_of()) and read_runs(tmp_path, ADDRESS).damaged == ()


def test_a_file_of_another_seed_is_damaged(tmp_path):
    write_run(tmp_path, run_of())
    path = run_path(tmp_path, ADDRESS, 3)
    path.rename(path.with_name("4.json"))
    with pytest.raises(ValueError, match="it is of the seed 3"):
        read_run(path.with_name("4.json"))


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_once(tmp_path / "a" / "b", b"content")
    assert list((tmp_path / "a").iterdir()) == []

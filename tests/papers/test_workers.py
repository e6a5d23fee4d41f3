"""Workers: each has its number, its share of the cores and the folder of the command, whoever runs them."""

import json
import os

import pytest

from jaxagents.papers.workers import run_workers

SCRIPT = """
import json, os, pathlib, sys
told = [sys.argv[1:], os.environ["PJRT_NPROC"], os.getcwd()]
pathlib.Path(sys.argv[1], sys.argv[-1]).write_text(json.dumps(told))
raise SystemExit(int(sys.argv[-1].removeprefix("worker=")))
"""


def run(tmp_path, monkeypatch, executor):
    """Runs two workers in a folder of their own and returns their exit codes."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    codes = run_workers(tmp_path / "script.py", [str(tmp_path), "a=[1, 2]"], 2, executor=executor)
    for number in range(2):
        arguments, cores, folder = json.loads((tmp_path / f"worker={number}").read_text())
        assert arguments == [str(tmp_path), "a=[1, 2]", f"worker={number}"]
        assert int(cores) == max(1, os.cpu_count() // 2) and folder == str(tmp_path)
    return codes


def test_workers_run_the_script_side_by_side(tmp_path, monkeypatch):
    assert run(tmp_path, monkeypatch, "processes") == [0, 1]


@pytest.mark.slow
def test_ray_runs_the_same_workers(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="tasks of a cluster are run by the extra `ray`")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert run(tmp_path, monkeypatch, "ray") == [0, 1]


def test_other_executors_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`executor` must be processes or ray, got 'dask'"):
        run_workers(tmp_path / "script.py", [], 2, executor="dask")

"""Workers: each has its number, its share of the cores and the folder of the command."""

import json
import os

from jaxagents.papers.reproduce import run_workers

SCRIPT = """
import json, os, pathlib, sys
found = [sys.argv[1:], os.environ["PJRT_NPROC"], os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"], os.getcwd()]
pathlib.Path(sys.argv[1], sys.argv[-1]).write_text(json.dumps(found))
raise SystemExit(int(sys.argv[-1].removeprefix("worker=")))
"""


def test_workers_run_the_script_side_by_side(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    assert run_workers(tmp_path / "script.py", [str(tmp_path), "a=[1, 2]"], 2) == [0, 1]
    for number in range(2):
        arguments, cores, preallocate, folder = json.loads((tmp_path / f"worker={number}").read_text())
        assert arguments == [str(tmp_path), "a=[1, 2]", f"worker={number}"]
        assert preallocate == "false"  # They share the memory of one accelerator.
        assert int(cores) == max(1, os.cpu_count() // 2) and folder == str(tmp_path)

"""`--help` of mains comes at once, and the tab key completes names."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

MAINS = tuple(sorted(path.stem for path in (ROOT / "experiments").glob("[!_]*.py")))
HELP = """
import runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        assert not stop.code
    print("END", script, "jax" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mains", [("train", "reproduce"), MAINS], ids=["most used", "all"])
def test_help_comes_without_jax(tmp_path, mains):
    scripts = [str(ROOT / "experiments" / f"{name}.py") for name in mains]
    result = subprocess.run(
        [sys.executable, "-c", HELP, *scripts], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("END")] == [
        f"END {script} False" for script in scripts
    ]
    assert result.stdout.count("== Config ==") == len(scripts)


def test_the_tab_key_completes_names(tmp_path):
    script = str(ROOT / "experiments/train.py")
    words = {"COMP_LINE": f"python {script} world=froz", "COMP_POINT": "200"}
    result = subprocess.run(
        [sys.executable, script, "-sc", "query=bash"],
        cwd=tmp_path,
        env=os.environ | words,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.split() == ["world=frozenlake"], result.stderr

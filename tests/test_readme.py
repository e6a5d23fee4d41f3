"""Runs the README's commands in quick mode."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT = 900.0  # Seconds for one command.


def commands_in_blocks(markdown):
    """Returns, for each ```bash block that has any, its `python experiments/...` lines; continued lines are joined."""
    blocks = re.findall(r"^```bash\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    lines_in_blocks = [block.replace("\\\n", " ").splitlines() for block in blocks]
    commands = [[line for line in lines if re.search(r"python experiments/\w+\.py", line)] for lines in lines_in_blocks]
    return [block for block in commands if block]


def quick_command(line):
    """Returns `(environment variables, arguments)` of a README line, with this interpreter and `quick=true`."""
    words = shlex.split(line, comments=True)
    start = next(i for i, word in enumerate(words) if word.endswith("python"))
    variables = dict(word.split("=", 1) for word in words[:start])
    script, *overrides = words[start + 1 :]
    if not any(word.startswith("quick=") for word in overrides):
        overrides.append("quick=true")
    return variables, [sys.executable, str(ROOT / script), *overrides]


BLOCKS = commands_in_blocks((ROOT / "README.md").read_text())


def test_commands_are_found():
    text = (
        "python experiments/no.py\n"
        "```bash\nmake train\nA=1 python experiments/train.py \\\n  x=2  # Two minutes.\n"
        ".venv/bin/python experiments/play.py quick=false\n```\n"
        "```python\npython experiments/no.py\n```\n"
    )
    (block,) = commands_in_blocks(text)
    script = str(ROOT / "experiments/train.py")
    assert [quick_command(line) for line in block] == [
        ({"A": "1"}, [sys.executable, script, "x=2", "quick=true"]),
        ({}, [sys.executable, str(ROOT / "experiments/play.py"), "quick=false"]),
    ]


def test_the_readme_has_commands():
    assert any("experiments/train.py" in line for block in BLOCKS for line in block)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[0].strip()[:60])
def test_commands_of_a_block_run_in_quick_mode(block, tmp_path):
    """The commands of one block share a working directory, where a later one finds what earlier ones wrote."""
    # As on a user's machine: without the virtual devices of conftest.
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PJRT_NPROC")}
    for line in block:
        variables, arguments = quick_command(line)
        result = subprocess.run(
            arguments,
            cwd=tmp_path,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"

"""What a run says at its end."""

import sys

import pytest

from jaxagents.training.launch import farewell


@pytest.mark.parametrize(
    ("main", "following"),
    [
        ("experiments/train.py", "python experiments/{}.py"),
        ("/env/bin/jaxagents-train", "jaxagents-{}"),  # Of the wheel, without the repository.
    ],
)
def test_the_end_says_what_came_out_and_where_to_look(monkeypatch, tmp_path, main, following):
    monkeypatch.setattr(sys, "argv", [main])
    (tmp_path / "report.html").touch()
    result = {"seconds": 61.2, "steps": 2048, "evaluation": {"success": [0.25, 0.75], "episode_length": 3.0}}
    assert farewell(tmp_path, result).splitlines() == [
        "Done in 1:01 minutes, 2,048 steps.",
        "Last evaluation: success 0.5.",
        f"Look at {tmp_path}/report.html",
        f"Next: {following.format('evaluate')} path={tmp_path}",
        f"Next: {following.format('play')} path={tmp_path}",
    ]

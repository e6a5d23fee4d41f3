"""What a run says at its end."""

import sys
from types import SimpleNamespace

import pytest

from jaxagents.training.launch import farewell, require_one_vocabulary


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


def test_a_stage_goes_on_from_one_of_the_same_tokens(speak, lake):
    policy = speak(lake)
    tokenizer = policy.tokenizer
    chat = policy._replace(tokenizer=tokenizer._replace(vocab_size=tokenizer.vocab_size + 4))

    def experiment(start, after):
        names = (
            SimpleNamespace(name="sft", start=None, policy=policy),
            SimpleNamespace(name="rl", start=start, policy=after),
        )
        return SimpleNamespace(stages=names)

    require_one_vocabulary(experiment("sft", policy))
    require_one_vocabulary(experiment(None, chat))
    size = tokenizer.vocab_size
    message = f"one vocabulary, got {size} tokens in sft and {size + 4} in rl; try stages=.*needs no sft"
    with pytest.raises(ValueError, match=message):
        require_one_vocabulary(experiment("sft", chat))

"""What a run does before the backend starts, and what it says at its end."""

import json
import shlex
import sys
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from jaxagents.training.build import resolve
from jaxagents.training.composition import compose
from jaxagents.training.launch import Imitation, _imitation_of, farewell, require_one_vocabulary
from jaxagents.training.stages import stage_configs
from jaxagents.types import LanguagePolicy
from tests import ROOT


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


def test_the_next_commands_are_quoted_for_the_shell_and_hydra(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["experiments/train.py"])
    (run_dir := tmp_path / "it's (1), a=b").mkdir()
    line = farewell(run_dir, {"seconds": 1.0, "steps": 1, "evaluation": {}}).splitlines()[-1]
    *_, argument = shlex.split(line)
    (override,) = OverridesParser.create().parse_overrides([argument])
    assert (override.key_or_group, override.value()) == ("path", str(run_dir))


def test_both_parts_of_a_resumed_run_are_told(tmp_path):
    result = {"seconds": 989.0, "steps": 64, "evaluation": {}}
    assert farewell(tmp_path, result, now=250.0).startswith("Done in 16:29 minutes in all, 4:10 of them now, 64 steps.")
    assert farewell(tmp_path, result, now=989.5).startswith("Done in 16:29 minutes, 64 steps.")


def test_who_learned_from_files_hears_the_loss_and_how_to_speak(tmp_path):
    result = {"seconds": 3.0, "steps": 64, "evaluation": {"success": 0.0}}
    given = Imitation(loss=0.53127, world="bandit", from_files=True)
    assert farewell(tmp_path, result, given=given).splitlines()[1:4] == [
        "Last loss: 0.5313.",
        "Last evaluation in the world bandit: success 0.",
        "Next, in Python: from jaxagents.training.load import load_policy; "
        f"print(load_policy('{tmp_path}').speak('Hello!'))",
    ]
    lines = farewell(tmp_path, result, given=given._replace(from_files=False)).splitlines()
    assert lines[1:3] == ["Last loss: 0.5313.", "Last evaluation: success 0."]
    assert "speak" not in "".join(lines)


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (("algorithm=grpo",), None),
        (("algorithm=sft",), Imitation(0.5, "lake", from_files=False)),
        (
            ("algorithm=sft", "collector@warm_start.collector=transcripts", "warm_start.collector.paths=chat.jsonl"),
            Imitation(0.5, "lake", from_files=True),
        ),
    ],
)
def test_what_taught_the_last_stage_is_found_in_its_config(tmp_path, overrides, wanted):
    config = resolve(compose(ROOT / "configs", "world=frozenlake", *overrides))
    name = list(stage_configs(config))[-1]
    policy = LanguagePolicy(**dict.fromkeys(LanguagePolicy._fields))
    stage = SimpleNamespace(name=name, policy=policy, environment=SimpleNamespace(name="lake"))
    rows = [{"step": 1, "update": 1, "train/loss": loss} for loss in (0.9, 0.5)] + [{"step": 2, "eval/success": 0.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert _imitation_of(SimpleNamespace(stages=[stage], config=config), tmp_path) == wanted


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

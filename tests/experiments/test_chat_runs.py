"""A run on rows, tools and a reward of the user's own: trained, evaluated and played by commands."""

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT

pytest.importorskip("transformers", reason="needs the extra hf: chat templates are of transformers")

TIMEOUT = 600.0  # Seconds for one command.
MODULE = '''
def look_up(name: str) -> str:
    """Looks somebody up.

    Args:
        name: of the person.
    """
    return f"{name} lives in Bern."


def score(prompts, completions, town, **columns):
    assert len(prompts) == len(completions) == len(town) and all(one[-1]["content"] is not None for one in completions)
    return [0.25 + (one[-1]["content"] == right) for one, right in zip(completions, town)]


def fail(prompts, completions, **columns):
    raise KeyError("town")
'''
SETTINGS = (
    *("world=chat", "algorithm=grpo", "quick=true", "environment.path=rows.jsonl", "devices.compilation_cache=null"),
    "environment.tools=[{_target_: my_tools.look_up, _partial_: true}]",
    *("logging.tensorboard=false", "logging.curves=false", "logging.report=false", "logging.progress=false"),
)


def reward(name):
    return f"environment.reward={{_target_: my_tools.{name}, _partial_: true}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with rows and a module of the user's."""
    path = tmp_path_factory.mktemp("own")
    (path / "my_tools.py").write_text(MODULE)
    rows = [{"prompt": f"Where does {name} live?", "town": "Bern"} for name in ("Ada", "Bo", "Cy", "Di")]
    (path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def call(folder, script, *arguments):
    command = [sys.executable, str(ROOT / "experiments" / script), *arguments]
    return subprocess.run(
        command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


@pytest.mark.slow
def test_a_run_is_trained_evaluated_and_played(folder):
    trained = call(folder, "train.py", *SETTINGS, reward("score"), "run_dir=runs/x")
    assert trained.returncode == 0, trained.stderr[-3000:]
    assert json.loads(trained.stdout.splitlines()[-1])["evaluation"]["episode_return"] == 0.25
    assert "Where does" in (folder / "runs/x/transcripts.html").read_text()
    evaluated = call(folder, "evaluate.py", "path=runs/x", "num_episodes=2", "trust=[my_tools]")
    assert evaluated.returncode == 0, evaluated.stderr[-3000:]
    assert json.loads(evaluated.stdout.splitlines()[-1])["metrics"]["episode_return"]["mean"] == 0.25
    played = call(folder, "play.py", "path=runs/x", "trust=[my_tools]", "jsonl=played.jsonl")
    assert played.returncode == 0 and "Where does" in played.stdout, played.stderr[-3000:]


PAIR = {"prompt": "Where does Ada live?", "chosen": "Bern", "rejected": "Rome"}
LABEL = {"prompt": [{"role": "user", "content": "Where does Bo live?"}], "completion": "Bern", "label": True}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("algorithm", "collector"), [("dpo", "preferences"), ("kto", "labels")])
def test_a_chat_model_learns_from_preferences(folder, algorithm, collector):
    lines = [PAIR] if collector == "preferences" else [LABEL, LABEL | {"completion": "Rome", "label": False}]
    (folder / f"{collector}.jsonl").write_text("\n".join(map(json.dumps, 4 * lines)))
    learned_from = (f"algorithm={algorithm}", f"collector={collector}", f"collector.paths=[{collector}.jsonl]")
    settings = [one for one in SETTINGS if not one.startswith(("algorithm", "environment.tools"))]
    trained = call(folder, "train.py", *settings, *learned_from, reward("score"), f"run_dir=runs/{algorithm}")
    assert trained.returncode == 0, trained.stderr[-3000:]
    lines = (folder / f"runs/{algorithm}/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["train/loss"] > 0.0


@pytest.mark.exhaustive
def test_a_reward_model_of_pairs_pays_a_policy(folder):
    (folder / "pairs.jsonl").write_text("\n".join([json.dumps(PAIR)] * 4))
    judge = ("learner=reward_model", "collector=preferences", "collector.paths=[pairs.jsonl]")
    judge += ("model.network.value_head=true", "run_dir=runs/judge")
    paid = "+learner.rewards.model={_target_: jaxagents.training.load.load_reward, path: runs/judge, "
    paid = (paid + "scale: 1.0, world_scale: 0.0}", "run_dir=runs/paid", "trust=[my_tools]")
    for arguments in (judge, paid):
        trained = call(folder, "train.py", *SETTINGS, reward("score"), *arguments)
        assert trained.returncode == 0, trained.stderr[-3000:]
    (first, *_) = (folder / "runs/judge/metrics.jsonl").read_text().splitlines()
    assert 0.0 <= json.loads(first)["train/accuracy"] <= 1.0


@pytest.mark.exhaustive
def test_a_reward_that_fails_is_told_in_a_line(folder):
    failed = call(folder, "train.py", *SETTINGS, reward("fail"), "run_dir=runs/fails")
    assert failed.returncode != 0 and "Traceback" not in failed.stderr
    assert "`environment.reward` must return rewards, got KeyError: 'town'" in failed.stderr, failed.stderr[-3000:]

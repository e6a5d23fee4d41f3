"""Mistakes of a user, as the mains say them, and sweeps in which some jobs fail."""

import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest

from tests import ROOT

TINY = (
    *("experiment=ppo_cartpole", "environment=tmaze", "environment.corridor_length=2", "collector.num_steps=8"),
    *("policy.encoder.hidden_sizes=[8]", "quick=true", "devices.compilation_cache=null", "logging.tensorboard=false"),
    *("logging.curves=false", "logging.report=false", "logging.progress=false"),
)


REWARDED = ("world=bandit", "algorithm=grpo", "stages=[]", "quick=true", "collector=rewarded")


@pytest.fixture
def fails(monkeypatch, capsys, tmp_path):
    """Returns `(script, arguments) -> line`: runs a main, which must end with exit code 2 and one line on stderr."""

    def run(script, arguments):
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(ROOT / "experiments" / script), *arguments])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(ROOT / "experiments" / script), run_name="__main__")
        errors = capsys.readouterr().err
        assert stop.value.code == 2, errors
        assert len(errors.splitlines()) == 1, errors
        assert "HYDRA_FULL_ERROR" not in os.environ
        return errors

    return run


@pytest.mark.parametrize(
    ("script", "arguments", "line"),
    [
        (
            "train.py",
            ["experiment=ppo_cartpol"],
            "Error: `experiment` must be a file of configs/experiment, got 'ppo_c",
        ),
        ("train.py", ["experiment=ppo_cartpol"], "'ppo_cartpol'; try ppo_cartpole or "),
        (
            "train.py",
            ["resume=nowhere"],
            "`resume` must be the directory of a run of experiments/train.py, got nowhere",
        ),
        (
            "train.py",
            ["experiment=ppo_cartpole", "learner.discuont=0.9"],
            "`learner` has no key 'discuont'; try discount",
        ),
        ("train.py", ["sed=3"], "The config has no key 'sed'; try seed"),
        ("train.py", ["seed=-1"], "`seed` must be a whole number from 0 to 4294967295, got -1."),
        ("train.py", ["seed=[1"], "must be written as key=value, with lists as [1,2], got 'seed=[1'."),
        (
            "train.py",
            ["world=frozenlake", "algorithm=sft", "collector@warm_start.collector=transcripts"],
            "`warm_start.collector.paths` must be given, got nothing; try warm_start.collector.paths=...",
        ),
        ("train.py", ["experiment=zzz"], "; try a2c_cartpole or accel_gridworld or "),
        (
            "train.py",
            ["world=cartpole", "algorithm=plr"],
            "`world` must be one with levels for algorithm=plr, got cartpole; plr fits gridworld.",
        ),
        (
            "train.py",
            ["world=cartpole", "algorithm=ppo", "+method=dicode"],
            "`world` must be one with levels for algorithm=dicode, got cartpole; dicode fits quest_levels.",
        ),
        ("train.py", ["world=cartpole", "run_dir=/dev/null/x"], "Error: Not a directory: /dev/null/x"),
        (
            "train.py",
            ["world=cartpole", "collector.num_envs=2.5"],
            "`collector.num_envs` must be a whole number, got 2.5.",
        ),
        (
            "train.py",
            ["world=cartpole", "policy.encoder.hidden_sizes=abc"],
            "`policy.encoder.hidden_sizes` must be a list of whole numbers, got abc; try policy.encoder.",
        ),
        (
            "train.py",
            ["world=pendulum", "algorithm=dqn"],
            "`action_space` must be Discrete, got Box(",
        ),
        ("train.py", ["world=pendulum", "algorithm=dqn"], "; try algorithm=sac, td3, or ppo."),
        (
            "train.py",
            ["world=cartpole", "learner.num_minibatches=7"],
            "`num_minibatches` must divide the 128 sequences of an environment or the 4 environments",
        ),
        (
            "train.py",
            ["world=cartpole", "+learner.discuont=0.9"],
            "Error: `learner` must have keys that jaxagents.learners.ppo.make_agent takes, got discuont, which ",
        ),
        (
            "train.py",
            ["world=cartpole", "run_dir=gs://bucket/run"],
            "`run_dir` must be a path, got gs://bucket/run; try mount",
        ),
        ("train.py", ["--lis"], "The command has no option '--lis'; try --list."),
        ("train.py", ["--seed", "3"], "The command has no option '--seed'; settings have no dashes, as in seed=..."),
        ("evaluate.py", ["--hepl"], "The command has no option '--hepl'; try --help"),
        ("train.py", ["--cfg"], "got '--cfg': argument --cfg/-c: expected one argument."),
        (
            "train.py",
            ["world=cartpole", "-m", "seed=0,1"],
            "Options must stand before all settings or after them, got 'world=cartpole -m seed=0,1'.",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "model=huggingface"],
            "Error: `model.path` must be given, got nothing; try model.path=DIR",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "model=huggingface", "model.path=."],
            "`source` must hold tokenizer.json, got none in .; copy it from where the checkpoint is",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "model=huggingface", "model.path=/nowhere"],
            "`model.path`, or `tokenizer.source`, must be the folder of a checkpoint, got /nowhere; there is no such",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "learner.clip_epsilon=0.1"],
            "Error: `learner` has no key 'clip_epsilon'; try loss.clip_epsilon.",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "collector.reward={_target_: mine.score}"],
            "Error: `collector` has no key 'reward'; try collector=rewarded 'collector.reward={_target_: my_rewards.",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "learner.num_generations=4"],
            "Error: `learner` has no key 'num_generations'; try collector.group_size.",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "+learner.rewards.mine={_target_: reward_of_a_user.score}"],
            "`learner.rewards.mine` must be a function of (view, *, axis_name), which reads arrays, got "
            "reward_of_a_user.score(completions, **kwargs); try collector=rewarded 'collector.reward={_target_: "
            "reward_of_a_user.score, _partial_: true}'.",
        ),
        (
            "train.py",
            [*REWARDED, "collector.reward={_target_: reward_of_a_user.scor, _partial_: true}"],
            "Error: `collector.reward._target_` must be in the module reward_of_a_user, got 'reward_of_a_user.scor'; "
            "try score.",
        ),
        (
            "train.py",
            [*REWARDED, "collector.reward={_target_: reward_of_a_user.score}"],
            "score() missing 1 required positional argument: 'completions'; try `_partial_: true` beside its",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=grpo", "stages=[]", "quick=true", "learner.num_minibatches=7"],
            "`num_minibatches` must divide the 16 environments or episodes of a device, got 7; try 4 or 8.",
        ),
        ("export.py", ["path=runs"], "`folder` must be given, got nothing; try folder=..."),
        ("export.py", ["path=nowhere", "folder=out"], "`path` must be a run directory, with a config.yaml in it, got"),
        ("report.py", ["paht=x"], "The config has no key 'paht'; try page"),
        ("train.py", ["seeds=0", "experiment=ppo_cartpole"], "`seeds` must be a positive number, got 0."),
        (
            "train.py",
            ["world=bandit", "algorithm=sft", "collector=transcripts"],
            "`collector=transcripts` must be used by a stage, got warm_start with a collector of its own; "
            "try collector@warm_start.collector=transcripts, or stages=[].",
        ),
        (
            "train.py",
            ["world=bandit", "algorithm=sft", "optimizer.learning_rate=1"],
            "got warm_start, which does not refer to optimizer; try warm_start.learner.optimizer.learning_rate=1.",
        ),
        ("compare.py", [], "`paths` must name runs, or folders that hold some, got none; try paths=runs."),
        ("compare.py", ["paths=."], "`paths` must hold runs, directories with config.yaml and metrics.jsonl, got ."),
        ("train.py", ["world=cartpole", "quick=true", "training.total_steps=lots"], "a whole number, got lots"),
        (
            "train.py",
            ["environment=pendulum", "policy=tanh_normal"],
            "`policy` must have a critic for PPO, got a Policy",
        ),
        (
            "train.py",
            ["world=pendulum", "learner=sac", "policy=tanh_normal"],
            "`value` must be chosen for this learner",
        ),
        (
            "train.py",
            ["world=cartpole", "optimizer.learning_rate=-1"],
            "`learning_rate` must be a number and not below 0",
        ),
        (
            "train.py",
            ["world=cartpole", "optimizer.learning_rate=[1e-3,1e-4]"],
            "`optimizer.learning_rate` must be a number, got [0.001,0.0001]; try -m optimizer.learning_rate=0.001,0.",
        ),
        (
            "train.py",
            ["world=cartpole", "+environment.gravity=3"],
            "constructor of CartPole-v1 takes, got gravity; try +environment.params.gravity=...",
        ),
        (
            "train.py",
            ["world=cartpole", "learner.clip_epsilon=abc"],
            "`learner.clip_epsilon` must be a number, got abc.",
        ),
        ("evaluate.py", ["path=nowhere"], "`path` must be a run directory, with a config.yaml in it, got nowhere"),
        ("play.py", ["path=nowhere"], "`path` must be a run directory, with a config.yaml in it, got nowhere"),
        ("reproduce.py", ["paper=gigppo"], "`paper` must be a file of experiments/papers, got 'gigppo'; try gigpo"),
        ("reproduce.py", ["study=lke"], "`study` must be a file of experiments/studies, got 'lke'; try lake"),
        (
            "reproduce.py",
            [],
            "`paper` must be ids, <family>/* or all, or `study` a file of experiments/studies, got neither.",
        ),
        (
            "reproduce.py",
            ["paper=gigpo", "seeds=5"],
            "`seeds` must be a range such as 10-17, or a list such as [10], got",
        ),
        (
            "reproduce.py",
            ["paper=gigpo", "seeds=5-7"],
            "search seeds, from 100 on, got 5, which would count in no verdict",
        ),
        (
            "reproduce.py",
            ["study=didactic_bandit", "quick=true", "seeds=[3]"],
            "must be search seeds, from 100 on, got 3",
        ),
        (
            "reproduce.py",
            ["paper=gigpo", "arms=[gigpoo]"],
            "`arms` must be of the paper gigpo, got 'gigpoo'; try gigpo",
        ),
        ("reproduce.py", ["paper=gigpo", "worker_s=2"], "The config has no key 'worker_s'; try worker"),
        ("benchmark.py", ["suite=nothing"], "`suite` must be"),
        ("train.py", ["run_dir="], "`run_dir` must have a value, got nothing; try run_dir=null for none"),
        ("train.py", ["world=cartpole", "world=pendulum"], "`world` must have one option, got cartpole and pendulum"),
        ("reproduce.py", ["paper=gigpo", "workers=abc"], "`workers` must be a positive number, got 'abc'."),
        ("reproduce.py", ["paper=gigpo", "workers=-1"], "`workers` must be a positive number, got -1."),
        ("reproduce.py", ["paper=gigpo", "workers=0"], "`workers` must be a positive number, got 0."),
        (
            "benchmark.py",
            ["suite=algorithms", "algorithms.workers=0"],
            "`algorithms.workers` must be a positive number, got 0.",
        ),
        ("evaluate.py", ["path=nowhere", "num_episodes=nan"], "`num_episodes` must be a whole number, got nan."),
        ("play.py", ["path=nowhere", "max_steps=-1"], "`max_steps` must be a positive number, got -1."),
        ("report.py", ["results_folder=nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line(fails, script, arguments, line, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reward_of_a_user.py").write_text("def score(completions, **kwargs): return [0.0]\n")
    assert line in fails(script, arguments)


def test_a_suite_that_is_not_installed_is_named_with_its_extra(fails, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.delitem(sys.modules, "gymnax.registration", raising=False)
    line = fails("train.py", ["world=cartpole", "algorithm=ppo", "quick=true"])
    assert line == "Error: `gymnax` must be installed for this environment; run `pip install 'jaxagents[gymnax]'`.\n"


def test_options_name_modules_of_the_folder_where_the_command_is_given(fails, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "module_of_a_user.py").write_text("def make(size):\n    raise ValueError(f'size is {size}')\n")
    folder = tmp_path / "own" / "environment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("_target_: module_of_a_user.make\nsize: 3\n")
    assert fails("train.py", ["--config-dir=own", "environment=mine", "environment.size=4"]) == "Error: size is 4\n"


def test_a_world_of_a_user_with_another_shape_is_named(fails, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])
    lines = (
        "import dataclasses",
        "from jaxagents.environments.tmaze import make_environment",
        "from jaxagents.types import Box",
        "def make(): return dataclasses.replace(make_environment(2), observation_space=Box((5,)))",
    )
    (tmp_path / "world_of_a_user.py").write_text("\n".join(lines))
    (tmp_path / "own" / "environment").mkdir(parents=True)
    (tmp_path / "own" / "environment" / "mine.yaml").write_text("_target_: world_of_a_user.make\n")
    line = fails("train.py", ["--config-dir=own", "environment=mine", "algorithm=ppo", "quick=true"])
    assert line.startswith("Error: `observation` of `reset` must be float32 [5], got float32 [4]; mend")


LLAMA = {"model_type": "llama", "vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA |= {"intermediate_size": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "hidden_act": "silu"}
CHECKPOINT = ("world=bandit", "algorithm=grpo", "stages=[]", "quick=true", "model=huggingface", "tokenizer=word")
SHARDS = ("experiment=ppo_cartpole", "devices=fsdp", "optimizer.flatten=false", "collector.num_envs=64")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([*CHECKPOINT, "model.path=mamba"], "`model_type` must be one of gpt2, llama, "),
        (
            [*CHECKPOINT, "model.path=small"],
            "got 'word_level' of 36 tokens for small with 31, whose rows",
        ),
        ([*SHARDS, "devices.mesh={fsdp: 3}"], "`devices.mesh` must be of the devices there are, got "),
        ([*SHARDS, "devices.mesh={fsdp: 2}", "devices.rules={gate: fsdp}"], "must find a parameter each, got 'gate'"),
        (
            [*SHARDS, "devices.mesh={fsdp: 2}", "devices.rules={kernel$: fsdp, Dense_0: fsdp}"],
            "every parameter once, got ",
        ),
        (
            [*CHECKPOINT[:-1], "learner=chat", "model.path=shape"],
            "Error: `source` must be a folder with a tokenizer, got shape, which cannot be loaded: ",
        ),
        (
            [*CHECKPOINT[:-1], "tokenizer=huggingface", "model.path=shape"],
            "Error: `source` must be a folder with a tokenizer, got shape, which cannot be loaded: ",
        ),
        (
            ["world=cartpole", "devices=asynchronous", "devices.actors=8"],
            "must leave one of the devices of one process",
        ),
        (["world=cartpole", "devices=asynchronous", "seeds=2"], "`seeds` must be 1 with `devices.actors`, got 2"),
        (["world=gymnasium", "algorithm=impala", "collector=actors"], "`pip install 'jaxagents[ray]'`"),
        (
            ["world=bandit", "algorithm=grpo", "collector.min_p=2"],
            "`min_p` must be from 0.0 to 1.0",
        ),
    ],
)
def test_checkpoints_meshes_and_actors_that_do_not_fit(fails, tmp_path, monkeypatch, arguments, line):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name, changes in {"mamba": {"model_type": "mamba"}, "small": {}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(LLAMA | changes))
    shutil.copytree(tmp_path / "small", tmp_path / "shape")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "shape" / name).write_text('{"version": "1.0"}')
    assert line in fails("train.py", [*arguments, "devices.compilation_cache=null"])


@pytest.mark.exhaustive
def test_the_traceback_is_there_when_asked_for(tmp_path):
    result = subprocess.run(
        [sys.executable, str(ROOT / "experiments/train.py"), "seed=-1"],
        cwd=tmp_path,
        env={**os.environ, "HYDRA_FULL_ERROR": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and "Traceback (most recent call last)" in result.stderr


@pytest.mark.slow
def test_a_job_that_fails_does_not_stop_the_sweep(call_main, tmp_path):
    result = call_main("train.py", "-m", *TINY, "seed=0,-1,1", f"hydra.sweep.dir={tmp_path}/a sweep")
    assert result.returncode == 1, result.stderr
    assert "`seed` must be a whole number from 0 to 4294967295, got -1." in result.stderr
    assert "2 of 3 jobs of the sweep are done." in result.stderr and "Traceback" not in result.stderr
    jobs = json.loads(result.stdout.splitlines()[-1])["sweep"]
    assert [job["exit_code"] for job in jobs] == [0, 2, 0]
    assert [job["result"]["seed"] for job in jobs if job["result"]] == [0, 1]
    assert all(job["result"]["run_dir"] == job["folder"] for job in jobs if job["result"])
    assert [job["folder"].rpartition("/")[2] for job in jobs] == ["0_seed=0", "1_seed=-1", "2_seed=1"]
    (advice,) = [line for line in result.stderr.splitlines() if line.startswith("Next: python experiments/compare.py ")]
    _, _, arguments = advice.partition("compare.py ")
    compared = call_main("compare.py", *shlex.split(arguments))
    assert compared.returncode == 0 and (tmp_path / "a sweep" / "comparison.png").is_file(), compared.stderr
    evaluated = call_main("evaluate.py", f"path={jobs[2]['folder']}", "quick=true")
    assert evaluated.returncode == 0, evaluated.stderr

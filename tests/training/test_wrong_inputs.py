"""Settings of the wrong type, size or name: each is refused in one line, before anything is built."""

import json

import pytest

from jaxagents.training.arguments import require_one_choice, require_values
from jaxagents.training.build import build, checked_stages, resolve
from jaxagents.training.composition import compose, resume_arguments
from jaxagents.training.explicit import honour_overrides, leave_out_unknown
from jaxagents.training.memory import require_stage_in_memory
from jaxagents.training.trust import require_trusted, trust_argument, trusting
from jaxagents.training.yaml_files import require_yaml
from tests import CONFIGS

PPO = ("world=cartpole", "algorithm=ppo")
GRPO = ("world=bandit", "algorithm=grpo", "stages=[]")


def check(*overrides):
    """Composes and checks as `experiments/train.py` does; nothing is built."""
    config = compose(CONFIGS, *overrides)
    leave_out_unknown(config, overrides)
    honour_overrides(config, overrides)
    checked_stages(resolve(config))


@pytest.mark.parametrize(
    ("base", "override", "message"),
    [
        (PPO, "learner.discount=null", "`learner.discount` must be a number, got null."),
        (PPO, "learner.discount=[0.9]", "`learner.discount` must be a number, got [0.9]; try -m learner.discount=0.9"),
        (PPO, "learner.discount=nan", "`learner.discount` must be a number, got nan."),
        (PPO, "learner.clip_epsilon=null", "`learner.clip_epsilon` must be a number, got null."),
        (PPO, "learner.clip_epsilon=abc", "`learner.clip_epsilon` must be a number, got abc."),
        (PPO, "learner.clip_epsilon={a: 1}", "`learner.clip_epsilon` must be a number, got {a: 1}."),
        (PPO, "learner.num_epochs=null", "`learner.num_epochs` must be a whole number, got null."),
        (PPO, "learner.normalize_advantages=maybe", "must be true or false, got maybe."),
        (PPO, "learner.normalize_advantages=null", "must be true or false, got null."),
        (PPO, "collector.num_envs=null", "`collector.num_envs` must be a whole number, got null."),
        (PPO, "collector.num_envs=[4,8]", "got [4,8]; try -m collector.num_envs=4,8 for a run each."),
        (PPO, "collector.num_envs=2.5", "`collector.num_envs` must be a whole number, got 2.5."),
        (PPO, "collector.num_steps={a: 1}", "`collector.num_steps` must be a whole number, got {a: 1}."),
        (PPO, "optimizer.learning_rate={a: 1}", "`optimizer.learning_rate` must be a number, got {a: 1}."),
        (PPO, "optimizer.learning_rate=null", "`optimizer.learning_rate` must be a number, got null."),
        (PPO, "policy.encoder.hidden_sizes=abc", "must be a list of whole numbers, got abc; try policy.encoder.hidden"),
        (PPO, "policy.encoder.hidden_sizes=[0]", "`policy.encoder.hidden_sizes` must be at least 1, got [0]."),
        (PPO, "policy.encoder.hidden_sizes=[1.5]", "must be a list of whole numbers, got [1.5]."),
        (PPO, "policy.encoder.hidden_sizes=[64,[64]]", "must be a list of whole numbers, got [64,[64]]; try"),
        (PPO, "policy.encoder.hidden_sizes=null", "must be a list of whole numbers, got null"),
        (PPO, "policy.encoder=3", "`policy.encoder` must be {_target_: module.function, ...}, got 3."),
        (PPO, "policy.encoder=null", "`policy.encoder` must be {_target_: module.function, ...}, got null."),
        (
            PPO,
            "+learner.discuont=0.9",
            "takes, got discuont, which the experiment may set for another option; try ",
        ),
        (PPO, "seeds=[0,1]", "`seeds` must be a whole number, got [0,1]; try -m seeds=0,1 for a run each."),
        (PPO, "seeds=null", "`seeds` must be a whole number, got null."),
        (PPO, "seed=abc", "`seed` must be a whole number, got abc."),
        (PPO, "stages=[1,2]", "`stages` must be a list of {name: ..., and what is changed}, got [1, 2]"),
        (PPO, "stages=3", "`stages` must be a list of {name: ..., and what is changed}, got 3"),
        (PPO, "stages=[{name: ../../../escaped}]", "`stages` must have names of letters, digits and ._-, got '../.."),
        (PPO, "quick=maybe", "`quick` must be true or false, got maybe."),
        (PPO, "training.total_steps=null", "`training.total_steps` must be a whole number, got null."),
        (PPO, "training.log_every_steps=nan", "`training.log_every_steps` must be a whole number, got nan."),
        (PPO, "training.target_return=abc", "`training.target_return` must be a number or null, got abc."),
        (PPO, "evaluation.num_episodes=null", "`evaluation.num_episodes` must be a whole number, got null."),
        (PPO, "evaluation.greedy=maybe", "`evaluation.greedy` must be true or false, got maybe."),
        (PPO, "evaluation.level=abc", "`evaluation.level` must be a whole number or null, got abc."),
        (PPO, "evaluation.final_episodes=-1", "`evaluation.final_episodes` must be a positive number, got -1."),
        ((*PPO, "quick=true"), "evaluation.final_episodes=-1", "`evaluation.final_episodes` must be a positive number"),
        (PPO, "devices.cpu_threads=abc", "`devices.cpu_threads` must be a whole number or null, got abc."),
        (PPO, "devices.num_devices=abc", "`devices.num_devices` must be a whole number or null, got abc."),
        (PPO, "logging.progress=maybe", "`logging.progress` must be true or false, got maybe."),
        (PPO, "environment._target_=jaxagents.environments.tmaze", "`environment._target_` must name a function, got"),
        (PPO, "environment._target_=3", "`environment._target_` must be the dotted name of a function, got 3."),
        (PPO, "environment._target_=null", "`environment._target_` must be the dotted name of a function, got null."),
        (PPO, "environment._target_=nowhere.make", "got 'nowhere.make', and no module 'nowhere'."),
        (
            PPO,
            "learner._target_=jaxagents.learners.ppo.make_agnet",
            "got 'jaxagents.learners.ppo.make_agnet'; try mak",
        ),
        (PPO, "environment.name=[1]", "`environment.name` must be a string, got [1]"),
        (PPO, "~learner.clip_epsilon", "`learner.clip_epsilon` must have a value, got none"),
        (GRPO, "collector.group_size=null", "`collector.group_size` must be a whole number, got null."),
        (GRPO, "collector.temperature=nan", "`collector.temperature` must be a number or null, got nan."),
        (GRPO, "policy.num_turns=[1]", "`policy.num_turns` must be"),
        (GRPO, "environment.num_arms=hello", "`environment.num_arms` must be a list of whole numbers, got hello;"),
        (GRPO, "loss.clip_epsilon=null", "`loss.clip_epsilon` must be a number, got null."),
        (GRPO, "model.network.features=null", "`model.network.features` must be a whole number, got null."),
        (GRPO, "model.network.num_layers=1e9", "`model.network.num_layers` must be at most 1000, got 1000000000."),
        (GRPO, "learner.rewards=3", "`learner.rewards` must be a mapping of names or null, got 3."),
        ((*GRPO, "collector=rewarded"), "seed=1", "`collector.reward` must be given, got nothing"),
        ((*GRPO, "collector=rewarded"), "collector.reward=3", "`collector.reward` must be {_target_: module.function,"),
        (
            (*GRPO, "collector=rewarded"),
            "collector.reward={_target_: jaxagents, _partial_: true}",
            "`collector.reward._target_` must be the dotted name of a function, got jaxagents.",
        ),
        (
            (*GRPO, "collector=rewarded"),
            "collector.reward={_target_: jaxagents.ops.checks.math, _partial_: true}",
            "must name a function, got 'jaxagents.ops.checks.math', a module.",
        ),
        (
            (*GRPO, "learner=supervised", "collector=transcripts"),
            "collector.paths=3",
            "`collector.paths` must be a string or a list of",
        ),
        (
            (*GRPO, "learner=supervised", "collector=transcripts"),
            "collector.paths=null",
            "`collector.paths` must be a string or a list of",
        ),
        (
            (*GRPO, "learner=supervised", "collector=transcripts"),
            "collector.paths={a: 1}",
            "`collector.paths` must be a string or a list of",
        ),
        (
            (*GRPO, "model=huggingface"),
            "model.path=null",
            "`model.path` must be a string or a path, got null; try model.path=DIR.",
        ),
        (  # `level` among them is null, which Hydra does not take out.
            ("world=pendulum", "algorithm=iql"),
            "+collector.dataset={_target_: jaxagents.data.hdf5.load_hdf5, path: a.hdf5}",
            "take them out: ~collector.dataset '+collector.dataset={_target_: jaxagents.data.hdf5.load_hdf5, ...}'",
        ),
    ],
)
def test_wrong_inputs_are_refused_before_anything_is_built(base, override, message):
    with pytest.raises(ValueError) as error:
        check(*base, override)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_whole_floats_become_integers_where_a_function_takes_these():
    (stage,) = checked_stages(resolve(compose(CONFIGS, *PPO, "collector.num_envs=1e3"))).values()
    assert stage["collector"]["num_envs"] == 1000 and isinstance(stage["collector"]["num_envs"], int)


def test_settings_of_a_stage_begin_with_its_name():
    with pytest.raises(ValueError, match=r"^`warm_start.learner.optimizer.learning_rate` must be a number, got null"):
        check("world=bandit", "algorithm=grpo", "warm_start.learner.optimizer.learning_rate=null")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("collector.num_envs=1e12 quick=true", "The collector must fit into memory, got at least .* TiB for the "),
        ("collector.num_steps=1e12 quick=true", "A batch must fit into memory, got at least .* TiB for the "),
        ("policy.encoder.hidden_sizes=[1000000000]", "The learner must fit into memory, got at least .* GiB for the "),
        ("evaluation.num_episodes=1e12", "An evaluation must fit into memory, got at least .* TiB for the "),
        ("training.total_steps=1e30", "`training.total_steps` must be at most 2147483647 updates of 512 steps, got 1"),
        ("evaluation.level=99", "`level` must be null in CartPole-v1, which has no levels, got 99."),
    ],
)
def test_sizes_beyond_the_machine_are_refused_before_anything_is_traced(override, message):
    with pytest.raises(ValueError, match=message):
        require_stage_in_memory(build(resolve(compose(CONFIGS, *PPO, *override.split()))).stages[0])


def test_levels_that_a_world_does_not_have_are_refused():
    maze = ("world=cartpole", "environment=tmaze", "environment.corridor_length=[2,3]")
    build(resolve(compose(CONFIGS, *maze, "evaluation.level=1")))
    with pytest.raises(ValueError, match="`level` must be from 0 to 1 in t-maze, got 2."):
        build(resolve(compose(CONFIGS, *maze, "evaluation.level=2")))


@pytest.mark.parametrize("argument", ["run_dir=", "resume=", "path=", "+a.b=", "learner.clip_epsilon= "])
def test_arguments_without_a_value_are_refused(argument):
    with pytest.raises(ValueError, match="must have a value, got nothing; try .*=null for none"):
        require_values(["seed=1", argument])
    require_values(["name=''", "a=null", "--config-dir=own", "~learner.a", "path='a=b'"])


def test_two_options_of_a_group_are_refused():
    with pytest.raises(ValueError, match="`world` must have one option, got cartpole and pendulum; leave one"):
        require_one_choice(["world=cartpole", "seed=1", "world=pendulum"], CONFIGS)
    require_one_choice(["world=cartpole", "world=cartpole", "seed=1", "seed=2"], CONFIGS)


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n\tb: 2\n", r"must be YAML, got a mistake in line 2: found character '\\t' .*; try spaces"),
        ("a: 1\nb: {c: 1, c: 2}\n", "must have every key once, got 'c' again in line 2"),
        ("a: !!python/object/apply:os.system ['true']\n", "must be of plain values, got .*os.system in line 1"),
        ("\0" * 8, "must be YAML, got a mistake"),
        (LAUGHS, r"must hold at most 100000 values, got [\d,]+, by anchors within anchors"),
    ],
    ids=["tabs", "doubled", "object", "zeros", "anchors"],
)
def test_yaml_that_cannot_be_read_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        require_yaml(path)
    path.write_text("a: &a {b: 1}\nc: *a\nd: [1, 2]\n")
    require_yaml(path)


HOSTILE = [
    "joblib.load",
    "numpy.load",
    "shutil.copyfile",
    "pathlib.Path.write_text",
    "os.system",
    "builtins.eval",
    "hydra.utils.get_method",
    "jaxagents.training.command.os.system",  # A module that ours imports.
    "jaxagents.language.checkpoints.read.Path",
    "jaxagents.language.checkpoints.write.write_checkpoint",
    "jaxagents.environments.adapters.importing.import_suite",
    "jaxagents.data.files.write_whole",
    "jaxagents.papers.reproduce.run_workers",
    "jaxagents.learners.ppo.jax.numpy.save",
    "${oc.env:TARGET}",
]


@pytest.mark.parametrize("target", HOSTILE)
def test_functions_of_others_are_not_trusted(target):
    config = {"learner": [{"policy": {"_target_": target}}]}
    with pytest.raises(ValueError, match=r"`learner.0.policy._target_` in config.yaml must be of jaxagents, got"):
        require_trusted(config, "config.yaml")
    with trusting(True):
        require_trusted(config, "config.yaml")


def test_modules_are_trusted_by_name_and_no_more_of_them(tmp_path, monkeypatch):
    (tmp_path / "world_of_mine.py").write_text("import os\ndef make(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = {"environment": {"_target_": "world_of_mine.make"}}
    assert trust_argument(own) == " 'trust=[world_of_mine]'" and trust_argument({}) == ""
    with trusting("world_of_mine"):
        require_trusted(own, "config.yaml")
        with pytest.raises(ValueError, match="must be of jaxagents, got world_of_mine.os.system"):
            require_trusted({"environment": {"_target_": "world_of_mine.os.system"}}, "config.yaml")
    with pytest.raises(ValueError, match=r"try 'trust=\[world_of_mine\]', see SECURITY.md"):
        require_trusted(own, "config.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("_target_: os.system\ncommand: echo", "`_target_` in .*own.yaml must be of jaxagents, got os.system"),
        ("# @package hydra\nverbose: true", "must not set up Hydra where a run names its folder"),
    ],
)
def test_a_folder_of_configs_that_a_run_names_calls_no_functions_of_others(text, message, tmp_path):
    run, folder = tmp_path / "run", tmp_path / "mine" / "learner"
    run.mkdir()
    folder.mkdir(parents=True)
    (run / "arguments.yaml").write_text(f"- --config-dir={tmp_path / 'mine'}\n- world=cartpole\n")
    (folder / "own.yaml").write_text("discount: 0.9\n")
    resumed = resume_arguments([f"resume={run}"])
    assert resumed[:2] == [f"--config-dir={tmp_path / 'mine'}", "world=cartpole"]
    (folder / "own.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        resume_arguments([f"resume={run}"])
    for trusted in ("trust=true", f"--config-dir={tmp_path / 'mine'}"):
        assert f"--config-dir={tmp_path / 'mine'}" in resume_arguments([f"resume={run}", trusted])


@pytest.mark.parametrize("value", ["${oc.create:{_target_: os.system}}", "${oc.decode:x}", "a ${b:c} d"])
def test_interpolations_of_which_a_function_may_come_are_refused(value):
    with pytest.raises(ValueError, match="must refer to settings alone"):
        require_trusted({"a": value}, "config.yaml")
    require_trusted({"a": "${learner.policy}", "b": ["${oc.env:HOME}/x"]}, "config.yaml")


def test_a_run_cannot_trust_others_itself():
    teacher = {"_target_": "jaxagents.training.load.load_policy", "path": "x", "trust": True}
    with pytest.raises(ValueError, match="`teacher.trust` in config.yaml must not trust others itself"):
        require_trusted({"teacher": teacher}, "config.yaml")
    require_trusted({"teacher": teacher | {"trust": None}}, "config.yaml")


def test_what_the_configs_name_is_trusted():
    # Functions of methods are called by studies, and stand in no config of a run.
    texts = [text for path in CONFIGS.rglob("*.yaml") if "\nfunction:" not in (text := path.read_text())]
    lines = {line.strip().removeprefix("- ") for text in texts for line in text.splitlines()}
    targets = {line.split()[1].strip("\"'") for line in lines if line.startswith("_target_: ")}
    assert len(targets) > 200
    config = [{"_target_": target} for target in sorted(targets)]
    require_trusted(json.loads(json.dumps(config)), "configs")

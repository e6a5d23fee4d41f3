"""Tests of jaxagents/training/load.py."""

import inspect
import pydoc
import shutil
import warnings
from contextlib import closing
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tmaze
from jaxagents.language.conversation import make_answer
from jaxagents.language.replies import refuse_text
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import as_policy, make_policy
from jaxagents.policies.history import make_history_actor_critic
from jaxagents.training.acting import make_act
from jaxagents.training.build import build, resolve
from jaxagents.training.checkpoints.manager import open_checkpoints
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from jaxagents.training.load import load_policy, load_stage, warn
from jaxagents.types import PolicyInput
from tests import CONFIGS

TINY = (
    "experiment=ppo_cartpole",
    *("environment=tmaze", "environment.corridor_length=2", "policy.encoder.hidden_sizes=[8]", "collector.num_steps=8"),
    *("devices.compilation_cache=null", "logging.progress=false", "logging.tensorboard=false", "logging.curves=false"),
    *("logging.report=false", "training.total_steps=128", "training.log_every_steps=32"),
    *("training.checkpoint_every_steps=64", "evaluation.every_steps=64", "evaluation.num_episodes=4"),
)


def train(path, *overrides):
    run(compose(CONFIGS, *TINY, *overrides), path)
    return path


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Four updates, checkpoints after the second and the fourth."""
    return train(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def large_run_dir(tmp_path_factory):
    """Two stages of two seeds, trained on two devices."""
    overrides = ("stages=[{name: easy},{name: hard}]", "seeds=2", "devices=pmap", "devices.num_devices=2")
    return train(tmp_path_factory.mktemp("runs") / "large", *overrides, "devices.compilation_cache=null")


@pytest.fixture
def copy(run_dir, tmp_path):
    """A run directory to break."""
    return shutil.copytree(run_dir, tmp_path / "copy")


def flip_byte(folder):
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(bytes(content))


def assert_equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def all_differ(left, right):
    return not any(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right)))


def refuse(message):
    raise AssertionError(message)


def test_the_policy_is_that_of_the_checkpoint(run_dir):
    loaded = load_policy(run_dir, "last", on_fallback=refuse)
    stage = load_stage(run_dir, "last", on_fallback=refuse)
    assert (stage.which, stage.step, stage.num_seeds) == ("last", 4, 0)
    with closing(open_checkpoints(run_dir / "checkpoints/last", read_only=True)) as checkpoints:
        state = checkpoints.restore(stage.stage.runner.abstract).state
    assert_equal(loaded.params, state.learner.params)
    assert loaded.environment.name == "t-maze"
    assert loaded.config["collector"]["num_steps"] == 8


def test_act_is_greedy_or_samples(run_dir):
    loaded = load_policy(run_dir)
    observation = np.eye(4, dtype=np.float32)
    _, distribution = loaded.policy.apply(
        loaded.params, ((), ()), PolicyInput(observation=observation[None], first=jnp.zeros((1, 4), bool))
    )
    greedy, carry = loaded.act(observation)
    np.testing.assert_array_equal(greedy, distribution.mode()[0])
    # One instance is a row of the batch.
    assert [int(loaded.act(row, carry)[0]) for row in observation] == greedy.tolist()
    rows = np.broadcast_to(observation[:1], (2000, 4))
    sampled, _ = loaded.act(rows, key=jax.random.key(0))
    frequency = np.bincount(np.asarray(sampled), minlength=4) / 2000
    # Four standard errors.
    np.testing.assert_allclose(frequency, np.exp(distribution.log_probs()[0, 0]), atol=4 * 0.5 / np.sqrt(2000))
    np.testing.assert_array_equal(loaded.act(rows, key=jax.random.key(0))[0], sampled)


def test_help_tells_the_arguments(run_dir):
    act = load_policy(run_dir).act
    assert list(inspect.signature(act).parameters) == ["observation", "carry", "first", "action_mask", "key", "reward"]
    assert "Chooses the action" in pydoc.render_doc(act) and "partial" not in pydoc.render_doc(act)


def test_act_takes_allowed_actions_only(run_dir):
    loaded = load_policy(run_dir)
    for action in range(4):
        allowed = np.arange(4) == action
        assert int(loaded.act(np.zeros(4), action_mask=allowed)[0]) == action
        assert int(loaded.act(np.zeros(4), action_mask=allowed, key=jax.random.key(action))[0]) == action


def test_text_is_for_reply_and_speak():
    with pytest.raises(
        ValueError, match="must be word ids for `act`, got the text 'hello'; try `reply`, .* or `speak`"
    ):
        refuse_text(make_answer(policy=None, num_words=3))({}, "hello")


@pytest.mark.exhaustive
def test_a_recurrent_policy_acts_as_over_the_whole_sequence():
    environment = tmaze.make_environment(corridor_length=2)
    policy = make_policy(
        environment.observation_space, environment.action_space, encoder=MLP((8,)), memory=GRU(hidden_size=8)
    )
    params = policy.init(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (6, 3, 4))
    first = jnp.zeros((6, 3), bool).at[0].set(True).at[4, 1].set(True)
    last_carry, distribution = policy.apply(
        params, policy.initial_carry((3,)), PolicyInput(observation=observation, first=first)
    )
    act = make_act(policy, environment)
    carry, carry_of_one = None, None
    for step in range(6):
        action, carry = act(params, observation[step], carry, first=first[step] if step else None)
        np.testing.assert_array_equal(action, distribution.mode()[step])
        one, carry_of_one = act(params, observation[step, 0], carry_of_one)
        assert int(one) == int(action[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), carry, last_carry)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], atol=1e-6), carry_of_one, carry)
    # `first` forgets the carry.
    fresh, forgotten = (act(params, observation[0], *rest)[1] for rest in ((), (carry, True)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fresh, forgotten)


def make_history(environment):
    policy = as_policy(
        make_history_actor_critic(
            environment.observation_space, environment.action_space, encoder=MLP((8,)), memory=GRU(hidden_size=8)
        )
    )
    return policy, policy.init(jax.random.key(0))


def test_a_policy_of_history_acts_as_over_the_whole_sequence():
    policy, params = make_history(environment := tmaze.make_environment(corridor_length=2))
    observation, reward = jax.random.normal(jax.random.key(1), (5, 3, 4)), np.arange(15.0).reshape(5, 3)
    first = jnp.zeros((5, 3), bool).at[0].set(True).at[3, 1].set(True)
    act, carry, actions = make_act(policy, environment), None, []
    for step in range(5):
        paid = {"reward": reward[step]} if step else {}
        action, carry = act(params, observation[step], carry, first[step] if step else None, **paid)
        actions.append(action)
    previous = jnp.stack([jnp.zeros(3, jnp.int32), *actions[:-1]])
    inputs = PolicyInput(
        observation=observation, first=first, previous_action=previous, previous_reward=jnp.asarray(reward)
    )
    _, distribution = policy.apply(params, policy.initial_carry((3,)), inputs)
    np.testing.assert_array_equal(jnp.stack(actions), distribution.mode())
    with pytest.raises(ValueError, match="`reward` must be given to a policy that reads what its last action paid"):
        act(params, observation[0], carry)


def with_masks(environment):
    """Returns an environment that begins with a mask; nobody steps it."""

    def reset(key, task):
        state, timestep = environment.reset(key, task)
        return state, timestep.replace(action_mask=jnp.ones(environment.action_space.num_values, bool))

    return replace(environment, reset=reset)


def test_a_world_with_masks_is_not_acted_in_without_one():
    environment = with_masks(tmaze.make_environment(corridor_length=2))
    policy = make_policy(environment.observation_space, environment.action_space, encoder=MLP((8,)))
    act, params, observation = make_act(policy, environment), policy.init(jax.random.key(0)), np.zeros(4)
    with pytest.raises(ValueError, match="`action_mask` must be given in t-maze.*; try act.observation, carry, action"):
        act(params, observation)
    for action in (0, 3):
        assert int(act(params, observation, action_mask=np.arange(4) == action)[0]) == action


@pytest.mark.parametrize("shape", [(3,), (2, 2, 4), ()])
def test_an_observation_of_another_shape_is_refused(run_dir, shape):
    with pytest.raises(ValueError, match=r"`observation` must have the shape \[4\] or \['B', 4\], got \["):
        load_policy(run_dir).act(np.zeros(shape))


def test_a_step_is_one_of_the_last(run_dir):
    assert load_stage(run_dir, step=2, on_fallback=refuse).step == 2
    earlier, later = (load_policy(run_dir, step=step).params for step in (2, 4))
    assert all_differ(earlier, later)
    with pytest.raises(ValueError, match=r"`step` must be a checkpoint in .*, got 3; try one of \[2, 4\]"):
        load_policy(run_dir, step=3)


def test_without_the_best_checkpoint_the_last_one_is_used(copy):
    shutil.rmtree(copy / "checkpoints/best")
    heard = []
    loaded = load_stage(copy, on_fallback=heard.append)
    assert (loaded.which, loaded.step) == ("last", 4)
    assert heard == [f"The last checkpoint is used, not the best one: {copy / 'checkpoints/best'} holds none."]


def test_a_damaged_checkpoint_is_not_used(copy, run_dir):
    (best,) = (path for path in (copy / "checkpoints/best").iterdir() if path.is_dir())
    flip_byte(best / "acting")
    flip_byte(copy / "checkpoints/last/4/acting")
    heard = []
    loaded = load_stage(copy, on_fallback=heard.append)
    assert (loaded.which, loaded.step) == ("last", 2)
    assert any("The last checkpoint is used, not the best one: `checkpoint` must be whole" in line for line in heard)
    assert_equal(loaded.params, load_stage(run_dir, step=2).params)
    flip_byte(copy / "checkpoints/last/2/acting")
    with pytest.raises(ValueError, match="`checkpoint` must be whole"):
        load_stage(copy, on_fallback=heard.append)


def test_moments_and_buffers_are_not_read_to_act(copy, run_dir):
    """They are gone, so that whoever looked for a byte of them would fail."""
    others = list(copy.glob("checkpoints/*/*/state"))
    assert len(others) == 3
    for folder in others:
        shutil.rmtree(folder)
    for which in ("best", "last"):
        loaded, whole = (load_policy(path, which, on_fallback=refuse) for path in (copy, run_dir))
        assert_equal(loaded.params, whole.params)
        assert int(loaded.act(np.eye(4)[0])[0]) == int(whole.act(np.eye(4)[0])[0])
    with pytest.raises(ValueError, match="`checkpoint` must be whole"):
        run(compose(CONFIGS, *TINY), copy)


def test_what_acts_is_small_beside_a_replay_buffer():
    config = resolve(compose(CONFIGS, "world=cartpole", "algorithm=dqn", "quick=true"))
    runner = build(config).stages[0].runner
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(runner.abstract)}
    networks = {name for name in runner.acting if "network" in name}
    assert networks and networks < runner.acting < set(leaves)
    # Epsilon follows from what the state knows of the schedule and of the updates so far.
    assert all(leaves[name].size == 1 for name in runner.acting - networks)
    assert not any(part in name for name in runner.acting for part in ("target", "opt_state", "buffer"))
    assert 100 * sum(leaves[name].size for name in runner.acting) < sum(leaf.size for leaf in leaves.values())


def test_a_run_without_checkpoints_is_refused(copy):
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ValueError, match="`path` must hold a checkpoint, got .* try again when .* 64 steps"):
        load_policy(copy, on_fallback=refuse)


def test_a_changed_config_is_refused(copy):
    text = (copy / "config.yaml").read_text()
    assert "right_reward: 1.0" in text
    (copy / "config.yaml").write_text(text.replace("right_reward: 1.0", "right_reward: 2.0"))
    with pytest.raises(ValueError, match="`path` must hold the config that its checkpoints were made with"):
        load_policy(copy)


def test_what_is_no_run_directory_is_refused_with_the_newest_one(run_dir, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=f"`path` must be a run directory, .*; try {run_dir}"):
        load_policy(run_dir.parent)
    with pytest.raises(ValueError, match="try the `run_dir` that training printed"):
        load_policy(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/a/b").mkdir(parents=True)
    (tmp_path / "runs/a/b/config.yaml").touch()
    with pytest.raises(ValueError, match="got nothing; try runs/a/b"):
        load_policy(None)
    (tmp_path / "runs/a/b/.hydra").mkdir()
    (tmp_path / "runs/a/b/.hydra/config.yaml").touch()  # Of the composition, and newer.
    with pytest.raises(ValueError, match=r"got runs/a; try runs/a/b\.$"):
        load_policy("runs/a")


def test_names_and_numbers_out_of_range_are_refused(run_dir):
    with pytest.raises(ValueError, match="`which` must be best or last, got 'newest'"):
        load_policy(run_dir, "newest")
    with pytest.raises(ValueError, match="`seed_index` must be below the 1 seeds of the run, got 1"):
        load_policy(run_dir, seed_index=1)


@pytest.mark.exhaustive
def test_one_of_several_seeds_acts_on_one_device(large_run_dir):
    stage = load_stage(large_run_dir, "last", on_fallback=refuse)
    assert stage.num_seeds == 2
    loaded = [load_policy(large_run_dir, "last", seed_index=index) for index in range(2)]
    for index, policy in enumerate(loaded):
        assert_equal(policy.params, jax.tree.map(lambda leaf, index=index: leaf[index], stage.params))
        assert {len(leaf.devices()) for leaf in jax.tree.leaves(policy.params)} == {1}
        assert 0 <= int(policy.act(np.zeros(4))[0]) < 4
    kernels = [[leaf for leaf in jax.tree.leaves(policy.params) if leaf.ndim == 2] for policy in loaded]
    assert all_differ(*kernels)
    with pytest.raises(ValueError, match="`seed_index` must be below the 2 seeds of the run, got 2"):
        load_policy(large_run_dir, seed_index=2)


@pytest.mark.slow
def test_the_stage_that_a_run_stands_in_is_loaded_and_said(large_run_dir, tmp_path):
    assert load_stage(large_run_dir, on_fallback=refuse).stage.name == "hard"
    assert load_stage(large_run_dir, stage="easy", on_fallback=refuse).stage.name == "easy"
    with pytest.raises(ValueError, match="`stage` must be one of the run, got 'eazy'; try easy or hard"):
        load_stage(large_run_dir, stage="eazy")
    messages = []
    copy = shutil.copytree(large_run_dir, tmp_path / "copy")
    # As killed in the second stage after its first checkpoint.
    shutil.rmtree(copy / "checkpoints/hard/last/4")
    (copy / "checkpoints/hard/last/4.digest.json").unlink()
    assert load_stage(copy, "last", on_fallback=messages.append).stage.name == "hard"
    assert messages.pop() == "This is the stage hard, of which 2 of 4 updates are saved." and not messages
    shutil.rmtree(copy / "checkpoints/hard")
    assert load_stage(copy, "last", on_fallback=messages.append).stage.name == "easy"
    assert messages.pop() == "This is the stage easy: hard saved nothing yet." and not messages
    # The first one is loaded even if it is not finished.
    shutil.rmtree(copy / "checkpoints/easy/last/4")
    (copy / "checkpoints/easy/last/4.digest.json").unlink()
    loaded = load_stage(copy, "last", on_fallback=messages.append)
    assert (loaded.stage.name, loaded.step) == ("easy", 2)
    assert messages == ["This is the stage easy, of which 2 of 4 updates are saved."]


def test_a_warning_is_one_line_without_source():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn("The last checkpoint is used.")
    line = warnings.formatwarning(caught[0].message, UserWarning, caught[0].filename, caught[0].lineno, caught[0].line)
    assert line == "load_policy:1: UserWarning: The last checkpoint is used.\n"


def test_loading_writes_nothing(run_dir):
    files = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    load_policy(run_dir)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == files

"""Tests of evaluating, loading and playing the run of a language policy."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxagents.data.trajectories import read_trajectories
from jaxagents.language import tokenizers
from jaxagents.play.interactive import play_text
from jaxagents.reporting.reports import write_report
from jaxagents.reporting.transcript_html import TRANSCRIPTS_FILE
from jaxagents.reporting.transcripts import to_trajectories
from jaxagents.training.baselines import measure_baselines
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.crediting import make_credit, make_group_player, with_advantages
from jaxagents.training.evaluate import evaluate_run
from jaxagents.training.launch import run
from jaxagents.training.load import load_policy, load_stage
from jaxagents.training.run_directory import load_config
from jaxagents.training.transcripts import show_transcripts
from tests import CONFIGS

KEY = jax.random.key(7)
OFF = "devices.compilation_cache=null"


@pytest.fixture(scope="module")
def loaded(language_run_dir):
    return load_policy(language_run_dir)


@pytest.fixture(scope="module")
def played(loaded):
    return jax.device_get(loaded.play(KEY, 4))


@pytest.mark.slow
def test_a_run_is_evaluated_as_it_evaluates_itself(language_run_dir):
    result = evaluate_run(language_run_dir, num_episodes=8)
    assert (result["stage"], result["environment"], result["held_out"]) == ("warm_start", "frozenlake", True)
    metrics = result["metrics"]
    assert set(metrics) == {"episode_return", "episode_length", "success", "invalid_action_rate"}
    # The policy does not play longer than its layout allows, and it has learned to speak.
    assert 1.0 <= metrics["episode_length"]["mean"] <= 3.0
    assert metrics["invalid_action_rate"]["mean"] < 0.5


@pytest.mark.slow
def test_settings_of_the_evaluator_are_those_of_the_command(call_main, language_run_dir):
    options = ("num_episodes=4", "greedy=false", "+evaluation.evaluator.num_samples=4", OFF)
    result = call_main("evaluate.py", f"path={language_run_dir}", *options, "+evaluation.evaluator.pass_at=[1,4]")
    assert result.returncode == 0, result.stderr
    metrics = json.loads(result.stdout.splitlines()[-1])["metrics"]
    # Of four samples: without them, a success is all or nothing, and nothing is said of several.
    assert metrics["pass_at_1"]["mean"] == pytest.approx(metrics["success"]["mean"], abs=1e-6)
    assert 1.0 >= metrics["pass_at_4"]["mean"] >= metrics["pass_at_1"]["mean"]
    with pytest.raises(ValueError, match="`evaluation.evaluator.samples` must be a setting of this run's evaluator: "):
        evaluate_run(language_run_dir, num_episodes=4, settings={"evaluator": {"samples": 4}})


@pytest.mark.slow
def test_a_rewarded_run_is_evaluated_by_its_reward(tmp_path, monkeypatch):
    (tmp_path / "reward_of_turns.py").write_text("def score(completions, **columns): return [2.0] * len(completions)\n")
    monkeypatch.syspath_prepend(tmp_path)
    reward = "collector.reward={_target_: reward_of_turns.score, _partial_: true}"
    choices = ("world=bandit", "algorithm=grpo", "stages=[]", "quick=true", "collector=rewarded", reward)
    (stage,) = build(resolve(compose(CONFIGS, *choices))).stages
    results = stage.evaluate(stage.runner.params(stage.runner.init(0)))
    np.testing.assert_array_equal(results["episode_return"], 2.0 * results["episode_length"])
    assert "world_return" in results


@pytest.mark.exhaustive
def test_the_kind_of_tasks_reaches_the_evaluator(run_dir, monkeypatch):
    loaded, asked = load_stage(run_dir), []

    def evaluator(environment, policy, *, num_episodes, greedy, level, held_out=True):
        asked.append(held_out)
        return lambda params, key: {"episode_return": jnp.zeros(num_episodes)}

    fake = loaded._replace(stage=loaded.stage._replace(evaluator=evaluator))
    monkeypatch.setattr("jaxagents.training.evaluate.load_stage", lambda *args, **kwargs: fake)
    results = [evaluate_run(run_dir, num_episodes=2, held_out=held_out)["held_out"] for held_out in (None, True, False)]
    assert results == asked == [True, True, False]


@pytest.mark.exhaustive
def test_held_out_tasks_need_a_world_that_has_them(run_dir):
    assert evaluate_run(run_dir, num_episodes=1)["held_out"] is None
    with pytest.raises(ValueError, match="`held_out` must be null for a world without held-out tasks, got True"):
        evaluate_run(run_dir, num_episodes=1, held_out=True)


@pytest.mark.slow
def test_a_run_does_not_go_on_with_another_tokenizer(language_run_dir, monkeypatch):
    config = OmegaConf.create(load_config(language_run_dir / "config.yaml") | {"when_quick": {}})
    metrics = (language_run_dir / "metrics.jsonl").read_bytes()
    before = tokenizers.word_level
    # The same config makes other bytes, as another release of a package may.
    monkeypatch.setattr(tokenizers, "word_level", lambda words: before(tuple(reversed(words))))
    with pytest.raises(
        ValueError, match=r"checkpoints of the tokenizer 'word_level' as it is made now, got .* another o"
    ):
        run(config, language_run_dir)
    assert (language_run_dir / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.exhaustive
def test_episodes_are_held_out_and_repeatable(loaded, played):
    assert played.tokens.shape == (4, loaded.policy.layout.num_turns, loaded.policy.layout.turn)
    assert played.valid[:, 0].all() and played.valid.shape[1] == 3
    np.testing.assert_array_equal(loaded.play(KEY, 4).tokens, played.tokens)
    task_key = jax.random.split(KEY, 3)[0]
    for row in range(4):
        task = loaded.environment.text.sample_held_out_task(jax.random.fold_in(task_key, row), None)
        jax.tree.map(np.testing.assert_array_equal, task, jax.tree.map(lambda leaf, row=row: leaf[row], played.task))


@pytest.mark.slow
def test_acting_step_by_step_is_playing(loaded, played):
    carry, keys = None, jax.random.split(KEY, 3)
    environment, num_episodes = loaded.environment, 4
    reset_keys = jax.vmap(lambda row: jax.random.fold_in(keys[1], row))(jnp.arange(num_episodes))
    state, timestep = jax.jit(jax.vmap(environment.reset))(reset_keys, played.task)
    step = jax.jit(jax.vmap(environment.step))
    fingerprint = jax.jit(jax.vmap(environment.text.fingerprint))
    live = np.ones(num_episodes, bool)
    assert played.action_valid.any()
    for turn in range(3):
        np.testing.assert_array_equal(played.valid[:, turn], live)
        np.testing.assert_array_equal(fingerprint(state)[live], played.fingerprint[live, turn])
        action, carry = loaded.act(timestep.observation, carry)
        state, timestep = step(jax.random.split(KEY, num_episodes), state, action)
        np.testing.assert_allclose(timestep.reward[live], played.reward[live, turn])
        live &= ~np.asarray(timestep.terminated | timestep.truncated)


@pytest.mark.exhaustive
def test_the_policy_of_an_array_world_does_not_play_dialogues(run_dir, call_main):
    assert load_policy(run_dir).play is None
    result = call_main("play.py", f"path={run_dir}", "role=agent", OFF)
    assert result.returncode != 0
    assert "`role` must be none for a policy without language, got 'agent'." in result.stderr


@pytest.mark.slow
def test_the_policy_plays_alone(loaded, played, capsys):
    trajectories = play_text(loaded, None, seed=7, num_episodes=4)
    assert [len(trajectory.turns) for trajectory in trajectories] == played.valid.sum(axis=1).tolist()
    assert capsys.readouterr().out.count("observation") == played.valid.sum()


@pytest.mark.exhaustive
def test_play_writes_a_page_and_trajectories(call_main, language_run_dir, tmp_path):
    overrides = (f"html={tmp_path / 'new/a.html'}", f"jsonl={tmp_path / 'a.jsonl'}", "num_episodes=2", "seed=7", OFF)
    result = call_main("play.py", f"path={language_run_dir}", *overrides)
    assert result.returncode == 0, result.stderr
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["html"] == str(tmp_path / "new/a.html")
    trajectories = list(read_trajectories(last["jsonl"]))
    assert [len(trajectory.turns) for trajectory in trajectories] == last["episode_length"]
    assert [trajectory.success for trajectory in trajectories] == last["success"]
    assert "<title>tiny, sampled actions</title>" in (tmp_path / "new/a.html").read_text()
    assert result.stdout.count("observation") == sum(last["episode_length"])


@pytest.mark.exhaustive
def test_checkpoints_play_the_same_tasks_side_by_side(call_main, language_run_dir, tmp_path):
    overrides = ("checkpoints=[last,best]", "before=true", "num_episodes=2", f"html={tmp_path / 'a.html'}")
    result = call_main("play.py", f"path={language_run_dir}", *overrides, f"jsonl={tmp_path / 'a.jsonl'}", OFF)
    assert result.returncode == 0, result.stderr
    played = list(read_trajectories(tmp_path / "a.jsonl"))
    names = [f"{name}-{row}" for name in ("before-training", "last", "best") for row in (0, 1)]
    assert [one.id for one in played] == names
    assert played[0].task == played[2].task == played[4].task != played[1].task
    page = (tmp_path / "a.html").read_text()
    assert page.index(">before training</h2>") < page.index(">last</h2>") < page.index(">best</h2>")


@pytest.mark.exhaustive
def test_groups_have_the_advantages_of_the_learner(loaded):
    advantage = {"_target_": "jaxagents.ops.credit.dr_grpo", "_partial_": True}
    learner = {"_target_": "jaxagents.learners.policy_gradient.make_agent", "_partial_": True, "advantage": advantage}
    episode = make_group_player(loaded.environment, loaded.policy, num_groups=2, group_size=4)(loaded.params, KEY)
    credited = make_credit(loaded.policy, learner)(loaded.params, episode)
    played = with_advantages(to_trajectories(loaded.environment, loaded.policy, episode), episode, credited)
    for members in (played[:4], played[4:]):
        returns = np.array([one.episode_return for one in members])
        assert all(one.task == members[0].task for one in members)
        for one, centred in zip(members, returns - returns.mean()):
            for turn, advantages in zip(one.turns, one.metadata["advantages"], strict=True):
                np.testing.assert_allclose(advantages, np.where(turn.sampled, centred, 0.0), atol=1e-5)
    assert make_credit(loaded.policy, {"_target_": "jaxagents.learners.supervised.make_agent"}) is None


@pytest.mark.exhaustive
def test_a_person_plays_through_a_pipe(call_main, language_run_dir, tmp_path):
    overrides = ("role=agent", f"html={tmp_path / 'a.html'}", "num_episodes=2", OFF)
    result = call_main("play.py", f"path={language_run_dir}", *overrides, lines="lfet\nleft\n")
    assert result.returncode == 0, result.stderr
    assert "There is no action 'lfet'; try left." in result.stdout
    last = json.loads(result.stdout.splitlines()[-1])
    # Two lines, one of them an action: the episode may be over, but the second one is not.
    assert last["episode_length"] == [1]
    assert (tmp_path / "a.html").exists()


@pytest.mark.exhaustive
def test_transcripts_before_and_after_training_are_in_the_report(language_run_dir, loaded, tmp_path, capsys):
    experiment = build(load_config(language_run_dir / "config.yaml"))
    path = show_transcripts(experiment, loaded.params, tmp_path, num_episodes=4)
    assert path == tmp_path / TRANSCRIPTS_FILE
    printed = capsys.readouterr().out
    assert printed.index("Before training") < printed.index("After training")
    assert printed.count("episode-0: frozenlake") == 2
    page = path.read_text()
    assert page.count("<article ") == 8
    report = write_report(tmp_path).read_text()
    assert "Transcripts before and after training" in report and 'srcdoc="&lt;!doctype html&gt;' in report


@pytest.mark.exhaustive
def test_a_stage_with_an_adapter_shows_what_the_one_before_said(tmp_path, capsys):
    tiny = (
        "policy.num_turns=2",
        "model.network.num_layers=1",
        "model.network.features=16",
        "model.network.num_heads=2",
    )
    experiment = build(
        resolve(compose(CONFIGS, "world=frozenlake", "algorithm=grpo", "learner=adapted", "quick=true", *tiny))
    )
    first, last = (stage.runner.params(stage.runner.init(0)) for stage in experiment.stages)
    assert set(last) == {"base", "adapter"} != set(first)
    show_transcripts(experiment, last, tmp_path, num_episodes=1)
    assert capsys.readouterr().out.count("episode-0: frozenlake") == 2


@pytest.mark.exhaustive
def test_other_worlds_have_no_transcripts(run_dir, tmp_path):
    experiment = build(load_config(run_dir / "config.yaml"))
    assert show_transcripts(experiment, None, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_baselines_are_kept_beside_the_run_and_drawn(language_run_dir, tmp_path):
    run_dir = shutil.copytree(language_run_dir, tmp_path / "run")
    baselines = measure_baselines(run_dir, num_episodes=8, seed=1, on_fallback=pytest.fail)
    assert baselines == json.loads((run_dir / "baselines.json").read_text())
    assert list(baselines) == ["before training", "expert", "random actions"]
    assert baselines["expert"]["success"] == 1.0 > baselines["random actions"]["success"]
    assert baselines["before training"]["invalid_action_rate"] > 0.5  # It has not learned to speak.
    assert (run_dir / "report.html").stat().st_mtime > (run_dir / "result.json").stat().st_mtime

"""Simulators on the host: what the program sees of them, and runs that learn from them."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tmaze
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_policy
from jaxagents.reporting.frames import play
from jaxagents.rollouts.host import Simulators, make_host_collector, make_host_evaluator
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.chunks import mean_evaluation
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from tests import ROOT

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the extra `host`")
adapter = pytest.importorskip("jaxagents.environments.adapters.gymnasium")


class Counter(gymnasium.Env):
    """Says how many steps its episode has and what its seed was; ends after 3, pays 1 for the allowed action."""

    observation_space = gymnasium.spaces.Dict(
        {
            "seen": gymnasium.spaces.Box(0.0, 100.0, (2,), np.float32),
            "action_mask": gymnasium.spaces.Box(0, 1, (2,), np.int8),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action):
        allowed = self.steps % 2
        self.steps += 1
        return self._see(), float(action == allowed), self.steps == 3, False, {"success": self.steps == 3}

    def _see(self):
        mask = np.eye(2, dtype=np.int8)[self.steps % 2]
        return {"seen": np.float32([self.steps, 7.0]), "action_mask": mask}


@pytest.fixture(scope="module")
def counter():
    return adapter.make_environment("counter", make=Counter, max_steps=50)


@pytest.fixture(scope="module")
def policy(counter):
    return make_policy(counter.observation_space, counter.action_space, encoder=MLP(hidden_sizes=(4,)))


@pytest.fixture(scope="module")
def collected(counter, policy):
    collector = make_host_collector(counter, policy, num_envs=2, num_steps=5)
    params = policy.init(jax.random.key(0))
    state = jax.jit(collector.init)(jax.random.key(1), params)
    collect = jax.jit(collector.collect)
    return collector, params, collect, collect(state, params, jax.random.key(2))


def test_a_rollout_by_hand(collected):
    state, rollout, metrics = collected[3]
    transition = rollout.transition
    assert transition.observation[:, 0, 0].tolist() == [0, 1, 2, 0, 1]
    assert transition.next_observation[:, 0, 0].tolist() == [1, 2, 3, 1, 2]  # 3: the end is not lost to the reset.
    assert transition.terminated[:, 1].tolist() == [False, False, True, False, False]
    assert transition.first[:, 1].tolist() == [True, False, False, True, False]
    assert transition.action[:, 0].tolist() == [0, 1, 0, 0, 1]  # The mask leaves one.
    assert transition.reward.tolist() == [[1.0, 1.0]] * 5
    np.testing.assert_allclose(transition.behavior_log_prob, 0.0, atol=1e-6)
    assert transition.previous_action[:, 0].tolist() == [0, 0, 1, 0, 0]
    assert transition.extras["next_action_mask"].shape == (5, 2, 2)
    assert float(metrics["episode_return"].value) == 3.0 and float(metrics["success_rate"].value) == 1.0
    assert (int(metrics["episodes"].total), int(metrics["env_steps"].total)) == (2, 10)
    assert state.timestep.observation[:, 0].tolist() == [2, 2]


def test_the_next_rollout_goes_on_and_another_process_begins_anew(collected):
    _, params, collect, (state, _, _) = collected
    kept = jax.tree.map(jnp.array, state)
    _, rollout, _ = collect(state, params, jax.random.key(3))
    assert rollout.transition.observation[:2, 0, 0].tolist() == [2, 0]
    kept = kept.replace(environment=kept.environment - 1)  # As from a checkpoint of another session.
    _, rollout, _ = collect(kept, params, jax.random.key(3))
    assert rollout.transition.observation[:2, 0, 0].tolist() == [0, 1]
    assert rollout.transition.first[0].tolist() == [True, True]


def test_evaluation_counts_whole_episodes(counter, policy):
    evaluate = make_host_evaluator(counter, policy, num_episodes=3, num_envs=2)
    results = jax.jit(evaluate)(policy.init(jax.random.key(0)), jax.random.key(5))
    expected = {"episode_return": 3.0, "episode_length": 3.0, "success": 1.0, "finished": 1.0}
    assert {name: value.tolist() for name, value in results.items()} == {k: [v] * 3 for k, v in expected.items()}


def test_seeds_of_an_evaluation_share_no_key_with_its_actions(counter, policy, monkeypatch):
    """Actions fold their steps into another key than that of the seeds."""
    seeds = []

    def reset(self, numbers):
        seeds.extend(numbers.tolist())
        return before(self, numbers)

    before = Simulators.reset
    monkeypatch.setattr(Simulators, "reset", reset)
    evaluate = make_host_evaluator(counter, policy, num_episodes=2, num_envs=2, greedy=False)
    jax.block_until_ready(jax.jit(evaluate)(policy.init(jax.random.key(0)), jax.random.key(5)))
    (of_play,) = jax.random.split(jax.random.key(5), 1)
    assert len(seeds) == 2 and seeds == jax.random.bits(jax.random.split(of_play)[0], (2,), jnp.uint32).tolist()
    assert seeds != jax.random.bits(of_play, (2,), jnp.uint32).tolist()


class Echo(gymnasium.Env):
    """Shows the action that it was given."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)

    def __init__(self, low, high):
        self.action_space = gymnasium.spaces.Box(np.float32(low), np.float32(high))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return action.copy(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("low", "high", "bounds", "given", "played"),
    [
        ([-1.0, 0.0], [1.0, 4.0], (-1.0, 1.0), [0.5, -0.5], [0.5, 1.0]),
        ([-2.0, -2.0], [2.0, 2.0], (-2.0, 2.0), [0.5, -2.0], [0.5, -2.0]),
        ([-1.0, -np.inf], [1.0, np.inf], (-np.inf, np.inf), [3.0, 5.0], [1.0, 5.0]),
    ],
    ids=["unequal", "equal", "unbounded"],
)
def test_actions_stay_in_the_space_of_the_simulator(low, high, bounds, given, played):
    echo = adapter.make_environment("echo", make=partial(Echo, low, high), max_steps=5)
    assert (echo.action_space.low, echo.action_space.high) == bounds
    batch = echo.make_batch(1)
    batch.reset(np.array([0]))
    np.testing.assert_allclose(batch.step(np.float32([given])).observation, [played])
    batch.close()


def test_one_seed_gives_one_rollout():
    cartpole = adapter.make_environment("CartPole-v1")
    policy = make_policy(cartpole.observation_space, cartpole.action_space, encoder=MLP(hidden_sizes=(4,)))
    params, rewards = policy.init(jax.random.key(0)), []
    for _ in range(2):
        collector = make_host_collector(cartpole, policy, num_envs=2, num_steps=6)
        state = jax.jit(collector.init)(jax.random.key(1), params)
        rewards.append(jax.jit(collector.collect)(state, params, jax.random.key(2))[1].transition.observation)
    np.testing.assert_array_equal(*rewards)
    assert cartpole.max_steps == 500 and np.abs(rewards[0]).max() > 0


def test_what_does_not_fit_is_refused(counter, policy):
    maze = tmaze.make_environment(corridor_length=2)
    with pytest.raises(ValueError, match="try collector=rollout"):
        make_host_collector(maze, policy, num_envs=1, num_steps=1)
    with pytest.raises(ValueError, match="try devices=jit"):
        make_host_collector(counter, policy, num_envs=1, num_steps=1, axis_name="devices")
    collector = make_rollout_collector(counter, policy, num_envs=1, num_steps=1)
    with pytest.raises(ValueError, match="try collector=host"):
        jax.eval_shape(partial(collector.init, params=None), jax.random.key(0))
    with pytest.raises(ValueError, match="`num_envs` must be at least 1, got 0"):
        make_host_collector(counter, policy, num_envs=0, num_steps=1)
    with pytest.raises(ValueError, match="try CartPole-v"):
        adapter.make_environment("CartPole")
    with pytest.raises(ValueError, match="`max_steps` must be given"):
        adapter.make_environment("counter", make=Counter)


class Broken(Counter):
    """Fails as simulators of users do, in the call that `fault` names."""

    fault = None

    def __init__(self):
        if self.fault == "make":
            raise KeyError("no display")

    def reset(self, *, seed=None, options=None):
        return {} if self.fault == "reset" else super().reset(seed=seed)

    def step(self, action):
        if self.fault == "raise":
            raise ConnectionError("lost the\nsimulator")
        if self.fault == "gone":
            raise EOFError
        if self.fault == "exit":
            raise SystemExit(3)
        observation, reward, *ends = super().step(action)
        if self.fault == "shape":
            observation["seen"] = observation["seen"][:1]
        if self.fault == "nan":
            observation["seen"] = observation["seen"] * np.nan
        return observation, np.nan if self.fault == "reward" else reward, *ends


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("make", "`make` of the environment broken must not fail, got KeyError: 'no display' \\(.*test_host.py, line"),
        ("reset", r"`reset` of the environment broken must not fail, got ValueError: not enough values"),
        ("raise", r"`step` of .*, got ConnectionError: lost the simulator \(.*test_host.py, line \d+: raise Conn"),
        ("exit", r"`step` of .*, got SystemExit: 3 \("),
        ("gone", r"`step` of .*, got EOFError: its process has ended \("),
        ("shape", r"`step` of .*, got ValueError: "),
        ("nan", r"`observation` of the environment broken must be finite, got NaN or infinity in step 1 of an episode"),
        ("reward", r"`reward` of the environment broken must be finite, got NaN or infinity in step 1 of an episode"),
    ],
)
def test_what_a_simulator_does_wrong_is_one_line_with_its_own_words(monkeypatch, fault, line):
    def play():
        simulators = Simulators(adapter.make_environment("broken", make=Broken, max_steps=9), 2)
        monkeypatch.setattr(Broken, "fault", fault)
        simulators.reset(np.uint32([0, 1]))
        simulators.step(np.array([0, 1]))

    with pytest.raises(ValueError, match=line) as error:
        play()
    assert "\n" not in str(error.value)
    if fault == "make":
        with pytest.raises(ValueError, match=line):
            play()  # When the world is made, too.


@pytest.mark.exhaustive
def test_ppo_learns_cartpole_of_gymnasium(tmp_path):
    overrides = ("world=gymnasium", "algorithm=ppo", "training.total_steps=30720", "evaluation.num_episodes=4")
    result = run(compose(ROOT / "configs", *overrides, "devices.compilation_cache=null"), tmp_path / "run")
    assert np.mean(result["evaluation"]["episode_return"]) > 100.0  # 20 before training.


class Quiet(Counter):
    """Tells nothing of success."""

    def step(self, action):
        return *super().step(action)[:4], {}


def test_a_simulator_that_does_not_tell_has_no_success(policy):
    quiet = adapter.make_environment("quiet", make=Quiet, max_steps=50)
    params = policy.init(jax.random.key(0))
    collector = make_host_collector(quiet, policy, num_envs=2, num_steps=5)
    metrics = collector.collect(collector.init(jax.random.key(1), params), params, jax.random.key(2))[2]
    assert float(metrics["success_rate"].count) == 0.0 and float(metrics["episode_return"].value) == 3.0
    evaluate = make_host_evaluator(quiet, policy, num_episodes=2)
    stage = SimpleNamespace(evaluate=lambda params: evaluate(params, jax.random.key(3)))
    assert sorted(mean_evaluation(stage, params, is_last=False)) == [
        *("eval/episode_length", "eval/episode_return", "eval/finished")
    ]


def test_an_episode_of_a_simulator_is_shown(counter, policy):
    (played,) = play(counter, policy, None, seed=0)
    assert (played.episode_return, played.episode_length, len(played.frames)) == (3.0, 3, 4)
    assert "return 3" in played.frames[-1].caption and played.frames[-1].last
    assert played.frames[-1].text.splitlines()[1].split() == ["3", "7"]  # Not the next episode's.
    (cut,) = play(counter, policy, None, seed=0, max_steps=2, greedy=False)
    assert cut.episode_length == 2
    with pytest.raises(ValueError, match="`evaluation.level` must be null for counter, got 1"):
        play(counter, policy, None, seed=0, level=1)

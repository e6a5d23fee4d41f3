"""Rollouts whose every transition must fit the next, and whose log-probabilities training must find again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxagents.networks.recurrent import GRU, LRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import as_policy, make_actor_critic, make_policy
from jaxagents.rollouts.unroll import episode_metrics, make_rollout_collector
from jaxagents.types import Box, Discrete, Policy, PolicyInput, TimeStep, input_of, input_of_successor
from tests.fakes import make_world

KEY = jax.random.key(0)
T, B = 9, 4


def make_clock():
    """Episodes of 2, 3 or 4 steps: the task, or `level`. Observation (length, steps); a step is worth its number.

    Episodes of 3 steps are truncated, the others terminate; those of 2 are a success. Action 0 is not allowed after an
    odd number of steps.
    """

    def view(state, **fields):
        return state, TimeStep(
            observation=jnp.stack([state["length"], state["steps"]]).astype(jnp.float32),
            action_mask=jnp.stack([state["steps"] % 2 == 0, jnp.asarray(True), jnp.asarray(True)]),
            **fields,
        )

    def reset(key, task):
        no = jnp.zeros((), bool)
        state = {"length": task, "steps": jnp.zeros((), jnp.int32)}
        return view(state, reward=jnp.zeros(()), terminated=no, truncated=no, info={"success": no})

    def step(key, state, action):
        state = {"length": state["length"], "steps": state["steps"] + 1}
        over, cut = state["steps"] == state["length"], state["length"] == 3
        return view(
            state,
            reward=state["steps"].astype(jnp.float32),
            terminated=over & ~cut,
            truncated=over & cut,
            info={"success": over & (state["length"] == 2)},
        )

    def sample_task(key, level=None):
        drawn = 2 + (jax.random.bits(key) % 3).astype(jnp.int32)
        return drawn if level is None else jnp.full_like(drawn, level)

    return make_world(reset, step, Box((2,)), Discrete(3), 4, sample_task=sample_task)


CLOCK = make_clock()
PROBABILITIES = np.array([0.2, 0.5, 0.3])


def apply_constant(params, carry, inputs):
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(PROBABILITIES, jnp.float32)), (*inputs.observation.shape[:-1], 3))
    return carry, Categorical(logits=logits).mask(inputs.action_mask)


CONSTANT = Policy(init=lambda key: (), initial_carry=lambda batch_shape: (), apply=apply_constant)


@pytest.fixture(scope="module", params=["gru", "lru"])
def two_rollouts(request):
    """Returns a recurrent policy, its parameters, and two rollouts after each other."""
    memory = GRU(hidden_size=5) if request.param == "gru" else LRU(hidden_size=5, state_size=3)
    policy = as_policy(
        make_actor_critic(Box((2,)), Discrete(3), encoder=MLP(hidden_sizes=(4,)), memory=memory, shared=True)
    )
    collector = make_rollout_collector(CLOCK, policy, num_envs=B, num_steps=T)
    # Far from uniform, so that log-probabilities depend on what is remembered.
    generator = np.random.default_rng(0)
    shapes = jax.eval_shape(policy.init, KEY)
    params = jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype), shapes)
    params["actor"]["head"] = jax.tree.map(lambda leaf: 0.2 * leaf, params["actor"]["head"])
    state, collect = jax.jit(collector.init)(KEY, params), jax.jit(collector.collect)
    state, first, first_metrics = collect(state, params, jax.random.key(1))
    _, second, second_metrics = collect(state, params, jax.random.key(2))
    assert collector.steps_per_collect == T * B
    return policy, params, (first, second), (first_metrics, second_metrics)


def test_transitions_fit_each_other(two_rollouts):
    _, _, rollouts, _ = two_rollouts
    both = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(rollout.transition for rollout in rollouts))
    ended = both.terminated | both.truncated
    assert both.terminated.any() and both.truncated.any() and not ended.all()
    assert both.first[0].all()
    np.testing.assert_array_equal(both.first[1:], ended[:-1])
    np.testing.assert_array_equal(both.observation[1:][~ended[:-1]], both.next_observation[:-1][~ended[:-1]])
    # A new episode starts at step 0; the successor of an ended step is that of the old one.
    np.testing.assert_array_equal(both.observation[both.first][:, 1], 0.0)
    np.testing.assert_array_equal(both.next_observation[..., 0], both.observation[..., 0])
    np.testing.assert_array_equal(both.next_observation[..., 1], both.observation[..., 1] + 1.0)
    np.testing.assert_array_equal(both.reward, both.observation[..., 1] + 1.0)
    np.testing.assert_array_equal(ended, both.next_observation[..., 1] == both.observation[..., 0])
    np.testing.assert_array_equal(both.truncated, ended & (both.observation[..., 0] == 3.0))


def test_masks_are_those_of_the_state_acted_in_and_are_obeyed(two_rollouts):
    _, _, rollouts, _ = two_rollouts
    for rollout in rollouts:
        transition = rollout.transition
        np.testing.assert_array_equal(transition.action_mask[..., 0], transition.observation[..., 1] % 2 == 0)
        np.testing.assert_array_equal(
            transition.extras["next_action_mask"][..., 0], transition.next_observation[..., 1] % 2 == 0
        )
        chosen = np.take_along_axis(np.asarray(transition.action_mask), np.asarray(transition.action)[..., None], -1)
        assert chosen.all() and transition.action.dtype == jnp.int32


def test_log_probs_are_found_again_over_the_whole_sequence(two_rollouts):
    policy, params, rollouts, _ = two_rollouts
    apply = jax.jit(policy.apply)
    for rollout in rollouts:
        transition = rollout.transition
        carry = jax.tree.map(lambda leaf: leaf[0], rollout.carry)
        _, distribution = apply(
            params,
            carry,
            PolicyInput(observation=transition.observation, first=transition.first, action_mask=transition.action_mask),
        )
        log_prob = distribution.log_prob(transition.action)
        np.testing.assert_allclose(log_prob, transition.behavior_log_prob, atol=1e-5)
        assert np.std(log_prob[np.asarray(transition.action_mask).all(-1)]) > 0.01


def test_carries_are_those_before_every_step_and_after_the_last(two_rollouts):
    policy, params, rollouts, _ = two_rollouts
    first, second = rollouts
    for leaf in jax.tree.leaves(first.carry):
        assert leaf.shape[:2] == (T + 1, B)
        np.testing.assert_array_equal(leaf[0], 0.0)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[-1], b[0]), first.carry, second.carry)
    # Continued from the carry of any step, the policy does the same.
    apply = jax.jit(policy.apply)
    transition = jax.tree.map(lambda leaf: leaf[4:], first.transition)
    carry = jax.tree.map(lambda leaf: leaf[4], first.carry)
    final, distribution = apply(
        params,
        carry,
        PolicyInput(observation=transition.observation, first=transition.first, action_mask=transition.action_mask),
    )
    np.testing.assert_allclose(distribution.log_prob(transition.action), transition.behavior_log_prob, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[-1], rtol=1e-4, atol=1e-5), final, first.carry)


def test_metrics_are_means_over_the_episodes_that_ended(two_rollouts):
    _, _, rollouts, metrics = two_rollouts
    for rollout, reported in zip(rollouts, metrics, strict=True):
        ended = np.asarray(rollout.transition.terminated | rollout.transition.truncated)
        lengths = np.asarray(rollout.transition.observation[..., 0])[ended]
        expected = {
            "episode_length": lengths,
            "episode_return": lengths * (lengths + 1) / 2,
            "success_rate": lengths == 2,
        }
        assert set(reported) == {*expected, "episodes", "env_steps"}
        assert (int(reported["episodes"].total), int(reported["env_steps"].total)) == (ended.sum(), T * B)
        for name, values in expected.items():
            assert float(reported[name].count) == ended.sum()
            np.testing.assert_allclose(reported[name].value, values.mean(), rtol=1e-6)


def test_rollouts_by_hand_follow_the_distribution():
    collector = make_rollout_collector(CLOCK, CONSTANT, num_envs=1_000, num_steps=7, level=3)
    _, rollout, metrics = jax.jit(lambda: collector.collect(collector.init(KEY, ()), (), KEY))()
    assert rollout.carry == ()
    transition = rollout.transition
    np.testing.assert_array_equal(transition.observation[:, 0], [[3, s] for s in (0, 1, 2, 0, 1, 2, 0)])
    np.testing.assert_array_equal(transition.next_observation[:, 0, 1], [1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(transition.reward[:, 0], [1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(transition.truncated[:, 0], [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(transition.first[:, 0], [1, 0, 0, 1, 0, 0, 1])
    assert not transition.terminated.any()
    counts = {name: int(metrics.pop(name).total) for name in ("episodes", "env_steps")}
    assert counts == {"episodes": 2_000, "env_steps": 7_000}
    assert {name: (float(m.total), float(m.count)) for name, m in metrics.items()} == {
        "episode_return": (12_000.0, 2_000.0),
        "episode_length": (6_000.0, 2_000.0),
        "success_rate": (0.0, 2_000.0),
    }
    free = np.asarray(transition.action)[np.asarray(transition.action_mask[..., 0])]
    assert stats.chisquare(np.bincount(free, minlength=3), free.size * PROBABILITIES).pvalue > 1e-3
    restricted = np.asarray(transition.action)[~np.asarray(transition.action_mask[..., 0])]
    counts = np.bincount(restricted, minlength=3)
    assert counts[0] == 0 and stats.chisquare(counts[1:], restricted.size * PROBABILITIES[1:] / 0.8).pvalue > 1e-3


def test_streams_follow_the_global_index_and_resets_the_pool():
    def collect(num_envs):
        collector = make_rollout_collector(CLOCK, CONSTANT, num_envs=num_envs, num_steps=6, reset_pool=2)
        return jax.jit(lambda: collector.collect(collector.init(KEY, ()), (), KEY)[1].transition)()

    many, few = collect(8), collect(2)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, :2], b), many, few)
    assert len({tuple(column) for column in np.asarray(many.action).T}) > 4
    later = np.asarray(many.first) & (np.arange(6)[:, None] > 0)
    assert later.sum() > 4 and len(np.unique(many.observation[later][:, 0])) <= 2


def with_agents(environment):
    """Gives three agents the same observation; the second is there after an even number of steps only."""

    def view(state, timestep):
        alive = timestep.observation[1] % 2 == 0
        return state, timestep.replace(
            observation=jnp.stack([timestep.observation] * 3),
            reward=jnp.broadcast_to(timestep.reward, (3,)),
            action_mask=None,
            info={"agent_mask": jnp.stack([jnp.asarray(True), alive, jnp.asarray(True)])},
        )

    return dataclasses.replace(
        environment,
        num_agents=3,
        reset=lambda key, task: view(*environment.reset(key, task)),
        step=lambda key, state, action: view(*environment.step(key, state, action[0])),
    )


def test_agent_masks_are_those_of_the_state_acted_in():
    collector = make_rollout_collector(with_agents(CLOCK), CONSTANT, num_envs=2, num_steps=T)
    transition = jax.jit(lambda: collector.collect(collector.init(KEY, ()), (), KEY)[1].transition)()
    assert transition.truncated.any() or transition.terminated.any()
    np.testing.assert_array_equal(transition.extras["agent_mask"][..., 1], transition.observation[..., 0, 1] % 2 == 0)
    assert not np.array_equal(transition.action[..., 0], transition.action[..., 2])


def test_refuses_masks_that_do_not_fit_the_number_of_agents():
    message = r"`reward` of '.*' must have the 2 agents of `num_agents` as its first axis, got shape \(3,\)"
    with pytest.raises(ValueError, match=message):
        make_rollout_collector(dataclasses.replace(with_agents(CLOCK), num_agents=2), CONSTANT, num_envs=2, num_steps=T)


def test_agents_are_an_axis_of_everything_but_the_flags():
    policy = make_policy(Box((2,)), Box((2,), -1.0, 1.0), encoder=MLP(hidden_sizes=(4,)), memory=GRU(hidden_size=5))
    world = dataclasses.replace(with_agents(CLOCK), action_space=Box((2,), -1.0, 1.0))
    collector = make_rollout_collector(world, policy, num_envs=B, num_steps=T)
    _, rollout, metrics = jax.eval_shape(lambda: collector.collect(collector.init(KEY, ()), policy.init(KEY), KEY))
    transition = rollout.transition
    assert transition.observation.shape == transition.next_observation.shape == (T, B, 3, 2)
    assert transition.action.shape == (T, B, 3, 2) and transition.behavior_log_prob.shape == (T, B, 3)
    assert transition.reward.shape == transition.extras["agent_mask"].shape == (T, B, 3)
    assert transition.terminated.shape == transition.truncated.shape == transition.first.shape == (T, B)
    assert rollout.carry.shape == (T + 1, B, 3, 5) and metrics["episode_return"].total.shape == ()


def test_policies_are_told_what_they_did_and_got_and_drew():
    """The policy counts its own actions up and its noise is a phase: all that it was told is in the transitions."""

    def apply(params, carry, inputs):
        wanted = (inputs.previous_action + 1 + inputs.noise.astype(jnp.int32)) % 3
        logits = 50.0 * jax.nn.one_hot(wanted, 3) + inputs.previous_reward[..., None]
        return carry, Categorical(logits=logits)

    policy = Policy(
        init=lambda key: (),
        initial_carry=lambda batch_shape: (),
        apply=apply,
        draw_noise=lambda key, num_steps: jax.random.bernoulli(key, 0.5, (num_steps,)),
    )
    collector = make_rollout_collector(CLOCK, policy, num_envs=B, num_steps=T)
    collect, state = jax.jit(collector.collect), collector.init(KEY, ())
    state, before, _ = collect(state, (), KEY)
    _, after, _ = collect(state, (), jax.random.key(1))
    both = jax.tree.map(lambda *parts: np.concatenate(parts), before.transition, after.transition)
    for previous, now in ((both.previous_action, both.action), (both.previous_reward, both.reward)):
        np.testing.assert_array_equal(previous[1:], np.where(both.first[1:], 0, now[:-1]))
        np.testing.assert_array_equal(previous[0], 0)
    np.testing.assert_array_equal(both.action, (both.previous_action + 1 + both.noise) % 3)
    assert 0.2 < both.noise.mean() < 0.8 and np.any(both.noise[:, 0] != both.noise[:, 1])
    # An update finds the same distributions again.
    _, distribution = policy.apply((), (), input_of(before.transition))
    log_prob = distribution.log_prob(before.transition.action)
    np.testing.assert_allclose(log_prob, before.transition.behavior_log_prob, atol=1e-6)
    successor = input_of_successor(before.transition)
    np.testing.assert_array_equal(successor.previous_action, before.transition.action)
    assert not np.any(successor.first)


def test_episode_metrics_by_hand():
    timestep = TimeStep(
        observation=jnp.zeros((2, 2)),
        reward=jnp.zeros((2, 2)),
        terminated=jnp.array([[True, False], [False, False]]),
        truncated=jnp.array([[False, False], [True, False]]),
        info={"episode_return": jnp.array([[1.5, 7.0], [4.0, 9.0]]), "episode_length": jnp.array([[2, 3], [5, 8]])},
    )
    metrics = episode_metrics(timestep)
    assert set(metrics) == {"episode_return", "episode_length"}
    assert (float(metrics["episode_return"].total), float(metrics["episode_return"].count)) == (5.5, 2.0)
    assert float(metrics["episode_length"].value) == 3.5
    none = episode_metrics(timestep.replace(terminated=jnp.zeros((2, 2), bool), truncated=jnp.zeros((2, 2), bool)))
    assert np.isnan(none["episode_return"].value) and float(none["episode_return"].count) == 0.0


def test_refuses_sizes_and_games_that_make_no_stream():
    for name in ("num_envs", "num_steps"):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0"):
            make_rollout_collector(CLOCK, CONSTANT, **({"num_envs": 1, "num_steps": 1} | {name: 0}))
    with pytest.raises(ValueError, match="got 2 players in 'world'; wrap it in `alternating` or `against`"):
        make_rollout_collector(dataclasses.replace(CLOCK, num_players=2), CONSTANT, num_envs=1, num_steps=1)


def test_metrics_are_those_of_the_steps_that_ended_an_episode():
    ended = jnp.array([[True, False], [False, True], [False, False]])
    values = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    info = {"episode_return": 10 * values, "metrics": {"own": values}}
    timestep = TimeStep(observation=values, reward=values, terminated=ended, truncated=jnp.zeros_like(ended), info=info)
    metrics = episode_metrics(timestep)
    assert {name: float(metric.value) for name, metric in metrics.items()} == {"episode_return": 25.0, "own": 2.5}
    assert all(float(metric.count) == 2.0 for metric in metrics.values())


def test_no_more_resets_are_drawn_than_a_rollout_has_steps():
    policy = make_policy(Box((2,)), Discrete(3), encoder=MLP((4,)))
    params = policy.init(KEY)

    def lengths(reset_pool):
        """Returns the lengths of the scans and batches of the program: of resets, too."""
        collector = make_rollout_collector(make_clock(), policy, num_envs=2, num_steps=3, reset_pool=reset_pool)
        state = jax.eval_shape(collector.init, KEY, params)
        return str(jax.make_jaxpr(collector.collect)(state, params, KEY))

    assert "1237" not in lengths(1237) and "[5]" in lengths(5)

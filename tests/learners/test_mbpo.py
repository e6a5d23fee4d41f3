"""Models of a world: losses by scipy, what is imagined in a world known by hand, and who learns from nothing else."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from scipy.stats import norm

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.learners.mbpo import imagine, make_agent, make_model_learner, model_loss, with_model
from jaxagents.learners.meee import disagreement, disagreement_weight, make_optimistic_policy, most_optimistic
from jaxagents.learners.meee import make_agent as make_meee_agent
from jaxagents.learners.sac import make_agent as make_sac_agent
from jaxagents.losses.dynamics import end_loss, gaussian_loss
from jaxagents.networks.torsos import MLP
from jaxagents.policies.tanh_normal import make_tanh_normal_policy
from jaxagents.rollouts.evaluate import make_evaluator
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.search.model_predictive import make_model_predictive_policy
from jaxagents.search.planning import cross_entropy
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Learner, Params, PolicyInput, Sample
from jaxagents.values.dynamics import Dynamics, Prediction, make_dynamics
from jaxagents.values.q_function import make_twin_q
from tests.fakes import make_follow, make_sample

KEY = jax.random.key(0)
SEEN, MOVES = Box((2,)), Box((1,), -1.0, 1.0)
POLICY = make_tanh_normal_policy(SEEN, MOVES, encoder=MLP((4,)))


def sample(num_rows=32):
    """Moves add the squashed action to the first number, and pay the second; numbers beyond 1 end the episode."""
    generator = np.random.default_rng(0)
    observation = jnp.asarray(generator.normal(size=(1, num_rows, 2)), jnp.float32)
    action = jnp.asarray(generator.normal(size=(1, num_rows, 1)), jnp.float32)
    ended = observation[..., 0] > 1.0
    return make_sample(
        weight=jnp.full(num_rows, 2.0),
        observation=observation,
        action=action,
        reward=observation[..., 1],
        terminated=ended,
        next_observation=observation.at[..., 0].add(jnp.tanh(action[..., 0])),
        first=ended,
    )


def test_losses_are_those_of_scipy():
    mean, log_scale, target = np.array([[1.0, -2.0]]), np.array([[0.5, -1.0]]), np.array([[0.0, -1.5]])
    expected = -norm.logpdf(target, mean, np.exp(log_scale)) - 0.5 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(gaussian_loss(mean, log_scale, target), expected.sum(-1), rtol=1e-6)
    ends = 1.0 / (1.0 + np.exp(-0.7))
    losses = end_loss(jnp.full(2, 0.7), jnp.array([True, False]))
    np.testing.assert_allclose(losses, [-np.log(ends), -np.log(1.0 - ends)], rtol=1e-6)


def foretell(params, observation, action):
    """Two members that are sure: the first adds 1 to the first number, the second 10; episodes end beyond 5."""
    del params
    change = jnp.zeros((2, *observation.shape)).at[..., 0].set(jnp.array([[1.0], [10.0]]))
    reward = jnp.broadcast_to(observation[..., :1], (2, *observation.shape[:-1], 1))
    mean = jnp.concatenate([change, reward], axis=-1)
    ends = jnp.where(observation[..., 0] > 5.0, 99.0, -99.0)
    return Prediction(mean, jnp.full_like(mean, -30.0), jnp.broadcast_to(ends, mean.shape[:-1]))


def test_each_step_begins_where_the_last_one_led_in_one_of_the_members():
    batch, dynamics = sample(), Dynamics(init=None, apply=foretell)
    steps, alive = jax.jit(lambda key: imagine(dynamics, POLICY, (), POLICY.init(KEY), key, batch, horizon=3))(KEY)
    seen, following = steps.observation, steps.next_observation
    np.testing.assert_array_equal(seen[0], batch.transition.observation[0])
    np.testing.assert_array_equal(seen[1:], following[:-1])
    added = np.round(following - seen, 4)
    assert set(np.unique(added[..., 0])) == {1.0, 10.0} and np.all(added[..., 1] == 0.0)
    np.testing.assert_allclose(steps.reward, seen[..., 0], rtol=1e-5)
    over = np.asarray(seen[..., 0] > 5.0)
    np.testing.assert_array_equal(steps.terminated, over)
    before = np.cumsum(over, axis=0) - over
    np.testing.assert_array_equal(alive, before == 0)
    assert over[1:].any() and len(np.unique(steps.action)) == 96


def test_losses_of_models_are_by_weight():
    dynamics = make_dynamics(SEEN, MOVES, encoder=MLP((4,)), num_members=2)
    params, batch = dynamics.init(KEY), sample(8)
    half = batch.replace(weight=jnp.array([2.0, 0.0] * 4))
    kept = Sample(transition=jax.tree.map(lambda leaf: leaf[:, ::2], batch.transition), weight=jnp.ones(4))
    np.testing.assert_allclose(model_loss(params, dynamics, half), model_loss(params, dynamics, kept), rtol=1e-6)


@struct.dataclass
class Idle:
    params: Params


# Learns nothing, and says what it heard.
LISTENER = Learner(
    init=lambda key, start=None: Idle(POLICY.init(KEY)),
    update=lambda state, key, batch: (
        state,
        {"priority": jnp.arange(batch.weight.size, dtype=jnp.float32), "heard": batch},
    ),
)


@pytest.mark.exhaustive
def test_a_learner_hears_both_kinds_and_the_model_comes_to_know_the_world():
    batch = sample()
    make = partial(with_model, LISTENER, POLICY, SEEN, MOVES, encoder=MLP((16,)), num_members=2, learning_rate=0.02)
    learner = make(horizon=2, real_share=0.25)
    update = jax.jit(learner.update)
    state, metrics = update(learner.init(KEY), KEY, batch)
    heard = metrics["heard"]
    np.testing.assert_array_equal(heard.transition.reward[:, ::3], batch.transition.reward)
    np.testing.assert_array_equal(heard.transition.observation[:, 1::3], batch.transition.observation)
    np.testing.assert_allclose(heard.weight[::3], 2.0 * 0.25 * 3.0)
    imagined = heard.weight.reshape(-1, 3)[:, 1:]
    ends = heard.transition.terminated[0, 1::3]
    assert ends.any() and not np.any(imagined[ends, 1]) and np.all(imagined[:, 0] > 0.0)
    # Imagined steps have three quarters of the weight of 96 steps, however many of them there are.
    np.testing.assert_allclose(imagined[imagined > 0.0], 0.75 * 96.0 / np.sum(imagined > 0.0), rtol=1e-6)
    np.testing.assert_array_equal(metrics["priority"], 3.0 * np.arange(32.0))
    state = jax.jit(lambda state: jax.lax.fori_loop(0, 300, lambda _, s: learner.update(s, KEY, batch)[0], state))(
        state
    )
    transition = jax.tree.map(lambda leaf: leaf[0], batch.transition)
    dynamics = make_dynamics(SEEN, MOVES, encoder=MLP((16,)), num_members=2)
    predicted = dynamics.apply(state.model, transition.observation, transition.action)
    change = transition.next_observation - transition.observation
    assert float(jnp.mean(jnp.abs(predicted.mean[..., :2] - change[None]))) < 0.1
    assert float(jnp.mean(jnp.abs(predicted.mean[..., 2] - transition.reward[None]))) < 0.1
    assert bool(jnp.all((predicted.end_logit > 0.0) == transition.terminated[None]))
    with pytest.raises(ValueError, match="`horizon` must be at least 1, got 0"):
        make(horizon=0)
    with pytest.raises(ValueError, match="`num_members` must be at least 1, got 0; try 5"):
        make_dynamics(SEEN, MOVES, encoder=MLP((4,)), num_members=0)


@pytest.mark.slow
def test_devices_agree_with_one_device():
    alone, split = (
        with_model(LISTENER, POLICY, SEEN, MOVES, encoder=MLP((8,)), horizon=2, axis_name=axis)
        for axis in (None, "device")
    )
    batch, state = sample(8), alone.init(KEY)
    parts = Sample(
        transition=jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=1)), batch.transition),
        weight=batch.weight.reshape(2, 4),
    )
    _, expected = jax.jit(alone.update)(state, KEY, batch)
    _, metrics = jax.jit(jax.vmap(split.update, (None, None, 0), axis_name="device"))(state, KEY, parts)
    heard, whole = metrics["heard"], expected["heard"]
    seen = jnp.concatenate(list(heard.transition.next_observation), axis=1)
    np.testing.assert_allclose(seen, whole.transition.next_observation, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(heard.weight.reshape(-1), whole.weight)
    np.testing.assert_allclose(metrics["model_loss"], jnp.full(2, expected["model_loss"]), rtol=1e-4)


@pytest.mark.exhaustive
def test_a_policy_learns_from_imagined_steps_alone_and_a_pause_changes_no_bit():
    follow = make_follow()
    """Random actions get -0.6 or so; what is played has no weight."""
    model = partial(with_model, encoder=MLP((16,), "relu"), num_members=2, real_share=0.0, learning_rate=1e-2)
    adam = dict.fromkeys(
        ("policy_optimizer", "q_optimizer", "temperature_optimizer"), lambda num_steps: optax.adam(1e-2)
    )
    agent = make_sac_agent(
        follow,
        policy=partial(make_tanh_normal_policy, encoder=MLP((16,), "relu")),
        value=partial(make_twin_q, encoder=MLP((16,), "relu")),
        buffer=make_uniform_buffer(capacity=512, batch_size=32, min_size=32),
        updates_per_rollout=4,
        model=model,
        target_update_rate=0.05,
        target_entropy=-2.0,
        **adam,
    )
    collector = make_rollout_collector(follow, agent.policy, num_envs=8, num_steps=1)
    program = make_program(collector, agent.make_learner(collector, 200))
    run = jax.jit(partial(run_updates, program))
    halfway, _ = run(program.init(KEY), 100)
    resumed, metrics = run(halfway, 100)
    assert float(metrics["rollout/episode_return"].value) > -0.15
    whole, _ = run(program.init(KEY), 200)
    same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), whole.learner, resumed.learner)
    assert all(jax.tree.leaves(same)) and run._cache_size() == 1


def test_a_model_takes_a_step_of_its_loss_and_goes_on_from_a_state_or_from_parameters():
    dynamics = make_dynamics(SEEN, MOVES, encoder=MLP((4,)), num_members=2)
    learner, batch = make_model_learner(dynamics, optax.sgd(0.1, momentum=0.9)), sample(8)
    state = learner.init(KEY)
    loss, grads = jax.value_and_grad(model_loss)(state.params, dynamics, batch)
    following, metrics = jax.jit(learner.update)(state, KEY, batch)
    np.testing.assert_allclose(metrics["model_loss"], loss, rtol=1e-5)
    for after, before, grad in zip(*map(jax.tree.leaves, (following.params, state.params, grads)), strict=True):
        np.testing.assert_allclose(after, before - 0.1 * grad, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, learner.init(KEY, following), following)
    resumed = learner.init(KEY, following.params)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, following.params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(resumed.opt_state))
    with pytest.raises(ValueError, match="`sequence_length` must be 1 for a model of single steps, got 2"):
        learner.update(state, KEY, batch.replace(transition=jax.tree.map(lambda x: x.repeat(2, 0), batch.transition)))


def planner(environment, **options):
    parts = {
        "policy": partial(
            make_model_predictive_policy,
            update=partial(cross_entropy, num_elites=8),
            horizon=2,
            num_candidates=32,
            num_iterations=3,
        ),
        "value": partial(make_dynamics, encoder=MLP((32,), "relu"), num_members=2),
        "optimizer": lambda num_steps: optax.adam(1e-2),
        "buffer": make_uniform_buffer(capacity=512, batch_size=64, min_size=32),
    }
    return make_agent(environment, **parts | options)


@pytest.mark.exhaustive
def test_plans_in_a_model_of_what_was_played_follow():
    follow = make_follow()
    """Random actions get -0.6 or so."""
    agent = planner(follow, updates_per_rollout=8)
    collector = make_rollout_collector(follow, agent.policy, num_envs=8, num_steps=1)
    program = make_program(collector, agent.make_learner(collector, 60))
    state, _ = jax.jit(partial(run_updates, program))(program.init(KEY), 60)
    play = jax.jit(make_evaluator(follow, agent.policy, num_episodes=16))
    assert float(jnp.mean(play(state.learner.params, KEY)["episode_return"])) > -0.05


def test_planners_without_a_model_of_the_world_are_refused():
    follow = make_follow()
    with pytest.raises(ValueError, match="`value` must be a model of the world to plan in, got a TwinQ; try value=dyn"):
        planner(follow, value=partial(make_twin_q, encoder=MLP((4,))))
    with pytest.raises(ValueError, match="`updates_per_rollout` must be at least 1, got 0"):
        planner(follow, updates_per_rollout=0)


# Members say (0, 3) and (2, 3) of the first action, (1, 1) and (1, 1) of the second: standard deviations 1, 0 and 0, 0.
APART = Prediction(jnp.array([[[0.0, 3.0], [1.0, 1.0]], [[2.0, 3.0], [1.0, 1.0]]]), jnp.zeros((2, 2, 2)), None)


@pytest.mark.slow
def test_disagreement_weighs_down_what_is_imagined_and_makes_actions_worth_trying():
    np.testing.assert_allclose(disagreement(APART), [0.5, 0.0])
    np.testing.assert_allclose(disagreement_weight(APART, temperature=4.0), [2.0 / (1.0 + np.exp(2.0)), 1.0], rtol=1e-6)
    np.testing.assert_allclose(disagreement_weight(APART, temperature=0.0), [1.0, 1.0])
    value = jnp.array([[0.0, 0.4], [9.0, 0.3]])  # The smaller ones: 0 and 0.3.
    for scale, best in ((0.0, 1), (0.5, 1), (0.7, 0)):
        assert int(most_optimistic(value, APART, scale=scale)) == best
    batch = sample(8)
    options = {"encoder": MLP((4,)), "num_members": 2, "horizon": 2}
    plain, weighed = (
        with_model(LISTENER, POLICY, SEEN, MOVES, weigh=weigh, **options)
        for weigh in (None, lambda predicted: jnp.full(predicted.end_logit.shape[1:], 0.25))
    )
    state = plain.init(KEY)
    ratio = [learner.update(state, KEY, batch)[1]["heard"].weight.reshape(8, 3) for learner in (weighed, plain)]
    np.testing.assert_allclose(ratio[0], ratio[1] * jnp.array([[1.0, 0.25, 0.25]]), rtol=1e-5)


@pytest.mark.slow
def test_the_best_candidate_is_done_where_the_policy_explores_and_the_policy_elsewhere():
    twin_q = make_twin_q(SEEN, MOVES, encoder=MLP((4,)))
    policy = make_optimistic_policy(POLICY, twin_q, SEEN, MOVES, encoder=MLP((4,)), share=0.5, num_candidates=3)
    dynamics, params = make_dynamics(SEEN, MOVES, encoder=MLP((4,))), policy.init(KEY)
    drawn = policy.draw_noise(KEY, 6)
    assert set(np.unique(drawn["explores"])) == {False, True}
    observation = sample(6).transition.observation.swapaxes(0, 1)
    inputs = PolicyInput(observation=observation, first=jnp.ones((6, 1), bool))
    plain = POLICY.apply(params["policy"], (), inputs)[1]
    noise = jax.tree.map(lambda leaf: leaf[:, None], drawn)
    acted = policy.apply(params, (), inputs.replace(noise=noise))[1]
    greedy = policy.apply(params, (), inputs)[1]
    np.testing.assert_array_equal(greedy.loc, plain.loc)
    for t in range(6):
        normal = np.asarray(drawn["normal"][t])
        own = np.asarray(plain.loc[t, 0]) + np.asarray(plain.scale[t, 0]) * normal[0]
        moved = np.clip(np.tanh(own) + 0.7 * normal[1:], -0.999, 0.999)
        candidates = np.concatenate([own[None], np.arctanh(moved)])
        score = [
            jnp.min(twin_q.apply(params["critic"], observation[t, 0], one))
            + disagreement(dynamics.apply(params["model"], observation[t, 0], one))
            for one in candidates
        ]
        expected = candidates[int(np.argmax(score))] if drawn["explores"][t] else plain.loc[t, 0]
        np.testing.assert_allclose(acted.loc[t, 0], expected, rtol=1e-4)
        assert (acted.scale[t, 0] < 1e-3) == drawn["explores"][t]
    with pytest.raises(ValueError, match="`temperature` must not be negative, got -1"):
        make_meee_agent(None, model=with_model, temperature=-1.0)

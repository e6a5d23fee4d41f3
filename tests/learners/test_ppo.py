"""PPO on tables whose every step is worked out by hand, with memory, and on toys that it must solve."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.tmaze import make_environment
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.ppo import make_agent, make_ppo
from jaxagents.networks.recurrent import GRU, LRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.rollouts.evaluate import make_evaluator
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import ActorCritic, Box, Discrete, Environment, Rollout, TimeStep, Transition

KEY = jax.random.key(0)
NUM_STATES = 5


def apply_table(params, carry, observation, *, first, action_mask=None):
    del first
    return carry, Categorical(logits=observation @ params["actor"]).mask(action_mask), observation @ params["critic"]


def init_table(key):
    del key
    return {"actor": jnp.zeros((NUM_STATES, 2)), "critic": jnp.array([0.5, 1.0, 1.5, 2.0, 7.0])}


# One row of logits and one value per state; actor and critic share nothing.
TABLE = ActorCritic(init=init_table, initial_carry=lambda batch_shape: (), apply=apply_table)
VALUES = init_table(KEY)["critic"]


def steps(state, action, reward, terminated, truncated, next_state, *, ratio=1.0, extras=None):
    """Returns a rollout of lists `[T]` of one environment, or `[T, B]`; both actions were as likely, up to `ratio`."""
    fields = [np.asarray(field) for field in (state, action, reward, terminated, truncated, next_state)]
    fields = [field[:, None] if field.ndim == 1 else field for field in fields]
    state, action, reward, terminated, truncated, next_state = fields
    eye = np.eye(NUM_STATES, dtype=np.float32)
    transition = Transition(
        observation=jnp.asarray(eye[state]),
        action=jnp.asarray(action, jnp.int32),
        behavior_log_prob=jnp.full(state.shape, jnp.log(0.5 / ratio)),
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated, bool),
        truncated=jnp.asarray(truncated, bool),
        next_observation=jnp.asarray(eye[next_state]),
        first=jnp.ones(state.shape, bool),
        extras=extras or {},
    )
    return Rollout(transition=transition, carry=())


# Advantages of these are 0.5, -0.5, 1 and -1.5: (state, action, reward, terminated, truncated, successor).
MIXED = steps([0, 1, 2, 3], [0, 0, 1, 1], [1.0, 0.5, 2.5, 0.5], [1] * 4, [0] * 4, [4] * 4)
PLAIN = {
    "num_epochs": 1,
    "num_minibatches": 1,
    "normalize_advantages": False,
    "entropy_coefficient": 0.0,
    "discount": 0.5,
    "trace_decay": 0.5,
}


def updated(rollout, learning_rate=1.0, **options):
    """Takes one step of plain gradient descent from the initial table."""
    learner = make_ppo(TABLE, optax.sgd(learning_rate), **(PLAIN | options))
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, rollout)
    return state.params, metrics


def test_one_step_by_hand():
    params, metrics = updated(steps([1], [1], [2.0], [1], [0], [4]))
    # Advantage 1: the gradient of the ratio is (0, 1) - (1/2, 1/2); of the value loss 0.5 * (1 - 2).
    np.testing.assert_allclose(params["actor"], [[0, 0], [-0.5, 0.5], [0, 0], [0, 0], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(params["critic"], VALUES.at[1].set(1.5), rtol=1e-6)
    expected = {
        "policy_loss": -1.0,
        "value_loss": 0.5,
        "loss": -0.75,
        "entropy": np.log(2.0),
        "approximate_kl": 0.0,
        "clip_fraction": 0.0,
        "gradient_norm": np.sqrt(0.25 + 0.25 + 0.25),
    }
    assert set(metrics) == {*expected, "explained_variance"}
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, atol=1e-6, err_msg=name)


def test_actions_of_positive_advantage_become_likelier_and_others_rarer():
    for options in ({}, {"normalize_advantages": True}):
        params, metrics = updated(MIXED, **options)
        change = np.asarray(jax.nn.log_softmax(params["actor"]))[[0, 1, 2, 3], [0, 0, 1, 1]] - np.log(0.5)
        np.testing.assert_array_equal(np.sign(change), [1, -1, 1, -1])
        np.testing.assert_array_equal(params["actor"][4], 0.0)
    # Targets 1, 0.5, 2.5, 0.5 of values 0.5, 1, 1.5, 2: residuals of variance 0.875 and targets of variance 0.671875.
    residuals, targets = np.array([0.5, -0.5, 1.0, -1.5]), np.array([1.0, 0.5, 2.5, 0.5])
    np.testing.assert_allclose(metrics["explained_variance"], 1.0 - residuals.var() / targets.var(), rtol=1e-5)


def test_no_gradient_flows_from_the_value_to_the_actor_or_from_advantages_to_the_critic():
    # Equal advantages are normalised to zero, which leaves the value loss alone.
    params, _ = updated(steps([0, 1], [0, 1], [1.0, 1.5], [1, 1], [0, 0], [4, 4]), normalize_advantages=True)
    np.testing.assert_array_equal(params["actor"], 0.0)
    np.testing.assert_allclose(params["critic"], VALUES.at[:2].set(jnp.array([0.625, 1.125])))
    # The successor's value is part of advantage and target: neither of them moves it.
    bootstrapped = steps([0, 1], [0, 1], [1.0, 1.5], [0, 0], [0, 0], [1, 4])
    params, _ = updated(bootstrapped, value_coefficient=0.0)
    np.testing.assert_array_equal(params["critic"], VALUES)
    assert np.abs(params["actor"]).min(axis=1)[:2].min() > 0.0
    params, _ = updated(bootstrapped)
    np.testing.assert_array_equal(params["critic"][2:], VALUES[2:])


def test_clipped_ratios_have_no_gradient():
    # A ratio of 2 has had its gain, and is still pulled back where the advantage is negative.
    for ratio, moved in ((2.0, [0, 1, 0, 1]), (0.5, [1, 0, 1, 0])):
        rollout = MIXED.replace(
            transition=MIXED.transition.replace(behavior_log_prob=jnp.full((4, 1), jnp.log(0.5 / ratio)))
        )
        params, metrics = updated(rollout)
        np.testing.assert_array_equal(np.abs(params["actor"]).max(axis=1)[:4] > 0.0, np.asarray(moved, bool))
        assert float(metrics["clip_fraction"]) == 1.0
        np.testing.assert_allclose(metrics["approximate_kl"], ratio - 1.0 - np.log(ratio), rtol=1e-5)


def test_entropy_bonus_flattens_the_policy():
    # No advantage and no value error: only the bonus is left.
    learner = make_ppo(TABLE, optax.sgd(1.0), **(PLAIN | {"entropy_coefficient": 0.1}))
    logits = jnp.zeros((NUM_STATES, 2)).at[0].set(jnp.array([1.0, 0.0]))
    state = learner.init(KEY, {"actor": logits, "critic": VALUES})
    state, _ = jax.jit(learner.update)(state, KEY, steps([0], [0], [0.5], [1], [0], [4]))
    p = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    entropy = -np.sum(p * np.log(p))
    np.testing.assert_allclose(state.params["actor"][0], [1.0, 0.0] - 0.1 * p * (np.log(p) + entropy), rtol=1e-5)
    assert float(state.params["actor"][0, 0]) < 1.0


def test_value_clipping_stops_a_value_that_went_far():
    rollout = steps([0, 1], [0, 0], [1.0, 1.0], [1, 1], [0, 0], [4, 4])
    options = {"num_epochs": 2, "value_clip_epsilon": 0.1, "value_coefficient": 1.0}
    # Half the error of 0.5 is taken in the first step; 0.75 is out of 0.5 +- 0.1, so that the second takes none.
    np.testing.assert_allclose(updated(rollout, **options)[0]["critic"][0], 0.75, rtol=1e-6)
    free = updated(rollout, **(options | {"value_clip_epsilon": None}))[0]
    np.testing.assert_allclose(free["critic"][0], 0.875, rtol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "next_state", "perspective", "advantage"),
    [
        # delta = (1, 1.75, 2.5), the trace decays by a quarter.
        ([0, 0, 0], [0, 0, 0], [1, 2, 3], None, [1.59375, 2.375, 2.5]),
        ([0, 1, 0], [0, 0, 0], [1, 4, 3], None, [1.25, 1.0, 2.5]),
        # The true successor of the truncated step is state 4, of value 7.
        ([0, 0, 0], [0, 1, 0], [1, 4, 3], None, [2.125, 4.5, 2.5]),
        ([0, 0, 0], [0, 0, 1], [1, 2, 3], None, [1.59375, 2.375, 2.5]),
        # The opponent moves next: delta = (1 - 0.5 - 0.5, 2 - 0.75 - 1, 3 - 1.5), the trace decays by minus a quarter.
        ([0, 0, 1], [0, 0, 0], [1, 2, 4], -1.0, [0.03125, -0.125, 1.5]),
    ],
)
def test_targets_are_lambda_returns_of_true_successors(terminated, truncated, next_state, perspective, advantage):
    extras = None if perspective is None else {"perspective": jnp.full((3, 1), perspective)}
    rollout = steps([0, 1, 2], [0, 1, 0], [1.0, 2.0, 3.0], terminated, truncated, next_state, extras=extras)
    # Each of three states counts a third: a rate of three times takes every value to its target.
    params, _ = updated(rollout, learning_rate=3.0, value_coefficient=1.0)
    np.testing.assert_allclose(params["critic"][:3], VALUES[:3] + np.array(advantage), rtol=1e-5)
    # The policy gradient is the advantage, a third of it, times (1/2, -1/2), by the rate of three.
    expected = 0.5 * np.array(advantage) * [1.0, -1.0, 1.0]
    np.testing.assert_allclose(params["actor"][:3, 0], expected, rtol=1e-5)


def test_masks_restrict_the_policy_that_is_trained():
    rollout = steps([0], [1], [1.0], [1], [0], [4], ratio=0.5)
    masked = rollout.replace(transition=rollout.transition.replace(action_mask=jnp.array([[[False, True]]])))
    params, metrics = updated(masked)
    # The only action cannot become likelier.
    np.testing.assert_array_equal(params["actor"], 0.0)
    assert float(metrics["entropy"]) == 0.0 and float(metrics["approximate_kl"]) == 0.0


def random_rollout(num_steps=8, num_envs=4):
    generator = np.random.default_rng(0)
    shape = (num_steps, num_envs)
    states = generator.integers(0, NUM_STATES, (2, *shape))
    terminated, truncated = generator.random((2, *shape)) < 0.15
    actions, rewards = generator.integers(0, 2, shape), generator.normal(size=shape)
    return steps(states[0], actions, rewards, terminated, truncated & ~terminated, states[1])


def test_a_changed_number_is_the_same_program():
    traces = []

    def apply(*args, **kwargs):
        traces.append(1)
        return apply_table(*args, **kwargs)

    rollout = random_rollout()
    options = {"value_clip_epsilon": 0.2, "target_kl": 0.1}
    learner = make_ppo(TABLE._replace(apply=apply), optax.sgd(0.1), **options)
    other = make_ppo(
        TABLE, optax.sgd(0.1), discount=0.5, trace_decay=0.1, clip_epsilon=0.3, value_clip_epsilon=0.3, target_kl=0.2
    )
    update, state = jax.jit(learner.update), learner.init(KEY)
    state, _ = update(state, KEY, rollout)
    num_traces = len(traces)
    for seed in range(2):
        state, _ = update(state, jax.random.key(seed), rollout)
    changed = state.replace(hyperparameters=other.init(KEY).hyperparameters)
    expected, _ = jax.jit(other.update)(changed, KEY, rollout)
    actual, _ = update(changed, KEY, rollout)
    assert len(traces) == num_traces and update._cache_size() == 1
    np.testing.assert_array_equal(actual.params["critic"], expected.params["critic"])
    assert not np.allclose(actual.params["critic"], update(state, KEY, rollout)[0].params["critic"])
    # And so do two runs that differ in nothing else.
    programs = [
        re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(made.update)(made.init(KEY), KEY, rollout)))
        for made in (make_ppo(TABLE, optax.sgd(0.1), **options), other)
    ]
    assert programs[0] == programs[1]


def test_target_kl_keeps_the_parameters_of_before_the_offending_step():
    rollout = random_rollout()
    run = partial(updated, rollout, learning_rate=2.0)
    once, _ = run()
    # The first step of a rollout has no divergence yet; the second sees what the first did.
    stopped, metrics = run(num_epochs=4, target_kl=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), stopped, once)
    assert float(metrics["stopped"]) == 0.75
    free, metrics = run(num_epochs=4, target_kl=1e6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), free, run(num_epochs=4)[0])
    assert float(metrics["stopped"]) == 0.0 and not np.allclose(free["critic"], once["critic"])


def test_a_stop_holds_the_optimiser_too_and_ends_with_the_rollout():
    learner = make_ppo(TABLE, optax.adam(0.1), **(PLAIN | {"num_epochs": 3, "target_kl": 1e-6}))
    state, update = learner.init(KEY), jax.jit(learner.update)
    for number in (1, 2):
        # The behaviour is that of the policy: no divergence at first.
        rollout = random_rollout()
        log_probs = jax.nn.log_softmax(rollout.transition.observation @ state.params["actor"])
        behavior = jnp.take_along_axis(log_probs, rollout.transition.action[..., None], -1)[..., 0]
        rollout = rollout.replace(transition=rollout.transition.replace(behavior_log_prob=behavior))
        state, _ = update(state, KEY, rollout)
        assert int(optax.tree_utils.tree_get(state.opt_state, "count")) == number


def test_devices_agree_with_one_device():
    rollout, options = random_rollout(), {"num_epochs": 2, "num_minibatches": 2, "target_kl": 0.01}
    alone = make_ppo(TABLE, optax.sgd(2.0), **options)
    learner = make_ppo(TABLE, optax.sgd(2.0), axis_name="device", **options)
    expected, expected_metrics = jax.jit(alone.update)(alone.init(KEY), KEY, rollout)
    parts = jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=1)), rollout)
    update = jax.jit(jax.vmap(learner.update, (None, None, 0), axis_name="device"))
    actual, metrics = update(learner.init(KEY), KEY, parts)
    assert 0.0 < float(expected_metrics["stopped"]) < 1.0
    for device in range(2):
        for one, other in ((actual.params, expected.params), (metrics, expected_metrics)):
            jax.tree.map(
                lambda a, b, device=device: np.testing.assert_allclose(a[device], b, rtol=1e-4, atol=1e-5), one, other
            )


MAZE = make_environment(1)
LENGTHS = (None, 2, 1)


@pytest.mark.parametrize("memory", [GRU(hidden_size=6), LRU(hidden_size=6, state_size=4)], ids=["gru", "lru"])
def test_sequences_stay_whole_and_start_from_their_carries(memory):
    """At a learning rate of zero the policy is the one that acted, if every step sees what it saw then."""
    made = make_actor_critic(MAZE.observation_space, MAZE.action_space, encoder=MLP((4,)), memory=memory, shared=False)
    params = jax.jit(made.init)(KEY)
    params["actor"]["head"] = jax.tree.map(lambda leaf: 100.0 * leaf, params["actor"]["head"])
    collector = make_rollout_collector(MAZE, as_policy(made), num_envs=4, num_steps=8)
    state, collect = jax.jit(collector.init)(KEY, params), jax.jit(collector.collect)
    # The second rollout starts in the middle of episodes.
    state, _, _ = collect(state, params, KEY)
    _, rollout, _ = collect(state, params, jax.random.key(1))
    assert not rollout.transition.first[0].all() and rollout.transition.first[1:].any()

    def measure(sequence_length):
        options = {"num_minibatches": 2, "num_epochs": 2, "normalize_advantages": False}
        learner = make_ppo(made, optax.sgd(0.0), sequence_length=sequence_length, **options)
        return learner.update(learner.init(KEY, params), KEY, rollout)[1]

    whole, *parts = jax.jit(lambda: [measure(length) for length in LENGTHS])()
    for metrics in (whole, *parts):
        assert float(metrics["approximate_kl"]) < 1e-7 and float(metrics["clip_fraction"]) == 0.0
        for name in set(metrics) - {"gradient_norm", "approximate_kl"}:
            np.testing.assert_allclose(metrics[name], whole[name], rtol=1e-3, atol=1e-5, err_msg=name)
    # Shorter sequences cut the gradient through time.
    assert float(parts[-1]["gradient_norm"]) != pytest.approx(float(whole["gradient_norm"]), rel=1e-4)


def apply_sum(params, carry, observation, *, first, action_mask=None):
    """The value is `params` times the sum of the observations of the episode."""

    def step(total, inputs):
        observation, first = inputs
        total = jnp.where(first, 0.0, total) + observation
        return total, total

    carry, total = jax.lax.scan(step, carry, (observation, first))
    return carry, Categorical(logits=jnp.zeros((*total.shape, 2))), params * total


def test_recurrent_values_of_successors_use_the_carry_after_the_step():
    made = ActorCritic(init=lambda key: jnp.float32(2.0), initial_carry=jnp.zeros, apply=apply_sum)
    column = lambda values, dtype=jnp.float32: jnp.asarray(values, dtype)[:, None]  # noqa: E731
    transition = Transition(
        observation=column([1.0, 10.0, 100.0]),
        action=column([0, 0, 0], jnp.int32),
        behavior_log_prob=jnp.full((3, 1), jnp.log(0.5)),
        reward=column([0.0, 0.0, 0.0]),
        terminated=column([0, 0, 0], bool),
        truncated=column([0, 1, 0], bool),
        next_observation=column([10.0, 20.0, 200.0]),
        first=column([0, 0, 1], bool),
    )
    # The carry before the rollout is 5, and 100 is the first observation of a new episode.
    rollout = Rollout(transition=transition, carry=column([5.0, 6.0, 16.0, 100.0]))
    learner = make_ppo(made, optax.sgd(0.0), **(PLAIN | {"trace_decay": 0.0, "discount": 1.0, "num_epochs": 1}))
    _, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, rollout)
    value = 2.0 * np.array([6.0, 16.0, 100.0])
    next_value = 2.0 * np.array([16.0, 36.0, 300.0])
    np.testing.assert_allclose(metrics["value_loss"], 0.5 * np.mean((next_value - value) ** 2), rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_loss"], -np.mean(next_value - value), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 0}, "`num_epochs` must be at least 1, got 0"),
        ({"num_minibatches": -1}, "`num_minibatches` must be at least 1, got -1"),
        ({"sequence_length": 0}, "`sequence_length` must be at least 1, got 0"),
    ],
)
def test_refuses_counts_that_are_not_positive(options, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(TABLE, optax.sgd(0.1), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 3}, "`sequence_length` must divide the 8 steps of a rollout, got 3"),
        (
            {"num_minibatches": 3},
            "must divide the 8 sequences of an environment or the 4 environments of a device, got 3",
        ),
        ({"num_minibatches": 8, "sequence_length": 4}, "divide the 2 sequences of .* got 8; try 2 or 4."),
    ],
)
def test_refuses_batches_that_do_not_divide(options, message):
    learner = make_ppo(TABLE, optax.sgd(0.1), **options)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(learner.update, learner.init(KEY), KEY, random_rollout())


def train(agent, environment, num_updates, *, num_envs, num_steps):
    collector = make_rollout_collector(environment, agent.policy, num_envs=num_envs, num_steps=num_steps)
    program = make_program(collector, agent.make_learner(collector))
    return jax.jit(lambda key: run_updates(program, program.init(key), num_updates))(KEY)


def make_bandit(rewards):
    """Two arms; every pull is an episode."""

    def step(key, state, action):
        yes, no = jnp.ones((), bool), jnp.zeros((), bool)
        return state, TimeStep(
            observation=jnp.ones(1), reward=jnp.asarray(rewards)[action], terminated=yes, truncated=no
        )

    return Environment(
        name="bandit",
        sample_task=lambda key, level=None: (),
        reset=lambda key, task: (jnp.zeros(()), first_timestep(jnp.ones(1))),
        step=step,
        observation_space=Box((1,)),
        action_space=Discrete(2),
        max_steps=1,
    )


def test_learns_a_bandit():
    table = TABLE._replace(init=lambda key: {"actor": jnp.zeros((1, 2)), "critic": jnp.zeros(1)})
    agent = make_agent(
        Box((1,)),
        Discrete(2),
        policy=lambda observation_space, action_space: table,
        optimizer=partial(make_adam, learning_rate=0.1),
        num_updates=40,
    )
    state, metrics = train(agent, make_bandit([0.2, 1.0]), 40, num_envs=8, num_steps=4)
    assert float(jax.nn.softmax(state.learner.params["actor"])[0, 1]) > 0.9
    np.testing.assert_allclose(state.learner.params["critic"], 1.0, atol=0.15)
    assert float(metrics["rollout/episode_return"].value) > 0.8


@pytest.mark.parametrize("normalize_observations", [False, True])
def test_learns_to_remember(normalize_observations):
    agent = make_agent(
        MAZE.observation_space,
        MAZE.action_space,
        policy=partial(make_actor_critic, encoder=MLP((16,)), memory=GRU(hidden_size=16), shared=True),
        optimizer=partial(make_adam, learning_rate=1e-2, max_gradient_norm=0.5),
        num_updates=40,
        normalize_observations=normalize_observations,
        entropy_coefficient=0.01,
    )
    state, _ = train(agent, MAZE, 40, num_envs=16, num_steps=16)
    params = state.learner.params
    results = jax.jit(make_evaluator(MAZE, agent.policy, num_episodes=64))(params, KEY)
    # Without memory half of the turns are right.
    assert float(results["success"].mean()) > 0.95
    if normalize_observations:
        assert set(params) == {"params", "statistics"} and float(params["statistics"].count) == 40 * 16 * 16


def test_agents_normalise_for_the_learner_as_for_the_policy():
    agent = make_agent(
        MAZE.observation_space,
        MAZE.action_space,
        policy=partial(make_actor_critic, encoder=MLP((4,)), shared=True),
        optimizer=lambda num_updates: optax.sgd(0.0),
        num_updates=3,
        num_minibatches=2,
        normalize_observations=True,
    )
    state, metrics = train(agent, MAZE, 3, num_envs=4, num_steps=4)
    # No step was taken; the statistics changed from rollout to rollout, for the acting policy and the learner alike.
    assert float(metrics["train/approximate_kl"].value) < 1e-7
    assert float(state.learner.params["statistics"].count) == 48.0


def test_agents_tell_the_optimiser_the_length_of_the_run():
    told = []

    def optimizer(num_updates):
        told.append(num_updates)
        return optax.sgd(0.1)

    spaces = Box((NUM_STATES,)), Discrete(2)
    agent = make_agent(
        *spaces, policy=lambda *given: TABLE, optimizer=optimizer, num_updates=7, num_epochs=3, num_minibatches=2
    )
    assert told == [7 * 3 * 2]
    learner = agent.make_learner(None)
    state = learner.init(KEY, {"actor": jnp.ones((NUM_STATES, 2)), "critic": VALUES})
    np.testing.assert_array_equal(state.params["actor"], 1.0)
    assert agent.policy.apply(state.params, (), jnp.zeros((1, 1, NUM_STATES)), first=None)[1].logits.shape == (1, 1, 2)
    with pytest.raises(TypeError, match="clip_epsilo"):
        make_agent(*spaces, policy=lambda *given: TABLE, optimizer=optimizer, num_updates=7, clip_epsilo=0.1)

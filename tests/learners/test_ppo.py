"""PPO on tables whose every step is worked out by hand, and what it refuses."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.ppo import make_agent, make_ppo
from jaxagents.losses.policy_gradient import policy_gradient_loss
from jaxagents.ops.advantages import vtrace
from jaxagents.ops.distributions import Categorical
from jaxagents.ops.schedules import linear_schedule
from jaxagents.types import ActorCritic, Box, Discrete, PolicyInput, Rollout, Stateful, Transition
from tests.fakes import make_world, require_agreement, with_numbers

KEY = jax.random.key(0)
NUM_STATES = 5


def apply_table(params, carry, inputs):
    logits, value = inputs.observation @ params["actor"], inputs.observation @ params["critic"]
    return carry, Categorical(logits=logits).mask(inputs.action_mask), value


def init_table(key):
    del key
    return {"actor": jnp.zeros((NUM_STATES, 2)), "critic": jnp.array([0.5, 1.0, 1.5, 2.0, 7.0])}


# One row of logits and one value per state; actor and critic share nothing.
TABLE = ActorCritic(init=init_table, initial_carry=lambda batch_shape: (), apply=apply_table)
VALUES = init_table(KEY)["critic"]


def steps(state, action, reward, terminated, truncated, next_state, *, ratio=1.0, extras=None):
    """Returns a rollout of lists `[T]` of one environment, or `[T, B]`; both actions were as likely, up to `ratio`.

    Rollouts by hand all have four steps, which makes them one program; what a mean is taken of may be repeated.
    """
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


def updated(rollout, **options):
    """Takes one step of plain gradient descent of rate 1 from the initial table."""
    learner = make_ppo(TABLE, optax.sgd(1.0), **(PLAIN | options))
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, rollout)
    return state.params, metrics


def test_one_step_by_hand():
    params, metrics = updated(steps([1] * 4, [1] * 4, [2.0] * 4, [1] * 4, [0] * 4, [4] * 4))
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


def test_the_learning_rate_is_a_metric():
    """Of two updates of four optimiser steps each, annealed to zero: 1, 7/8, 6/8, 5/8 of 0.8, then 4/8 to 1/8."""
    rollout = steps([1] * 4, [1] * 4, [2.0] * 4, [1] * 4, [0] * 4, [4] * 4)
    options = PLAIN | {"num_epochs": 2, "num_minibatches": 2}
    learner = make_ppo(TABLE, make_adam(8, learning_rate=0.8, anneal=True), **options)
    state, metrics = learner.update(learner.init(KEY), KEY, rollout)
    np.testing.assert_allclose(metrics["learning_rate"], 0.8 * 6.5 / 8, rtol=1e-6)
    np.testing.assert_allclose(learner.update(state, KEY, rollout)[1]["learning_rate"], 0.8 * 2.5 / 8, rtol=1e-6)


def test_losses_are_slots_whose_numbers_are_arrays():
    """A plain policy gradient has the same first step; twice the value loss goes the whole way to the target of 2."""
    rollout = steps([1] * 4, [1] * 4, [2.0] * 4, [1] * 4, [0] * 4, [4] * 4)

    def scaled(value, old_value, target, *, scale):
        return 0.5 * scale * jnp.square(value - target)

    slots = {"loss": lambda log_prob, _, advantage: -advantage * log_prob, "value_loss": partial(scaled, scale=2.0)}
    params, metrics = updated(rollout, **slots)
    np.testing.assert_allclose(params["actor"], [[0, 0], [-0.5, 0.5], [0, 0], [0, 0], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(params["critic"], VALUES.at[1].set(2.0), rtol=1e-6)
    np.testing.assert_allclose(metrics["policy_loss"], np.log(2.0), rtol=1e-6)
    state = make_ppo(TABLE, optax.sgd(1.0), **slots).init(KEY)
    assert float(state.settings.numbers["value_loss"]["scale"]) == 2.0


def test_numbers_may_be_schedules():
    """The entropy bonus holds for the first update alone; nothing else moves the actor."""
    rollout = steps([1] * 4, [1] * 4, [1.0] * 4, [1] * 4, [0] * 4, [4] * 4)  # As the value says.
    schedule = linear_schedule(start=0.5, end=0.0, num_updates=1)
    params = init_table(KEY) | {"actor": jnp.zeros((NUM_STATES, 2)).at[1].set(jnp.array([0.0, 1.0]))}
    learner, constant = (
        make_ppo(TABLE, optax.sgd(1.0), **(PLAIN | {"entropy_coefficient": number})) for number in (schedule, 0.5)
    )
    update = jax.jit(learner.update)
    first, _ = update(learner.init(KEY, params), KEY, rollout)
    second, _ = update(first, KEY, rollout)
    expected, _ = jax.jit(constant.update)(constant.init(KEY, params), KEY, rollout)
    np.testing.assert_allclose(first.params["actor"], expected.params["actor"], rtol=1e-6)
    assert float(first.params["actor"][1, 1]) < 1.0
    np.testing.assert_array_equal(second.params["actor"], first.params["actor"])
    assert update._cache_size() == 1 and float(second.settings.memory["entropy_coefficient"].update) == 2.0


def test_advantages_are_a_slot_that_sees_the_ratio():
    """The actions are half as likely as when they were taken: so are errors and advantages of V-trace."""
    rollout = steps([1] * 4, [1] * 4, [2.0] * 4, [1] * 4, [0] * 4, [4] * 4, ratio=0.5)
    slots = {"loss": policy_gradient_loss, "advantage": vtrace, "kl_coefficient": 2.0}
    params, metrics = updated(rollout, **slots)
    # With the advantage 0.5; the estimate of the KL divergence, ratio - 1 - log(ratio), has the slope ratio - 1.
    slope = 0.5 * (0.5 - 2.0 * (0.5 - 1.0))
    np.testing.assert_allclose(params["actor"][1], [-slope, slope], atol=1e-6)
    np.testing.assert_allclose(params["critic"], VALUES.at[1].set(1.25), rtol=1e-6)  # Half of the way to 1.5.
    np.testing.assert_allclose(metrics["approximate_kl"], 0.5 - 1.0 - np.log(0.5), rtol=1e-5)


# Weighs the value loss by how many elements it has seen, and counts those of the update.
COUNTING = Stateful(
    init=lambda num_updates: jnp.float32(num_updates),
    apply=lambda memory, value, old_value, target: (memory * jnp.square(value - target), jnp.float32(value.size)),
    update=lambda memory, summary: memory + summary,
)


def test_slots_may_remember_over_epochs_minibatches_and_devices():
    options = PLAIN | {"num_epochs": 3, "num_minibatches": 2, "value_loss": COUNTING, "num_updates": 7}
    learner = make_ppo(TABLE, optax.sgd(0.0), **options)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, MIXED)
    assert float(state.settings.memory["value_loss"]) == 7.0 + 3 * 4
    # Values 0.5, 1, 1.5, 2 of the targets 1, 0.5, 2.5, 0.5.
    np.testing.assert_allclose(metrics["value_loss"], 7.0 * np.mean([0.25, 0.25, 1.0, 2.25]), rtol=1e-6)
    devices = make_ppo(TABLE, optax.sgd(0.0), axis_name="device", **options)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), MIXED)
    update = jax.jit(jax.vmap(devices.update, (None, None, 0), axis_name="device"))
    state, _ = update(devices.init(KEY), KEY, both)
    np.testing.assert_array_equal(state.settings.memory["value_loss"], [7.0 + 3 * 8] * 2)


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
    equal = steps([0, 1] * 2, [0, 1] * 2, [1.0, 1.5] * 2, [1] * 4, [0] * 4, [4] * 4)
    params, _ = updated(equal, normalize_advantages=True)
    np.testing.assert_array_equal(params["actor"], 0.0)
    np.testing.assert_allclose(params["critic"], VALUES.at[:2].set(jnp.array([0.625, 1.125])))
    # The successor's value is part of advantage and target: neither of them moves it.
    bootstrapped = steps([0, 1] * 2, [0, 1] * 2, [1.0, 1.5] * 2, [0] * 4, [1] * 4, [2, 4] * 2)
    params, _ = updated(bootstrapped, value_coefficient=0.0)
    np.testing.assert_array_equal(params["critic"], VALUES)
    assert np.abs(params["actor"][:2]).min() > 0.0
    params, _ = updated(bootstrapped)
    assert not np.any(params["critic"][:2] == VALUES[:2])
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
    state, _ = jax.jit(learner.update)(state, KEY, steps([0] * 4, [0] * 4, [0.5] * 4, [1] * 4, [0] * 4, [4] * 4))
    p = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    entropy = -np.sum(p * np.log(p))
    np.testing.assert_allclose(state.params["actor"][0], [1.0, 0.0] - 0.1 * p * (np.log(p) + entropy), rtol=1e-5)
    assert float(state.params["actor"][0, 0]) < 1.0


def test_value_clipping_stops_a_value_that_went_far():
    rollout = steps([0, 1] * 2, [0] * 4, [1.0] * 4, [1] * 4, [0] * 4, [4] * 4)
    options = {"num_epochs": 2, "value_clip_epsilon": 0.1, "value_coefficient": 1.0}
    # Half the error of 0.5 is taken in the first step; 0.75 is out of 0.5 +- 0.1, so that the second takes none.
    np.testing.assert_allclose(updated(rollout, **options)[0]["critic"][0], 0.75, rtol=1e-6)
    free = updated(rollout, **(options | {"value_clip_epsilon": 10.0}))[0]
    np.testing.assert_allclose(free["critic"][0], 0.875, rtol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "next_state", "perspective", "advantage"),
    [
        # delta = (1 + 0.5 - 0.5, 2 + 0.75 - 1, 3 + 1 - 1.5, 4 + 3.5 - 2), the trace decays by a quarter.
        ([0, 0, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4], None, [1.6796875, 2.71875, 3.875, 5.5]),
        ([0, 1, 0, 0], [0, 0, 0, 0], [1, 4, 3, 4], None, [1.25, 1.0, 3.875, 5.5]),
        # The true successor of the truncated step is state 4, of value 7: delta = 2 + 3.5 - 1.
        ([0, 0, 0, 0], [0, 1, 0, 0], [1, 4, 3, 4], None, [2.125, 4.5, 3.875, 5.5]),
        # The end of the rollout cuts like a limit; a terminal state is worth nothing.
        ([0, 0, 0, 0], [0, 0, 1, 1], [1, 2, 3, 4], None, [1.59375, 2.375, 2.5, 5.5]),
        ([0, 0, 0, 1], [0, 0, 1, 0], [1, 2, 3, 4], None, [1.59375, 2.375, 2.5, 2.0]),
        # The opponent moves next: delta = (1 - 0.5 - 0.5, 2 - 0.75 - 1, 3 - 1.5, 4 - 2), by minus a quarter.
        ([0, 0, 1, 1], [0, 0, 0, 0], [1, 2, 4, 4], -1.0, [0.03125, -0.125, 1.5, 2.0]),
    ],
)
def test_targets_are_lambda_returns_of_true_successors(terminated, truncated, next_state, perspective, advantage):
    extras = None if perspective is None else {"perspective": jnp.full((4, 1), perspective)}
    reward = [1.0, 2.0, 3.0, 4.0]
    rollout = steps([0, 1, 2, 3], [0, 1, 0, 1], reward, terminated, truncated, next_state, extras=extras)
    # Each of four states counts a quarter: a weight of four takes every value to its target.
    params, _ = updated(rollout, value_coefficient=4.0)
    np.testing.assert_allclose(params["critic"][:4], VALUES[:4] + np.array(advantage), rtol=1e-5)
    # The policy gradient is a quarter of the advantage, times (1/2, -1/2).
    expected = 0.125 * np.array(advantage) * [1.0, -1.0, 1.0, -1.0]
    np.testing.assert_allclose(params["actor"][:4, 0], expected, rtol=1e-5)


def test_masks_restrict_the_policy_that_is_trained():
    rollout = steps([0] * 4, [1] * 4, [1.0] * 4, [1] * 4, [0] * 4, [4] * 4, ratio=0.5)
    mask = jnp.broadcast_to(jnp.array([False, True]), (4, 1, 2))
    params, metrics = updated(rollout.replace(transition=rollout.transition.replace(action_mask=mask)))
    # The only action cannot become likelier.
    np.testing.assert_array_equal(params["actor"], 0.0)
    assert float(metrics["entropy"]) == 0.0 and float(metrics["approximate_kl"]) == 0.0


def random_rollout(num_steps=4, num_envs=4):
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
    changed = state.replace(settings=other.init(KEY).settings)
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


def on_policy(rollout, params):
    """Returns the rollout as if the policy itself had acted, with no divergence yet."""
    logits = np.asarray(rollout.transition.observation) @ np.asarray(params["actor"])
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    behavior = np.take_along_axis(log_probs, np.asarray(rollout.transition.action)[..., None], -1)[..., 0]
    return rollout.replace(transition=rollout.transition.replace(behavior_log_prob=jnp.asarray(behavior)))


TWO_STEPS = {"num_epochs": 2, "num_minibatches": 1, "target_kl": 1e-6}


@pytest.mark.exhaustive
def test_target_kl_keeps_what_was_before_the_offending_step_until_the_next_rollout():
    rollout = random_rollout()
    learner = make_ppo(TABLE, optax.adam(0.1), **TWO_STEPS)
    once = make_ppo(TABLE, optax.adam(0.1), num_epochs=1, num_minibatches=1)
    start, update, update_once = learner.init(KEY), jax.jit(learner.update), jax.jit(once.update)
    # The first step of a rollout has no divergence; the second sees what the first did, and is not taken.
    state, metrics = update(start, KEY, rollout)
    expected, _ = update_once(start, KEY, rollout)
    assert float(metrics["stopped"]) == 0.5
    for _ in range(2):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), state.params, expected.params)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8), state.opt_state, expected.opt_state)
        following = on_policy(rollout, state.params)
        state, expected = update(state, KEY, following)[0], update_once(expected, KEY, following)[0]
    # The rate falls with all steps of the run, be they taken or not.
    falling = make_ppo(TABLE, optax.scale_by_schedule(optax.linear_schedule(-0.1, 0.0, 4)), **TWO_STEPS)
    state, metrics = jax.jit(falling.update)(falling.init(KEY), KEY, rollout)
    assert float(metrics["stopped"]) == 0.5 and int(state.opt_state.count) == 2
    lenient = with_numbers(start, target_kl=1e6)
    free, metrics = update(lenient, KEY, rollout)
    assert float(metrics["stopped"]) == 0.0 and int(optax.tree_utils.tree_get(free.opt_state, "count")) == 2


def test_minibatches_of_little_divergence_do_not_end_a_stop():
    rollout = steps([[0, 1]], [[0, 0]], [[1.0, 1.0]], [[1, 1]], [[0, 0]], [[4, 4]])
    # The first environment, a minibatch of its own, is far from its behaviour; the other never is.
    behavior = jnp.log(jnp.array([[0.1, 0.5]]))
    rollout = rollout.replace(transition=rollout.transition.replace(behavior_log_prob=behavior))
    params, metrics = updated(rollout, num_epochs=3, num_minibatches=2, target_kl=0.1, value_coefficient=0.01)
    assert float(metrics["stopped"]) in (1.0, pytest.approx(5 / 6))
    np.testing.assert_array_equal(params["actor"][0], 0.0)


@pytest.mark.parametrize("slots", [{}, pytest.param({"advantage": vtrace}, marks=pytest.mark.exhaustive)])
def test_devices_agree_with_one_device(slots):
    alone = make_ppo(TABLE, optax.adam(0.1), **TWO_STEPS, **slots)
    learner = make_ppo(TABLE, optax.adam(0.1), axis_name="device", **TWO_STEPS, **slots)
    state = alone.init(KEY)
    for target_kl in (1e-6, 1e6):
        state = with_numbers(state, target_kl=target_kl)
        require_agreement(alone, learner, state, random_rollout(), lambda state, metrics: (state.params, metrics))


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
        jax.eval_shape(learner.update, learner.init(KEY), KEY, random_rollout(8))


def test_agents_normalise_for_the_learner_as_for_the_policy():
    agent = make_agent(
        make_world(None, None, Box((NUM_STATES,)), Discrete(2), 1),
        policy=lambda *spaces: TABLE,
        optimizer=lambda num_updates: optax.sgd(0.0),
        num_minibatches=1,
        normalize_observations=True,
    )
    learner, rollout = agent.make_learner(None, 3), random_rollout()
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(NUM_STATES, 2)), jnp.float32)
    params = learner.init(KEY).params | {"params": {"actor": logits, "critic": VALUES}}
    state, update = learner.init(KEY, params), jax.jit(learner.update)
    behaviors = []
    for _ in range(2):
        transition = rollout.transition
        _, distribution = agent.policy.apply(
            state.params, (), PolicyInput(observation=transition.observation, first=transition.first)
        )
        behaviors.append(distribution.log_prob(transition.action))
        transition = transition.replace(behavior_log_prob=behaviors[-1])
        state, metrics = update(state, KEY, rollout.replace(transition=transition))
        assert float(metrics["approximate_kl"]) < 1e-7
    # The statistics changed in between, for both.
    assert not np.allclose(*behaviors) and float(state.params["statistics"].count) == 32.0


def test_agents_tell_the_optimiser_the_length_of_the_run():
    result = []

    def optimizer(num_updates):
        result.append(num_updates)
        return optax.sgd(0.1)

    world = make_world(None, None, Box((NUM_STATES,)), Discrete(2), 1)
    agent = make_agent(world, policy=lambda *given: TABLE, optimizer=optimizer, num_epochs=3, num_minibatches=2)
    learner = agent.make_learner(None, 7)
    assert result == [7 * 3 * 2]
    state = learner.init(KEY, {"actor": jnp.ones((NUM_STATES, 2)), "critic": VALUES})
    np.testing.assert_array_equal(state.params["actor"], 1.0)
    assert agent.policy.apply(state.params, (), PolicyInput(observation=jnp.zeros((1, 1, NUM_STATES)), first=None))[
        1
    ].logits.shape == (1, 1, 2)
    with pytest.raises(TypeError, match="clip_epsilo"):
        make_agent(world, policy=lambda *given: TABLE, optimizer=optimizer, clip_epsilo=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discount": 1.1}, r"`discount` must be in \[0, 1\], got 1.1"),
        ({"trace_decay": -0.1}, r"`trace_decay` must be in \[0, 1\], got -0.1"),
        ({"clip_epsilon": 0.0}, "`clip_epsilon` must be positive, got 0.0"),
        ({"value_clip_epsilon": -1.0}, "`value_clip_epsilon` must be positive, got -1.0"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(None, optax.sgd(1.0), **options)

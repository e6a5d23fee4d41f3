"""Preference learning: the gradient of the whole loss, who acts, and when the reference is renewed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.environments.text.arithmetic import make_environment
from jaxagents.language.demonstrations import make_demonstrated_collector
from jaxagents.learners.preference import make_agent, make_preference
from jaxagents.losses.preference import dpo, kto, simpo
from jaxagents.ops.pairs import best_against_worst, success_against_failure
from jaxagents.ops.schedules import linear_schedule
from jaxagents.policies.contexts import to_rows
from jaxagents.training.program import make_program
from jaxagents.types import Collector, Learner, Stateful
from tests.fakes import score_tokens

KEY = jax.random.key(5)
RATE = 0.1


@pytest.fixture(scope="module")
def sums():
    """Returns a world of one turn."""
    return make_environment(num_digits=(1,), num_terms=(2,), operations=("+",))


@pytest.fixture(scope="module")
def played(sums, speak, params_of):
    """Returns a policy, its parameters, others, and a batch of two episodes per task."""
    policy = speak(sums, context_turns=1, prompt=False)
    params = params_of(policy)
    collector = make_demonstrated_collector(sums, policy, num_groups=3, group_size=2)
    batch = jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)[1]
    other = jax.tree.map(lambda leaf: leaf * 0.9, params)
    return policy, params, other, batch


def log_prob(policy, params, episode):
    scores = score_tokens(policy.model, params, to_rows(episode), policy.layout).log_prob
    return jnp.sum(scores.reshape(episode.tokens.shape) * episode.action_mask, axis=(1, 2))


@pytest.fixture(scope="module")
def learned(played):
    """Returns the state before and after an update in which policy and reference differ, and its metrics."""
    policy, params, other, batch = played
    learner = make_preference(
        policy.model,
        optax.sgd(RATE),
        loss=partial(dpo, coefficient=0.5),
        reference_acts=True,
        reference_every=2,
    )
    update = jax.jit(learner.update)
    before = learner.init(KEY, params).replace(reference=other)
    after, metrics = update(before, KEY, batch)
    return learner, update, before, after, metrics


@pytest.mark.slow
def test_the_step_is_the_gradient_of_the_mean_loss_of_the_pairs(played, learned):
    policy, params, other, batch = played
    *_, after, metrics = learned

    @jax.jit
    def expected(params):
        shown, own = (
            log_prob(policy, params, episode) - log_prob(policy, other, episode)
            for episode in (batch.demonstration, batch.own)
        )
        margin = jnp.repeat(shown, 2) - own
        return jnp.mean(jnp.log(1.0 + jnp.exp(-0.5 * margin))), jnp.mean(margin)

    (loss, margin), grads = jax.value_and_grad(expected, has_aux=True)(params)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["margin"].value, margin, rtol=1e-4)
    jax.tree.map(
        lambda new, old, grad: np.testing.assert_allclose(new, old - RATE * grad, rtol=1e-4, atol=1e-5),
        after.params,
        params,
        grads,
    )


@pytest.mark.exhaustive
def test_the_reference_acts_and_is_renewed_after_an_iteration(played, learned):
    learner, update, before, after, _ = learned
    jax.tree.map(np.testing.assert_array_equal, learner.acting(after), before.reference)
    renewed, _ = update(after, KEY, played[3])
    jax.tree.map(np.testing.assert_array_equal, learner.acting(renewed), renewed.params)
    assert int(renewed.num_updates) == 2 and learner.acting(renewed) is renewed.reference


@struct.dataclass
class Sides:
    """Stands for the state of a learner that acts with other parameters than it learns."""

    params: jax.Array
    opponent: jax.Array


def test_programs_ask_the_learner_who_acts():
    learner = Learner(
        init=lambda key, start=None: Sides(params=jnp.float32(1.0), opponent=jnp.float32(2.0)),
        update=lambda state, key, batch: (state, {"met": batch}),
        acting=lambda state: state.opponent,
    )
    collector = Collector(
        init=lambda key, params: {}, collect=lambda state, params, key: (state, params, {}), steps_per_collect=1
    )
    for asked, met in ((learner, 2.0), (learner._replace(acting=None), 1.0)):
        program = make_program(collector, asked)
        assert float(program.update(program.init(KEY))[1]["train/met"]) == met


@pytest.mark.exhaustive
def test_equal_episodes_teach_nothing(played, learned):
    policy, params, _, batch = played
    _, update, before, *_ = learned
    same = batch.replace(own=jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), batch.demonstration))
    after, metrics = update(before.replace(reference=params), KEY, same)
    np.testing.assert_allclose(metrics["loss"], np.log(2.0), rtol=1e-6)
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, atol=1e-6), after.params, params)


def test_iterations_have_an_update_at_least(sums, speak):
    agent = make_agent(sums, policy=speak, optimizer=lambda steps: optax.sgd(RATE), loss=dpo, reference_every=0)
    with pytest.raises(ValueError, match="`reference_every` must be at least 1, got 0"):
        agent.make_learner(None, 3)


@pytest.mark.exhaustive
def test_any_loss_and_source_of_pairs_takes_the_gradient_of_the_mean_over_what_counts(played):
    """KTO without pairs, and SimPO of the best and the worst of a group, against automatic differentiation."""
    policy, params, other, batch = played
    returns = jnp.where(jnp.arange(6) % 2 == 0, 1.0, 0.0)[:, None] * jnp.array(
        [[1.0], [1.0], [1.0], [1.0], [0.0], [0.0]]
    )
    own = batch.own.replace(reward=returns, success=returns[:, 0] > 0.0)
    length = jnp.sum(own.action_mask, axis=(1, 2))

    def kto_by_hand(params):
        ratio = log_prob(policy, params, own) - log_prob(policy, other, own)
        gain = ratio - jax.lax.stop_gradient(jnp.maximum(jnp.mean(ratio), 0.0))
        return jnp.mean(jax.nn.sigmoid(jnp.where(own.success, -0.5, 0.5) * gain))

    def simpo_by_hand(params):
        score = log_prob(policy, params, own) / length
        # The last of three groups has equal returns.
        return jnp.mean(jax.nn.softplus(1.0 - 2.0 * (score[0:4:2] - score[1:4:2])))

    for loss, source, expected, reference in (
        (partial(kto, coefficient=0.5), success_against_failure, kto_by_hand, True),
        (simpo, best_against_worst, simpo_by_hand, False),
    ):
        learner = make_preference(policy.model, optax.sgd(RATE), loss=loss, pairs=source, reference=reference)
        state = learner.init(KEY, params)
        state = state.replace(reference=other) if reference else state
        after, metrics = jax.jit(learner.update)(state, KEY, own)
        value, grads = jax.jit(jax.value_and_grad(expected))(params)
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-4)
        jax.tree.map(
            lambda new, old, grad: np.testing.assert_allclose(new, old - RATE * grad, rtol=1e-4, atol=1e-5),
            after.params,
            params,
            grads,
        )
        assert learner.acting is None


@pytest.mark.slow
def test_rows_of_all_devices_are_one_batch(played):
    """The point that KTO measures from, and the mean over unequally many pairs, are those of the whole batch."""
    policy, params, other, batch = played
    success = jnp.array([True, False, False, False, True, True])
    own = batch.own.replace(success=success)
    doubled = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[::-1]]), own)
    doubled = doubled.replace(group=jnp.arange(12) // 2)
    for loss in (dpo, kto):
        options = {"loss": partial(loss, coefficient=0.5), "pairs": success_against_failure}
        alone = make_preference(policy.model, optax.sgd(RATE), **options)
        spread = make_preference(policy.model, optax.sgd(RATE), axis_name="devices", **options)
        state = alone.init(KEY, params).replace(reference=other)
        expected, result = jax.jit(alone.update)(state, KEY, doubled)
        split = jax.tree.map(lambda leaf: leaf.reshape(2, 6, *leaf.shape[1:]), doubled)
        mapped = jax.vmap(spread.update, in_axes=(None, None, 0), axis_name="devices")
        after, metrics = jax.jit(mapped)(state, KEY, split)
        np.testing.assert_allclose(metrics["loss"][0], result["loss"], rtol=1e-5)
        jax.tree.map(lambda one, all: np.testing.assert_allclose(one[1], all, atol=1e-5), after.params, expected.params)


def sharpened(memory, log_prob, *, coefficient, **rows):
    """DPO whose coefficient grows with the rows that it has counted."""
    loss, counted = dpo(log_prob, **rows, coefficient=coefficient * (1.0 + memory))
    return (loss, counted), jnp.sum(counted, dtype=jnp.float32)


@pytest.mark.exhaustive
def test_slots_remember_what_all_devices_saw(played):
    policy, params, other, batch = played
    own = batch.own.replace(success=jnp.array([True, False, False, False, True, True]))
    doubled = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[::-1]]), own)
    doubled = doubled.replace(group=jnp.arange(12) // 2)
    added = {"init": lambda num_updates: jnp.float32(0.0), "update": lambda memory, summary: memory + summary}

    def counting(memory, episode):
        return success_against_failure(episode), jnp.sum(episode.success, dtype=jnp.float32)

    slots = {"loss": Stateful(apply=partial(sharpened, coefficient=0.5), **added)}
    slots["pairs"] = Stateful(apply=counting, **added)
    alone = make_preference(policy.model, optax.sgd(RATE), **slots)
    spread = make_preference(policy.model, optax.sgd(RATE), axis_name="devices", **slots)
    state = alone.init(KEY, params).replace(reference=other)
    update = jax.jit(alone.update)
    first, _ = update(state, KEY, doubled)
    # One failure of a group of two has a success to be compared with, on either half; six of twelve succeed.
    assert {name: float(memory) for name, memory in first.settings.memory.items()} == {"loss": 2.0, "pairs": 6.0}
    second, _ = update(state.replace(settings=first.settings), KEY, doubled)
    plain = make_preference(
        policy.model, optax.sgd(RATE), loss=partial(dpo, coefficient=1.5), pairs=success_against_failure
    )
    expected, _ = jax.jit(plain.update)(plain.init(KEY, params).replace(reference=other), KEY, doubled)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=1e-6), second.params, expected.params)
    split = jax.tree.map(lambda leaf: leaf.reshape(2, 6, *leaf.shape[1:]), doubled)
    mapped = jax.vmap(spread.update, in_axes=(None, None, 0), axis_name="devices")
    both, _ = jax.jit(mapped)(state, KEY, split)
    assert {name: memory.tolist() for name, memory in both.settings.memory.items()} == {
        "loss": [2.0] * 2,
        "pairs": [6.0] * 2,
    }


@pytest.mark.exhaustive
def test_the_coefficient_of_a_preference_follows_its_schedule(played):
    policy, params, other, batch = played
    schedule = linear_schedule(start=0.5, end=0.0)
    learner = make_preference(policy.model, optax.sgd(RATE), loss=partial(dpo, coefficient=schedule), num_updates=2)
    state, update = learner.init(KEY, params).replace(reference=other), jax.jit(learner.update)
    plain = make_preference(policy.model, optax.sgd(RATE), loss=partial(dpo, coefficient=0.5))
    begun, changed = plain.init(KEY, params).replace(reference=other), jax.jit(plain.update)
    for coefficient in (0.5, 0.25):
        after, metrics = update(state, KEY, batch)
        numbers = begun.settings.replace(numbers={"loss": {"coefficient": jnp.float32(coefficient)}})
        expected, plainly = changed(begun.replace(settings=numbers), KEY, batch)
        np.testing.assert_allclose(metrics["loss"], plainly["loss"], rtol=1e-5)
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=1e-6), after.params, expected.params)
        state = state.replace(settings=after.settings)


def test_what_acts_or_is_renewed_must_be_there(sums, speak):
    policy = speak(sums, context_turns=1, prompt=False)
    for options in ({"reference_acts": True}, {"reference_every": 2}):
        with pytest.raises(ValueError, match="`reference` must be true where it acts or is renewed"):
            make_preference(policy.model, optax.sgd(RATE), loss=simpo, reference=False, **options)

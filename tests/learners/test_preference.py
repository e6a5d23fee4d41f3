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
from jaxagents.losses.preference import dpo
from jaxagents.policies.contexts import score_tokens, to_rows
from jaxagents.training.program import make_program
from jaxagents.types import Collector, Learner

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
    said = score_tokens(policy.model, params, to_rows(episode), policy.layout).log_prob
    return jnp.sum(said.reshape(episode.tokens.shape) * episode.action_mask, axis=(1, 2))


@pytest.fixture(scope="module")
def learned(played):
    """Returns the state before and after an update in which policy and reference differ, and its metrics."""
    policy, params, other, batch = played
    learner = make_preference(
        policy.model, policy.layout, optax.sgd(RATE), loss=partial(dpo, coefficient=0.5), reference_every=2
    )
    update = jax.jit(learner.update)
    before = learner.init(KEY, params).replace(reference=other)
    after, metrics = update(before, KEY, batch)
    return learner, update, before, after, metrics


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
    np.testing.assert_allclose(metrics["margin"], margin, rtol=1e-4)
    jax.tree.map(
        lambda new, old, grad: np.testing.assert_allclose(new, old - RATE * grad, atol=1e-5),
        after.params,
        params,
        grads,
    )


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
        init=lambda key, params=None: Sides(params=jnp.float32(1.0), opponent=jnp.float32(2.0)),
        update=lambda state, key, batch: (state, {"met": batch}),
        acting=lambda state: state.opponent,
    )
    collector = Collector(
        init=lambda key, params: {}, collect=lambda state, params, key: (state, params, {}), steps_per_collect=1
    )
    for asked, met in ((learner, 2.0), (learner._replace(acting=None), 1.0)):
        program = make_program(collector, asked)
        assert float(program.update(program.init(KEY))[1]["train/met"]) == met


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

"""Supervised training: the loss by hand, what counts, and an expert that is imitated."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.language.demonstrations import make_demonstration_collector, make_demonstrations
from jaxagents.learners.supervised import make_agent, make_supervised
from jaxagents.losses.aggregation import token_mean
from jaxagents.ops.schedules import linear_schedule
from jaxagents.policies.contexts import to_rows
from jaxagents.types import Stateful
from tests.fakes import score_tokens

KEY = jax.random.key(11)


@pytest.fixture(scope="module")
def shown(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.3))(KEY, jnp.arange(16))
    return policy, params_of(policy), episode


def update(policy, params, episode, **options):
    learner = make_supervised(policy.model, optax.sgd(0.1), **options)
    return jax.jit(learner.update)(learner.init(KEY, params), KEY, episode)


@pytest.mark.slow
def test_the_loss_is_the_mean_over_what_was_said(shown):
    policy, params, episode = shown
    _, metrics = update(policy, params, episode)
    scored = score_tokens(policy.model, params, to_rows(episode), policy.layout)
    mask = np.asarray(episode.action_mask)
    log_prob = np.asarray(scored.log_prob).reshape(mask.shape)[mask]
    np.testing.assert_allclose(metrics["loss"], -log_prob.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["probability"], np.exp(log_prob).mean(), rtol=1e-5)


def test_only_successes_count_when_asked(shown):
    policy, params, episode = shown
    success = jnp.arange(16) < 5
    _, some = update(policy, params, episode.replace(success=success), only_success=True)
    first = jax.tree.map(lambda leaf: leaf[:5], episode.replace(layout=None)).replace(layout=episode.layout)
    _, expected = update(policy, params, first)
    np.testing.assert_allclose(some["loss"], expected["loss"], rtol=1e-5)


def test_weights_of_zero_teach_nothing(shown):
    policy, params, episode = shown
    state, metrics = update(policy, params, episode, action_weight=0.0)
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    assert float(metrics["loss"]) == 0.0
    with pytest.raises(ValueError, match="`thought_weight` must not be negative, got -1"):
        update(policy, params, episode, thought_weight=-1.0)


@pytest.mark.exhaustive
def test_weights_follow_their_schedules_and_aggregations_remember(shown):
    """The expert says actions alone: the loss is the weight of actions times that without one."""
    policy, params, episode = shown

    def counting(memory, view, *, axis_name):
        return token_mean(view, axis_name=axis_name), jnp.sum(view.mask, dtype=jnp.float32)

    aggregation = Stateful(
        init=lambda num_updates: jnp.float32(0.0), apply=counting, update=lambda memory, summary: memory + summary
    )
    options = {"aggregation": aggregation, "action_weight": linear_schedule(start=1.0, end=0.0), "num_updates": 2}
    learner = make_supervised(policy.model, optax.sgd(0.0), **options)
    state, step = learner.init(KEY, params), jax.jit(learner.update)
    losses = []
    for _ in range(2):
        state, metrics = step(state, KEY, episode)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses[1], 0.5 * losses[0], rtol=1e-6)
    assert losses[0] > 0.0 and float(state.settings.memory["aggregation"]) == 2.0 * np.sum(episode.action_mask)


def test_the_expert_speaks_in_the_slots_of_the_policy(shown, lake):
    policy, _, episode = shown
    layout = policy.layout
    output = np.asarray(episode.tokens)[:, :, layout.observation :][np.asarray(episode.valid)]
    assert (output[:, 1] == policy.tokenizer.marks["end"]).all()
    words = {policy.lexicon.text([row - 5]) for row in np.unique(output[:, 0])}
    assert words <= {"left", "down", "right", "up"} and len(words) > 2
    assert np.asarray(episode.action_valid)[np.asarray(episode.valid)].all()


@pytest.mark.exhaustive
def test_experts_without_noise_solve_their_tasks(lake, speak):
    policy = speak(lake, context_turns=1, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy))(KEY, jnp.arange(32))
    solved = np.asarray(episode.success)
    assert solved.mean() > 0.9  # Episodes are cut after six turns, which the longest ways do not fit into.
    np.testing.assert_array_equal(np.asarray(episode.reward).sum(axis=1) > 0.5, solved)


@pytest.mark.exhaustive
def test_a_fixed_set_of_transcripts_repeats_itself(lake, speak):
    policy = speak(lake, context_turns=1, prompt=False)
    collector = make_demonstration_collector(lake, policy, num_episodes=24, num_transcripts=5)
    state = collector.init(KEY, None)
    _, episode, metrics = jax.jit(lambda key: collector.collect(state, None, key))(jax.random.key(1))
    kinds = {tuple(row.reshape(-1).tolist()) for row in np.asarray(episode.tokens)}
    assert 2 < len(kinds) <= 5 and float(metrics["success_rate"].value) > 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 1.5}, r"`noise` must be in \[0, 1\], got 1.5"),
        ({"num_episodes": 0}, "`num_episodes` must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(lake, speak, options, message):
    with pytest.raises(ValueError, match=message):
        make_demonstration_collector(lake, speak(lake), **{"num_episodes": 4} | options)


def test_experts_that_do_not_think_aloud_cannot_teach_thoughts(lake, speak):
    with pytest.raises(ValueError, match="`policy.thought_tokens` must be 0 where the expert does not think aloud"):
        make_demonstrations(lake, speak(lake, thought_tokens=4))


@pytest.mark.exhaustive
def test_imitation_lowers_the_loss(lake, speak):
    agent = make_agent(
        lake,
        policy=partial(speak, context_turns=1, prompt=False),
        optimizer=lambda steps: optax.adam(1e-2),
    )
    collector = make_demonstration_collector(lake, agent.policy, num_episodes=32)
    learner = agent.make_learner(collector, 30)

    @jax.jit
    def train(state, key):
        _, episode, _ = collector.collect(collector.init(key, None), None, key)
        return learner.update(state, key, episode)

    state = learner.init(KEY)
    for number in range(30):
        state, metrics = train(state, jax.random.fold_in(KEY, number))
    # Half of the tokens are end marks, and there are four actions: from log(20) towards log(4) / 2 and below.
    assert float(metrics["loss"]) < 0.3 * np.log(20.0)

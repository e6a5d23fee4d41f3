"""Observation tokens in loss and credit: what an update without masks is, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text.code_calls import make_environment
from jaxagents.language.dialogue import make_dialogue
from jaxagents.learners import observation_loss, policy_gradient
from jaxagents.learners.observation_loss import all_tokens
from jaxagents.losses import aggregation, token_policy_gradient
from jaxagents.ops import credit
from jaxagents.ops.observation_credit import gae_every_token
from jaxagents.policies.contexts import to_rows
from jaxagents.types import EpisodeView, Layout, TokenStatistics
from tests.fakes import score_tokens

KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def calls():
    return make_environment((2,), spare_calls=0)


@pytest.fixture(scope="module")
def played(calls, speak, params_of):
    policy = speak(calls, prompt=False, value_head=True)
    params = params_of(policy)
    episode = jax.jit(make_dialogue(calls, policy, group_size=4))(params, KEY, jnp.arange(2))
    return policy, params, episode.replace(reward=jax.random.uniform(KEY, episode.reward.shape) * episode.valid)


@pytest.mark.parametrize("layout", [Layout(0, 9, 0, 4, 3, 3), Layout(2, 9, 5, 4, 3, 1)])
def test_turns_keep_their_size(layout):
    assert all_tokens(layout).turn == layout.turn and all_tokens(layout).observation == 1


def make(calls, policy, module, **options):
    slots = {"advantage": credit.dr_grpo, "loss": token_policy_gradient.plain, "aggregation": aggregation.token_mean}
    agent = module.make_agent(calls, policy=lambda _: policy, optimizer=lambda steps: optax.sgd(1.0), **slots | options)
    return agent.make_learner(None, 1)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_an_update_without_a_mask_is_the_gradient_of_all_tokens(calls, played, weight):
    policy, params, episode = played
    learner = make(calls, policy, observation_loss, observation_weight=weight)
    state = learner.init(KEY, params)
    after, _ = jax.jit(learner.update)(state, KEY, episode)
    read = episode.token_mask & ~episode.action_mask & (jnp.arange(policy.layout.turn) > 0)[None, None]
    every = read | episode.action_mask
    advantage = credit.dr_grpo(EpisodeView(episode=episode.replace(action_mask=every))).advantage
    layout = all_tokens(policy.layout)

    def loss(params):
        log_prob = score_tokens(policy.model, params, to_rows(episode), layout).log_prob
        return -jnp.sum(jnp.where(every, jnp.where(read, weight, 1.0) * advantage * log_prob, 0.0)) / jnp.sum(every)

    grads = jax.jit(jax.grad(loss))(params)
    expected = jax.tree.map(lambda old, grad: old - grad, params, grads)
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, atol=1e-4), after.params, expected)


@pytest.mark.slow
def test_weight_zero_is_the_update_with_a_mask(calls, played):
    policy, params, episode = played
    found, expected = (
        jax.jit(learner.update)(learner.init(KEY, params), KEY, episode)[0].params
        for learner in (
            make(calls, policy, observation_loss, observation_weight=0.0),
            make(calls, policy, policy_gradient),
        )
    )
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, atol=1e-5), found, expected)


@pytest.mark.exhaustive
def test_scores_of_sampled_tokens_are_those_of_the_layout_that_acted(played):
    policy, params, episode = played
    rows = to_rows(episode)
    one, other = (
        score_tokens(policy.model, params, rows, layout) for layout in (policy.layout, all_tokens(policy.layout))
    )
    for name in ("log_prob", "value"):
        found, expected = (np.asarray(getattr(statistics, name)) for statistics in (other, one))
        mask = np.asarray(episode.action_mask)
        np.testing.assert_allclose(found[mask], expected[mask], atol=1e-5)
        assert (found[..., 1 : policy.layout.observation] != 0.0).any()


def test_the_trace_passes_through_observations_by_hand(make_episode):
    # Two turns of a mark, a word that is read and one that is said: the mark stays out.
    episode = make_episode([[0.0, 1.0]], [[2, 2]], slot=3)
    output = episode.action_mask.at[:, :, 1].set(False)
    episode = episode.replace(action_mask=output)
    value = jnp.array([[[9.0, 0.1, 0.2], [9.0, 0.3, 0.5]]])
    view = EpisodeView(episode=episode, policy=TokenStatistics(value=value))
    found = gae_every_token(view, trace_decay=0.5)
    # Errors of the four tokens: 0.1, 0.1, 0.2, 0.5; A = 0.5, then 0.2 + 0.25, 0.1 + 0.225, and so on.
    np.testing.assert_allclose(found.advantage[0], [[0, 0, 0.1 + 0.5 * 0.45], [0, 0, 0.5]], atol=1e-6)
    np.testing.assert_allclose(found.target[0], [[0, 0, 0.325 + 0.2], [0, 0, 1.0]], atol=1e-6)
    # What would follow the last turn counts, unless that is an end.
    cut = make_episode([[0.0, 1.0]], [[2, 2]], slot=3, terminated=False, bootstrap_value=jnp.array([10.0]))
    view_of_cut = view.replace(episode=cut.replace(action_mask=output))
    assert gae_every_token(view_of_cut, trace_decay=0.5, bootstrap=True).advantage[0, 1, 2] == pytest.approx(10.5)
    ended = gae_every_token(view_of_cut, trace_decay=0.5)
    np.testing.assert_allclose(ended.advantage, found.advantage, atol=1e-6)
    # With the mask the next token that was said is the successor.
    masked = credit.gae_token(view, trace_decay=0.5).advantage
    np.testing.assert_allclose(masked[0], [[0, 0, 0.3 + 0.5 * 0.5], [0, 0, 0.5]], atol=1e-6)


def test_a_negative_weight_is_refused(calls, speak):
    policy = speak(calls, prompt=False)
    with pytest.raises(ValueError, match="`observation_weight` must be at least 0.0, got -1.0"):
        make(calls, policy, observation_loss, observation_weight=-1.0)

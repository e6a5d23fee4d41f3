"""An episode that is cut is worth what would have followed; one that is over is not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import bandit, kuhn
from jaxagents.language.dialogue import make_dialogue
from jaxagents.ops.credit import gae_token, gae_turn
from jaxagents.ops.episodes import last_action_token_mask
from jaxagents.policies.contexts import to_rows
from jaxagents.types import EpisodeView, TokenStatistics
from tests.fakes import score_tokens

KEY = jax.random.key(5)
NUM_TURNS = 3
CONTEXTS = {
    "markov": {"context_turns": 1, "prompt": False},
    "window": {"context_turns": 2},
    "history": {"thought_tokens": 2},
}


def play(environment, policy, params, *, num_rows=None):
    dialogue = make_dialogue(environment, policy, group_size=2, bootstrap=True)
    return jax.jit(partial(dialogue, num_rows=num_rows))(params, KEY, jnp.arange(4))


@pytest.mark.exhaustive
@pytest.mark.parametrize("context", CONTEXTS)
def test_the_value_is_that_of_the_next_turn_had_the_episode_gone_on(context, lake, speak, params_of):
    short, long = (
        speak(lake, value_head=True, num_turns=turns, **CONTEXTS[context]) for turns in (NUM_TURNS, NUM_TURNS + 1)
    )
    params = params_of(short)
    cut, longer = play(lake, short, params), play(lake, long, params)
    layout = long.layout
    np.testing.assert_array_equal(cut.tokens, longer.tokens[:, :NUM_TURNS])
    scored = score_tokens(long.model, params, to_rows(longer), layout).value.reshape(longer.tokens.shape)
    went_on = np.asarray(longer.valid)[:, NUM_TURNS]
    assert went_on.sum() > 2
    np.testing.assert_array_equal(went_on, np.asarray(cut.truncated).any(axis=1))
    expected = np.where(went_on, scored[:, NUM_TURNS, layout.observation], 0.0)
    assert np.ptp(expected[went_on]) > 1e-3
    np.testing.assert_allclose(cut.bootstrap_value, expected, atol=1e-4)
    # Rows that take one episode after the other end at different times, and are judged the same.
    if context == "markov":
        return
    again = play(lake, short, params, num_rows=3)
    np.testing.assert_allclose(again.bootstrap_value, expected, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("num_pulls", "following"),
    [pytest.param(3, 2.0, id="cut"), pytest.param(2, 0.0, id="over")],
)
def test_advantages_by_hand_of_an_episode_that_is_cut_and_of_one_that_is_over(num_pulls, following, speak):
    # Two turns of two pulls, which end a bandit's episode in a terminal state, or of three. Every value is 2.
    world = bandit.make_environment(num_pulls=num_pulls)
    policy = speak(world, value_head=True, num_turns=2, context_turns=1, prompt=False)
    model = policy.model._replace(value=lambda params, hidden: jnp.full(hidden.shape[:-1], 2.0))
    policy = policy._replace(model=model)
    dialogue = make_dialogue(world, policy, group_size=8, bootstrap=True)
    episode = jax.jit(dialogue)(policy.init(KEY), KEY, jnp.arange(1))
    np.testing.assert_allclose(episode.bootstrap_value, following)
    first_reward, last_reward = np.asarray(episode.reward).T
    values = TokenStatistics(value=jnp.full(episode.tokens.shape, 2.0))
    view = EpisodeView(episode=episode, policy=values)
    credit = gae_turn(view, discount=0.5, trace_decay=0.5, bootstrap=True)
    last = last_reward + 0.5 * following - 2.0
    first = first_reward + 0.5 * 2.0 - 2.0 + 0.25 * last
    begin = policy.layout.observation
    np.testing.assert_allclose(np.asarray(credit.advantage)[:, :, begin], np.stack([first, last], axis=1), rtol=1e-6)
    tokens = gae_token(view, trace_decay=0.0, bootstrap=True)
    final = np.asarray(last_action_token_mask(episode))[:, 1]
    np.testing.assert_allclose(np.asarray(tokens.target)[:, 1][final], last_reward + following, rtol=1e-6)


def test_games_have_no_value_of_what_follows(speak):
    game = kuhn.make_environment()
    policy = speak(game, value_head=True)
    episode = jax.eval_shape(make_dialogue(game, policy, bootstrap=True), policy.init(KEY), KEY, jnp.arange(2))
    assert episode.bootstrap_value is None


def test_a_model_without_room_for_what_follows_is_refused(lake, speak):
    policy = speak(lake, value_head=True)
    layout = policy.layout
    tight = policy._replace(model=policy.model._replace(max_positions=layout.length))
    with pytest.raises(ValueError, match=rf"the observation that follows it, {layout.length + layout.observation} tok"):
        make_dialogue(lake, tight, bootstrap=True)
    make_dialogue(lake, tight)

"""Tests of jaxagents/language/conversation.py."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import frozenlake
from jaxagents.language import conversation
from jaxagents.language.conversation import answer, begin_conversation, make_answer, parse_action, read_prompts
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.policy import make_language_policy
from jaxagents.language.replies import make_reply
from jaxagents.language.tokenizers import word_level
from jaxagents.language.turns import render_prompt_words
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import make_language_model

KEY = jax.random.key(3)
ACTION_WORDS = 1
ENVIRONMENT = frozenlake.make_environment(sizes=(4,), hole_fractions=(0.2,))


@pytest.fixture(scope="module")
def actor():
    """A policy with thoughts, a prompt, and a context of two of its three turns; and its parameters."""
    policy = make_language_policy(
        ENVIRONMENT,
        tokenizer=word_level,
        model=partial(
            make_language_model,
            network=partial(Transformer, num_layers=1, features=16, num_heads=2, max_positions=None),
        ),
        context_turns=2,
        num_turns=3,
        thought_tokens=2,
        action_tokens=3,
    )
    return policy, policy.init(jax.random.key(0))


@pytest.fixture(scope="module")
def episode(actor):
    """What the policy says in a dialogue; four episodes, each with a task of its own."""
    policy, params = actor
    play = make_dialogue(ENVIRONMENT, policy, sampling=Sampling(temperature=1.5))
    return jax.device_get(jax.jit(play)(params, KEY, jnp.arange(4)))


def words_of(policy, tokens, mask, room):
    ids = policy.lexicon.encode_words(policy.tokenizer.decode(tokens[mask].tolist()))
    return np.pad(ids, (0, room - len(ids)), constant_values=-1)


def observations_of(policy, episode, turn):
    """Returns the word ids `[B, K]` that stand in the slots of a turn."""
    size = policy.layout.observation
    rows = zip(episode.tokens[:, turn, :size], episode.token_mask[:, turn, :size])
    return np.stack([words_of(policy, *row, ENVIRONMENT.observation_space.shape[0]) for row in rows])


def prompts_of(policy, episode):
    rows = zip(episode.prompt_tokens, episode.prompt_mask)
    return render_prompt_words(policy, np.stack([words_of(policy, *row, policy.layout.prompt) for row in rows]))


@pytest.mark.slow
def test_it_says_what_the_policy_says_in_a_dialogue(actor, episode):
    policy, params = actor
    layout = policy.layout
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.split(KEY, 3)[2], row))(jnp.arange(4))
    chat = begin_conversation(policy, 4)
    chat = read_prompts(policy, params, chat, prompts_of(policy, episode), jnp.ones(4, bool))
    speak = jax.jit(partial(answer, policy))
    assert episode.valid[:, -1].any() and episode.thought_mask.any()
    for turn in range(layout.num_turns):
        live = episode.valid[:, turn]
        turn_keys = jax.vmap(lambda key, turn=turn: jax.random.split(jax.random.fold_in(key, turn), 3)[:2])(keys)
        chat, own = speak(
            params, chat, observations_of(policy, episode, turn), keys=turn_keys, sampling=Sampling(temperature=1.5)
        )
        for name in ("token_mask", "action_mask", "thought_mask", "position"):
            np.testing.assert_array_equal(getattr(own, name)[live], getattr(episode, name)[live, turn], err_msg=name)
        mask = episode.token_mask[live, turn]
        np.testing.assert_array_equal(own.tokens[live][mask], episode.tokens[live, turn][mask])
        for name in ("behavior_log_prob", "sampling_log_prob"):
            np.testing.assert_allclose(getattr(own, name)[live], getattr(episode, name)[live, turn], atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("longest", [256, 0])  # Tokens of a prompt that is told in bits who sees whom.
def test_prompts_begin_anew_in_the_rows_that_are_fresh(actor, episode, monkeypatch, longest):
    policy, params = actor
    if not longest:
        prompt = prompts_of(policy, episode)
        expected = read_prompts(policy, params, begin_conversation(policy, 4), prompt, jnp.ones(4, bool))
        monkeypatch.setattr(conversation, "_LONG", longest)
        found = read_prompts(policy, params, begin_conversation(policy, 4), prompt, jnp.ones(4, bool))
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), found, expected)
    prompt, fresh = tuple(leaf[:2] for leaf in prompts_of(policy, episode)), jnp.asarray([True, False])
    begun = read_prompts(policy, params, begin_conversation(policy, 2), prompt, jnp.ones(2, bool))
    assert begun.position[:, 0].tolist() == begun.present.sum(axis=1).tolist() == [5, 5]  # "walk to", "G", ...
    later = begun.replace(position=begun.position + 9, present=jnp.ones_like(begun.present))
    mixed = read_prompts(policy, params, later, prompt, fresh)
    for row, expected in enumerate((begun, later)):
        for one, other in zip(jax.tree.leaves(mixed), jax.tree.leaves(expected)):
            if one.ndim:
                np.testing.assert_allclose(one[row], other[row], atol=1e-6)
    silent = read_prompts(policy, params, later, None, fresh)
    assert silent.position[:, 0].tolist() == [0, 14]
    assert silent.present.any(axis=1).tolist() == [False, True]


def test_actions_are_read_up_to_their_end(actor):
    policy, _ = actor
    layout, marks = policy.layout, policy.tokenizer.marks
    left = policy.tokenizer.encode("left")[0]
    own = jnp.asarray([[left, marks["end"], 0], [left, 0, 0], [left, left, marks["end"]], [marks["end"], 0, 0]])
    mask = jnp.asarray([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]], bool)
    _, turn = jax.eval_shape(
        lambda: answer(
            policy,
            policy.init(KEY),
            begin_conversation(policy, 4),
            jnp.zeros((4, 21), jnp.int32),
            keys=jax.random.split(KEY, (4, 2)),
            sampling=Sampling(),
        )
    )
    turn = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), turn)
    turn = turn.replace(
        tokens=turn.tokens.at[:, -layout.action :].set(own),
        action_mask=turn.action_mask.at[:, -layout.action :].set(mask),
    )
    words, parsed = parse_action(policy, turn, ACTION_WORDS)
    assert parsed.tolist() == [True, False, False, False]
    assert words.tolist() == [[policy.lexicon.words.index("left")], [-1], [-1], [-1]]


@pytest.mark.exhaustive
def test_one_conversation_is_a_row_of_a_batch(actor, episode):
    policy, params = actor
    act = make_answer(policy, ACTION_WORDS)
    rows = zip(episode.prompt_tokens[:2], episode.prompt_mask[:2])
    prompt = np.stack([words_of(policy, *row, policy.layout.prompt) for row in rows])
    first = observations_of(policy, episode, 0)[:2]
    second = first[::-1]
    actions, carry = act(params, first, prompt=prompt)
    more, later = act(params, second, carry)
    assert actions.shape == more.shape == (2, ACTION_WORDS)
    one, carry_of_one = act(params, first[1], prompt=prompt[1])
    assert one.tolist() == actions[1].tolist()
    assert act(params, second[1], carry_of_one)[0].tolist() == more[1].tolist()
    # `first` begins anew, in the row that it says.
    again, renewed = act(params, first, later, first=jnp.asarray([True, False]), prompt=prompt)
    assert again[0].tolist() == actions[0].tolist()
    np.testing.assert_array_equal(renewed.position[0], carry.position[0])
    assert int(renewed.position[1, 0]) > int(later.position[1, 0])


@pytest.mark.exhaustive
def test_answers_are_the_most_probable_or_drawn(actor, episode):
    policy, params = actor
    act = make_answer(policy, ACTION_WORDS)
    rows = np.repeat(observations_of(policy, episode, 0)[:1], 64, axis=0)
    greedy, _ = act(params, rows)
    assert len(np.unique(greedy)) == 1
    drawn, _ = act(params, rows, key=KEY)
    assert len(np.unique(drawn)) > 1
    np.testing.assert_array_equal(act(params, rows, key=KEY)[0], drawn)


def test_an_observation_of_another_shape_is_refused(actor):
    policy, params = actor
    with pytest.raises(
        ValueError, match=r"`observation` must have the shape \['K'\] or \['B', 'K'\], got \[1, 1, 21\]"
    ):
        make_answer(policy, ACTION_WORDS)(params, np.zeros((1, 1, 21)))


@pytest.mark.exhaustive
def test_a_reply_in_text_is_the_answer_in_word_ids(actor, episode):
    policy, params = actor
    act, reply = make_answer(policy, ACTION_WORDS), make_reply(policy, ENVIRONMENT)
    words = ENVIRONMENT.text.words
    rows = observations_of(policy, episode, 0)[:2]
    texts = [" ".join(words[i] for i in row if i >= 0) for row in rows]
    prompt = words_of(policy, episode.prompt_tokens[0], episode.prompt_mask[0], policy.layout.prompt)
    asked = " ".join(words[i] for i in prompt if i >= 0)
    carry = carry_of_ids = None
    for text, row, key in zip(texts, rows, (None, KEY)):
        options = {"prompt": asked} if carry is None else {}
        own, carry = reply(params, text, carry, key=key, **options)
        ids, carry_of_ids = act(params, row, carry_of_ids, prompt=prompt if options else None, key=key)
        assert own == " ".join(words[i] for i in ids.tolist() if i >= 0)
    with pytest.raises(ValueError, match="xyzzy"):
        reply(params, "xyzzy")
    with pytest.raises(ValueError, match="`text` must have at most"):
        reply(params, " ".join([texts[0]] * 9))

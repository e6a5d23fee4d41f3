"""Dialogues: what is said is what training sees, and rows, groups, rounds and devices do not matter."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import arithmetic
from jaxagents.environments.tmaze import make_environment as make_tmaze
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.tokenizers import byte_level, train_sentencepiece
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.contexts import to_rows
from jaxagents.policies.language_model import make_language_model
from tests.fakes import score_tokens

KEY = jax.random.key(5)
GROUPS = jnp.arange(3)


def play(environment, policy, params, *, num_rows=None, groups=GROUPS, **options):
    dialogue = make_dialogue(environment, policy, group_size=2, **options)
    return jax.jit(partial(dialogue, num_rows=num_rows))(params, KEY, groups)


def training_log_prob(policy, params, episode):
    scored = score_tokens(policy.model, params, to_rows(episode), episode.layout)
    return np.asarray(scored.log_prob.reshape(episode.tokens.shape))


def require_parity(policy, params, episode):
    mask = np.asarray(episode.action_mask)
    assert mask.sum() > 20
    error = np.abs(training_log_prob(policy, params, episode) - np.asarray(episode.behavior_log_prob))[mask]
    assert error.max() < 1e-4
    assert np.ptp(np.asarray(episode.behavior_log_prob)[mask]) > 0.5


CONTEXTS = {
    "markov": {"context_turns": 1, "prompt": False},
    "prompt": {"context_turns": 1},
    "window": {"context_turns": 3},
    "history": {},
    "thoughts": {"context_turns": 2, "thought_tokens": 3},
}


@pytest.fixture(
    scope="module",
    params=[
        "window",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("thoughts", "markov", "prompt", "history")),
    ],
)
def played(request, lake, speak, params_of):
    policy = speak(lake, **CONTEXTS[request.param])
    params = params_of(policy)
    return request.param, policy, params, play(lake, policy, params)


def test_decoding_and_training_agree_in_every_context(played):
    _, policy, params, episode = played
    require_parity(policy, params, episode)


@pytest.mark.slow
def test_rows_that_take_one_episode_after_the_other_play_the_same(played, lake):
    name, policy, params, episode = played
    if name == "window":
        pytest.skip("Older turns than the window are no longer in the ring; one of the other contexts is enough.")
    again = play(lake, policy, params, num_rows=2)
    for field in ("tokens", "token_mask", "action_mask", "position", "reward", "valid", "success", "fingerprint"):
        np.testing.assert_array_equal(getattr(episode, field), getattr(again, field), err_msg=field)
    np.testing.assert_allclose(episode.behavior_log_prob, again.behavior_log_prob, atol=1e-5)


def test_an_episode_is_well_formed(played, lake):
    _, policy, _, episode = played
    layout, marks = policy.layout, policy.tokenizer.marks
    tokens, mask, valid = (np.asarray(leaf) for leaf in (episode.tokens, episode.token_mask, episode.valid))
    assert tokens.shape == (6, layout.num_turns, layout.turn) and episode.prompt_tokens.shape == (6, layout.prompt)
    np.testing.assert_array_equal(mask.any(axis=-1), valid)
    # Turns follow each other without gaps, and the last one ends the episode, in exactly one way.
    lengths = valid.sum(axis=1)
    np.testing.assert_array_equal(valid, np.arange(layout.num_turns)[None] < lengths[:, None])
    last = (np.arange(6), lengths - 1)
    ended = np.asarray(episode.terminated)[last].astype(int) + np.asarray(episode.truncated)[last]
    np.testing.assert_array_equal(ended, 1)
    assert (tokens[valid][:, 0] == marks["observation"]).all()
    opening = marks["think"] if layout.thought else marks["act"]
    assert (tokens[valid][:, layout.observation - 1] == opening).all()
    # Positions count the tokens there are.
    flat = mask.reshape(6, -1)
    before = np.sum(episode.prompt_mask, axis=1)[:, None] + np.cumsum(flat, axis=1) - flat
    np.testing.assert_array_equal(np.asarray(episode.position)[mask], before.reshape(mask.shape)[mask])
    # Episodes of a group start in the same state.
    np.testing.assert_array_equal(episode.fingerprint[::2, 0], episode.fingerprint[1::2, 0])
    np.testing.assert_array_equal(episode.group, [0, 0, 1, 1, 2, 2])
    assert not np.asarray(episode.action_mask & ~episode.token_mask).any()


@pytest.mark.exhaustive
def test_models_with_stacked_layers_read_prompts_in_their_own_rows(lake, speak, params_of):
    # The cache of such a model has the axis of rows second.
    network = partial(Transformer, num_layers=2, features=16, num_heads=2, scan_layers=True)
    policy = speak(lake, context_turns=1, model=partial(make_language_model, network=network))
    params = params_of(policy)
    all_at_once, two_rows = play(lake, policy, params), play(lake, policy, params, num_rows=2)
    require_parity(policy, params, all_at_once)
    np.testing.assert_array_equal(all_at_once.tokens, two_rows.tokens)


@pytest.mark.exhaustive
def test_thoughts_are_closed_once(lake, speak, params_of):
    policy = speak(lake, thought_tokens=3, context_turns=1, prompt=False)
    episode = play(lake, policy, params_of(policy))
    layout, act = policy.layout, policy.tokenizer.marks["act"]
    rest = np.where(episode.token_mask, episode.tokens, -1)[np.asarray(episode.valid)][:, layout.observation :]
    thoughts, forced = rest[:, : layout.thought], rest[:, layout.thought]
    closed = (thoughts == act).any(axis=1)
    np.testing.assert_array_equal(forced == act, ~closed)
    sampled = np.asarray(episode.thought_mask)[np.asarray(episode.valid)]
    assert not sampled[:, layout.observation + layout.thought :].any() and sampled.any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_decoding_and_training_agree_with_tokens_of_any_size(kind, lake, speak, params_of):
    make = {"bytes": byte_level, "unigram": partial(train_sentencepiece, vocab_size=40, whole_words=False)}[kind]
    policy = speak(lake, tokenizer=make, num_turns=2, action_tokens=8, prompt=False)
    params = params_of(policy)
    require_parity(policy, params, play(lake, policy, params))


@pytest.mark.exhaustive
def test_tempered_samples_keep_both_log_probabilities(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    params = params_of(policy)
    episode = play(lake, policy, params, sampling=Sampling(temperature=0.5))
    require_parity(policy, params, episode)
    assert float(jnp.max(jnp.abs(episode.sampling_log_prob - episode.behavior_log_prob))) > 0.05


@pytest.mark.slow
def test_what_cannot_be_parsed_changes_nothing_and_is_counted(lake, speak):
    policy = speak(lake, context_turns=1, prompt=False)
    params = jax.tree.map(jnp.zeros_like, policy.init(jax.random.key(0)))  # Any token, all as likely.
    episode = play(lake, policy, params)
    bad = np.asarray(episode.valid & ~episode.action_valid)
    assert bad.sum() > 5
    same = np.asarray(episode.fingerprint)[:, 1:] == np.asarray(episode.fingerprint)[:, :-1]
    assert same[bad[:, :-1] & np.asarray(episode.valid)[:, 1:]].all()


@pytest.mark.slow
def test_one_device_and_eight_write_the_same_transcripts(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    params, groups = params_of(policy), jnp.arange(8)
    one = play(lake, policy, params, groups=groups)
    dialogue = make_dialogue(lake, policy, group_size=2)
    eight = jax.pmap(dialogue, in_axes=(None, None, 0))(params, KEY, groups[:, None])
    for field in ("tokens", "action_mask", "reward", "success"):
        both = getattr(one, field), getattr(eight, field)
        np.testing.assert_array_equal(both[0], np.asarray(both[1]).reshape(both[0].shape), err_msg=field)


@pytest.mark.exhaustive
@pytest.mark.parametrize("context", ["window", pytest.param("thoughts", marks=pytest.mark.exhaustive)])
def test_forced_turns_are_said_and_seen_but_not_sampled(context, lake, speak, params_of):
    policy = speak(lake, **CONTEXTS[context])
    params, moves = params_of(policy), jnp.asarray(lake.text.actions)
    # The first two turns of the first group, the first one of the second, none of the third.
    script = jnp.stack([moves[:2], jnp.stack([moves[2], -jnp.ones_like(moves[0])]), jnp.full((2, *moves[0].shape), -1)])
    dialogue = make_dialogue(lake, policy, group_size=2)
    episode = jax.jit(dialogue)(params, KEY, GROUPS, script=script)
    require_parity(policy, params, episode)
    tokens, sampled = np.asarray(episode.tokens), np.asarray(episode.action_mask)
    for row, turn, move in [(0, 0, 0), (1, 0, 0), (0, 1, 1), (2, 0, 2), (3, 0, 2)]:
        if episode.valid[row, turn]:
            text = policy.tokenizer.decode(tokens[row, turn, -policy.layout.action :].tolist())
            assert text.strip().startswith(" ".join(lake.text.words[word] for word in moves[move] if word >= 0))
            assert not sampled[row, turn].any() and episode.action_valid[row, turn]
    assert sampled[4:, 0].any(axis=1).all() and sampled[2:4, 1][np.asarray(episode.valid)[2:4, 1]].any()


@pytest.mark.exhaustive
def test_given_tasks_states_and_most_turns(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    params = params_of(policy)
    dialogue = jax.jit(make_dialogue(lake, policy, group_size=2))
    task = jax.jit(jax.vmap(lake.sample_task))(jax.random.split(jax.random.key(3), 3))
    first = jax.jit(jax.vmap(lake.reset))(jax.random.split(KEY, 3), task)
    given = dialogue(params, KEY, GROUPS, task=task, max_turns=jnp.array([1, 2, 99]))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[::2], b), given.task, task)
    length = np.asarray(given.valid).sum(axis=1)
    assert (length <= np.repeat([1, 2, 6], 2)).all() and (length[:2] == 1).all()
    ends = np.asarray(given.terminated | given.truncated)[np.arange(6), length - 1]
    assert ends.all()
    # Going on from the state after a move: its fingerprint is that of the first turn.
    move = jnp.broadcast_to(jnp.asarray(lake.text.actions)[1], (3, lake.text.actions.shape[1]))
    start = jax.jit(jax.vmap(lake.step))(jax.random.split(KEY, 3), first[0], move)
    went_on = dialogue(params, KEY, GROUPS, task=task, start=start)
    np.testing.assert_array_equal(went_on.fingerprint[::2, 0], jax.jit(jax.vmap(lake.text.fingerprint))(start[0]))
    with pytest.raises(ValueError, match="`task` must be given with `start`, got None"):
        dialogue(params, KEY, GROUPS, start=start)


@pytest.mark.exhaustive
def test_one_turn_worlds_are_dialogues_too(speak, params_of):
    world = arithmetic.make_environment()
    policy = speak(world, prompt=False)
    params = params_of(policy)
    require_parity(policy, params, play(world, policy, params, groups=jnp.arange(8)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_tokens": 1}, "`action_tokens` must hold the longest action and its end mark, 2 tokens, got 1"),
        ({"num_turns": 0}, "`num_turns` must be at least 1, got 0; try null for 6"),
        ({"thought_tokens": -1}, "`thought_tokens` must not be negative"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(lake, speak, options, message):
    with pytest.raises(ValueError, match=message):
        speak(lake, **options)


def test_a_context_that_is_too_short_is_refused_with_the_numbers(lake, speak):
    def short(vocab_size):
        return speak(lake).model._replace(max_positions=100)

    layout = speak(lake).layout
    with pytest.raises(ValueError, match=rf"at least the {layout.length} tokens .* \+ 6 turns .* got 100; try fewer"):
        speak(lake, model=short)


def test_other_worlds_are_refused(speak):
    with pytest.raises(ValueError, match="`environment` must be a text world, got 't-maze'"):
        speak(make_tmaze())


@pytest.mark.exhaustive
def test_tokenizers_without_a_mark_are_refused(lake, speak):
    def without(words):
        tokenizer = byte_level(words)
        marks = {name: mark for name, mark in tokenizer.marks.items() if name != "think"}
        return tokenizer._replace(marks=marks)

    with pytest.raises(ValueError, match="`tokenizer` must have the marks .* without think"):
        speak(lake, tokenizer=without)

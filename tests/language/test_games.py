"""Games between seats of language policies: who earns what, and who sees what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import bandit, kuhn
from jaxagents.environments.text.words import sentence
from jaxagents.language.collect import dialogue_metrics
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.policies.contexts import to_rows
from jaxagents.reporting.transcripts import to_trajectories
from tests.fakes import score_tokens

KEY = jax.random.key(3)


def chips_of_player_0(deal, moves):
    """The rules of Kuhn poker once more, in plain Python."""
    showdown = 1 if deal[0] > deal[1] else -1
    return {
        "pass pass": showdown,
        "pass bet pass": -1,
        "pass bet bet": 2 * showdown,
        "bet pass": 1,
        "bet bet": 2 * showdown,
    }[" ".join(moves)]


def require_chips_at_last_turns(environment, episode):
    """Compares what turns earned with the rules, for hands that were not cut."""
    texts = [" ".join(environment.text.words[a] for a in row) for row in environment.text.actions]
    checked = 0
    for b in range(len(episode.valid)):
        if not episode.success[b] or not episode.action_valid[b][episode.valid[b]].all():
            continue
        moves = [texts[m] for m in episode.extras["moves"][b] if m >= 0]
        chips = chips_of_player_0(episode.task["deal"][b], moves)
        wanted = np.zeros(len(episode.valid[b]))
        last = len(moves) - 1
        # Seats take turns: the last turn is the last of its seat, the one before it of the other.
        wanted[last], wanted[last - 1] = (chips, -chips) if last % 2 == 0 else (-chips, chips)
        np.testing.assert_array_equal(episode.reward[b], wanted)
        np.testing.assert_array_equal(episode.seat_return[b], [chips, -chips])
        checked += 1
    return checked


def with_moves(policy, episode):
    """Adds the index of the move of every turn, read from its tokens."""
    first = np.asarray(episode.tokens)[:, :, policy.layout.observation]
    seen = [[policy.tokenizer.decode([token]) for token in row] for row in first]
    moves = np.asarray(
        [[("pass", "bet").index(word) if word in ("pass", "bet") else -1 for word in row] for row in seen]
    )
    moves = np.where(episode.valid, moves, -1)
    return jax.device_get(episode.replace(extras={**episode.extras, "moves": moves}))


@pytest.fixture(scope="module")
def game():
    return kuhn.make_environment()


@pytest.mark.exhaustive
def test_both_seats_of_the_demonstrations_earn_their_chips(game, speak):
    policy = speak(game)
    episode = jax.jit(make_demonstrations(game, policy, noise=1.0))(KEY, jnp.arange(64))
    episode = with_moves(policy, episode)
    assert require_chips_at_last_turns(game, episode) == 64
    assert {tuple(row) for row in episode.extras["moves"][:, :3].tolist()} == {
        *((0, 0, -1), (0, 1, 0), (0, 1, 1), (1, 0, -1), (1, 1, -1))
    }
    # The third turn continues the context of player 0: its positions come after those of the first turn.
    position, sizes = np.asarray(episode.position), np.asarray(episode.token_mask).sum(axis=-1)
    prompt = int(np.asarray(episode.prompt_mask)[0].sum())
    np.testing.assert_array_equal(position[:, :2, 0], prompt)
    third = episode.valid[:, 2]
    np.testing.assert_array_equal(position[third, 2, 0], prompt + sizes[third, 0])


def inclined_to_move(policy):
    """Adds to the logits of moves and of the end mark, so that an untrained model plays some hands."""
    tokens = [policy.tokenizer.encode(move)[0] for move in ("pass", "bet")] + [policy.tokenizer.marks["end"]]
    bonus = np.zeros(policy.model.vocab_size, np.float32)
    bonus[tokens] = 5.0
    logits = policy.model.logits
    return policy._replace(
        model=policy.model._replace(
            logits=lambda params, hidden: (raw := logits(params, hidden)) + jnp.broadcast_to(bonus, raw.shape)
        )
    )


@pytest.mark.slow
def test_self_play_sees_and_earns_by_seat(game, speak, params_of):
    policy = inclined_to_move(speak(game))
    params = params_of(policy)
    episode = jax.jit(make_dialogue(game, policy))(params, KEY, jnp.arange(16))
    scored = score_tokens(policy.model, params, to_rows(episode), policy.layout)
    difference = np.abs(np.asarray(scored.log_prob.reshape(episode.tokens.shape)) - episode.behavior_log_prob)
    assert difference[np.asarray(episode.action_mask)].max() < 1e-4
    episode = with_moves(policy, episode)
    seats, words_at = np.asarray(episode.agent)[:, :, 0], np.asarray(episode.tokens)[:, :, 2]
    for seat in range(2):
        word = policy.lexicon.encode_words(f"player {seat}")
        seen = {policy.tokenizer.decode([token]) for token in words_at[episode.valid & (seats == seat)]}
        assert seen == {sentence(game.text.words, word)}


@pytest.mark.exhaustive
def test_a_context_counts_the_turns_of_its_own_seat(game, speak, params_of):
    """With two turns in context, player 0 still sees its first turn in the third one of the game."""
    policy = inclined_to_move(speak(game, context_turns=2, prompt=False))
    params = params_of(policy)

    @jax.jit
    def score(episode):
        scored = score_tokens(policy.model, params, to_rows(episode), policy.layout)
        return scored.log_prob.reshape(episode.tokens.shape)

    episode = jax.jit(make_demonstrations(game, policy, noise=1.0))(KEY, jnp.arange(32))
    seen = np.asarray(episode.action_mask)[:, 2]
    assert seen.any()
    for turn, matters in ((0, True), (1, False)):
        changed = episode.replace(tokens=episode.tokens.at[:, turn].set((episode.tokens[:, turn] + 1) % 7))
        moved = np.abs(np.asarray(score(changed) - score(episode)))[:, 2][seen]
        assert (moved.max() > 1e-3) == matters


@pytest.mark.exhaustive
@pytest.mark.parametrize("context_turns", [2, 3])
def test_short_contexts_of_several_seats_are_trained_as_they_acted(speak, params_of, context_turns):
    game = kuhn.make_environment(illegal="no_op")  # Untrained players say much that is no move: long episodes.
    policy = inclined_to_move(speak(game, context_turns=context_turns, prompt=False))
    params, play = params_of(policy), make_dialogue(game, policy)

    @jax.jit
    def difference(params):
        episode = play(params, KEY, jnp.arange(16), 8)
        scored = score_tokens(policy.model, params, to_rows(episode), policy.layout)
        apart = jnp.abs(scored.log_prob.reshape(episode.tokens.shape) - episode.behavior_log_prob)
        return jnp.max(jnp.where(episode.action_mask, apart, 0.0)), jnp.sum(episode.valid[:, 3])

    apart, num_long = difference(params)
    assert apart < 1e-4 and num_long > 4


@pytest.mark.slow
def test_chips_of_self_play_reach_both_seats(game, kuhn_policy):
    policy = kuhn_policy(game)
    episode = jax.jit(make_dialogue(game, policy))(policy.init(KEY), KEY, jnp.arange(128))
    episode = with_moves(policy, episode)
    assert require_chips_at_last_turns(game, episode) == 128
    assert len({tuple(row) for row in episode.extras["moves"].tolist()}) == 5


@pytest.mark.exhaustive
def test_forfeits_of_self_play_are_paid_to_both_seats(kuhn_policy):
    game = kuhn.make_environment(forfeit_payoff=(-1.5, 0.5))
    policy = kuhn_policy(game)
    params = policy.init(KEY) | {"illegal": jnp.ones(())}
    episode = jax.jit(make_dialogue(game, policy))(params, KEY, jnp.arange(4))
    np.testing.assert_array_equal(episode.seat_return, [[-1.5, 0.5]] * 4)
    # Player 1 never had a turn to which its half chip could belong.
    np.testing.assert_array_equal(episode.reward, [[-1.5, 0.0, 0.0]] * 4)
    assert not np.any(episode.success) and not np.any(episode.action_valid)


@pytest.mark.exhaustive
def test_a_frozen_partner_takes_the_other_seat(game, kuhn_policy):
    policy = kuhn_policy(game)
    # The policy always bets, its partner always passes.
    tables = [policy.init(KEY) | {"bet": jnp.full((4, 3), bet)} for bet in (1.0, 0.0)]
    dialogue = make_dialogue(game, policy, partner=policy)
    episode = with_moves(policy, jax.jit(dialogue)(tuple(tables), KEY, jnp.arange(8)))
    # Seats change from game to game: a bet that is folded to, or a pass, a bet and a fold.
    np.testing.assert_array_equal(episode.extras["moves"][:, :3], [[1, 0, -1], [0, 1, 0]] * 4)
    np.testing.assert_array_equal(episode.seat_return, [[1, -1], [-1, 1]] * 4)
    sampled = np.asarray(episode.action_mask).any(axis=-1)
    np.testing.assert_array_equal(sampled[:, :3], [[True, False, False], [False, True, False]] * 4)
    # The partner's words stay in its own context, and count as said, not as sampled.
    assert np.asarray(episode.token_mask)[:, 0, policy.layout.observation :].any()
    (first, *_) = to_trajectories(game, policy, episode)
    assert first.agents == ("player 0", "player 1") and first.metadata["seat_returns"] == [1.0, -1.0]
    assert [(turn.agent, turn.action, turn.reward) for turn in first.turns] == [(0, "bet", 1.0), (1, "", -1.0)]
    own = dialogue_metrics(episode)["episode_return"]
    np.testing.assert_allclose(own.total / own.count, 1.0)


def test_a_partner_must_fit(game, kuhn_policy, speak):
    policy = kuhn_policy(game)
    with pytest.raises(ValueError, match="`partner` must have the tokenizer and the layout of the policy"):
        make_dialogue(game, policy, partner=kuhn_policy(game, context_turns=2))
    world = bandit.make_environment()
    with pytest.raises(ValueError, match="`partner` must be null in a world of one seat, got one in 'bandit'"):
        make_dialogue(world, speak(world), partner=speak(world))

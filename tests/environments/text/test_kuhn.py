"""Kuhn poker in words: what is said, what is paid, and that the expert's equilibrium is worth -1/18."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import kuhn
from jaxagents.environments.text.words import sentence
from tests.fakes import play_actions

KEY = jax.random.key(0)


@functools.cache
def functions(**options):
    environment = kuhn.make_environment(**options)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def play(cards, moves, **options):
    """Plays moves by name; "fish" is no word of the world. Returns the timesteps and the last state."""
    environment, reset, step = functions(**options)
    task = {"deal": jnp.asarray(cards, jnp.int32), "names": jnp.asarray([0, 7], jnp.int32), "level": jnp.int32(0)}
    acts = [[environment.text.words.index(move) if move != "fish" else 999] for move in moves]
    state, timesteps = play_actions(reset, step, task, acts, KEY)
    return environment, timesteps, state


def test_a_player_is_told_seat_card_and_moves():
    environment, timesteps, _ = play((0, 2), ["pass", "bet", "bet"])
    texts = [sentence(environment.text.words, t.observation) for t in timesteps]
    assert texts[:3] == [
        "you are player 0 , your card is jack , moves .",
        "you are player 1 , your card is king , moves pass .",
        "you are player 0 , your card is jack , moves pass bet .",
    ]
    assert [int(t.player) for t in timesteps[:3]] == [0, 1, 0]
    names = jnp.asarray([0, 7], jnp.int32)
    prompt = environment.text.prompt({"deal": jnp.zeros(2, jnp.int32), "names": names, "level": jnp.int32(0)})
    assert sentence(environment.text.words, prompt) == "ada plays kuhn poker against hugo ."


@pytest.mark.parametrize(
    ("cards", "moves", "reward"),
    [
        ((0, 2), ["pass", "pass"], -1),  # The king wins the antes.
        ((2, 1), ["pass", "pass"], 1),
        ((0, 2), ["bet", "pass"], 1),  # A bluff.
        ((2, 0), ["pass", "bet", "pass"], -1),  # Another.
        ((0, 1), ["bet", "bet"], -2),
        ((1, 0), ["pass", "bet", "bet"], 2),
    ],
)
def test_payoffs_of_every_ending(cards, moves, reward):
    _, timesteps, _ = play(cards, moves)
    assert [bool(t.terminated) for t in timesteps] == [False] * len(moves) + [True]
    np.testing.assert_array_equal(timesteps[-1].reward, [reward, -reward])
    assert not any(np.any(t.reward) for t in timesteps[:-1])
    assert bool(timesteps[-1].info["success"])


def test_what_is_not_understood_loses_the_most_that_the_game_can_cost():
    # Player 1 holds the jack and faces a bet: to fold costs 1, to call 2. Nothing it can say is cheaper than that.
    for moves in (["bet", "pass"], ["bet", "bet"], ["bet", "fish"]):
        _, timesteps, _ = play((2, 0), moves)
        reward = {"pass": [1, -1], "bet": [2, -2], "fish": [2, -2]}[moves[1]]
        np.testing.assert_array_equal(timesteps[-1].reward, reward)
        assert bool(timesteps[-1].terminated)
        assert bool(timesteps[-1].info["success"]) == (moves[1] != "fish")


@pytest.mark.parametrize(
    ("moves", "reward"),
    [
        (["bet"] + ["fish"] * 5, [2, -2]),  # Player 1 stalls with the jack.
        (["fish"] * 5 + ["bet"], [-2, 2]),  # Player 0 took the time, player 1 never had a turn.
        (["fish", "fish", "pass", "fish", "fish", "bet"], [2, -2]),  # Player 1 was the last to say what is no move.
    ],
)
def test_where_illegal_moves_are_asked_again_the_last_to_make_one_forfeits_at_the_limit(moves, reward):
    _, timesteps, _ = play((2, 0), moves, illegal="no_op")
    assert [bool(t.terminated) for t in timesteps] == [False] * 6 + [True]
    assert not bool(timesteps[-1].truncated) and not bool(timesteps[-1].info["success"])
    np.testing.assert_array_equal(timesteps[-1].reward, reward)
    assert not any(np.any(t.reward) for t in timesteps[:-1])


def test_what_is_not_understood_may_be_asked_again():
    environment, timesteps, _ = play((0, 2), ["pass", "fish", "pass"], illegal="no_op")
    assert sentence(environment.text.words, timesteps[2].observation) == (
        "you are player 1 , your card is king , moves pass . nothing happens ."
    )
    assert [bool(t.info["valid"]) for t in timesteps] == [True, True, False, True]
    assert int(timesteps[2].player) == 1 and not bool(timesteps[2].terminated)
    np.testing.assert_array_equal(timesteps[3].reward, [-1, 1])


@pytest.mark.parametrize(("moves", "reward"), [(["fish"], [-1.5, 0.5]), (["bet", "fish"], [0.5, -1.5])])
def test_what_a_forfeit_pays_can_be_told(moves, reward):
    _, timesteps, _ = play((2, 0), moves, forfeit_payoff=(-1.5, 0.5))
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-1].info["success"])
    np.testing.assert_allclose(timesteps[-1].reward, reward)


HANDS = list(itertools.product(itertools.permutations(range(3), 2), ((0, 0), (0, 1, 0), (0, 1, 1), (1, 0), (1, 1))))


@functools.cache
def payoffs():
    """Chips of player 0 in each of the hands."""
    states = kuhn.KuhnState(
        cards=jnp.asarray([cards for cards, _ in HANDS]),
        moves=jnp.asarray([[*moves, -1][:3] for _, moves in HANDS], jnp.int32),
        count=jnp.asarray([len(moves) for _, moves in HANDS], jnp.int32),
    )
    return np.asarray(jax.vmap(kuhn.payoff)(states))[:, 0]


def expected_value(policies):
    """Value for player 0 of a pair of `[situation, card]` probabilities of a bet, by going through all hands."""
    total = 0.0
    for (cards, moves), chips in zip(HANDS, payoffs().tolist(), strict=True):
        probability = 1.0
        for turn, move in enumerate(moves):
            situation = 1 + moves[0] if turn == 1 else (0 if turn == 0 else 3)
            bet = policies[turn % 2][situation][cards[turn % 2]]
            probability *= bet if move else 1.0 - bet
        total += probability * chips / 6
    return total


def test_the_expert_cannot_be_exploited():
    situations = [([], 0), ([0], 1), ([1], 1), ([0, 1], 0)]
    table = np.zeros((4, 3))
    keys = jax.random.split(KEY, 4000)
    draw = jax.jit(lambda state: jnp.mean(jax.vmap(lambda key: kuhn.equilibrium(key, state))(keys)))
    for (s, (moves, player)), card in itertools.product(enumerate(situations), range(3)):
        cards = jnp.zeros(2, jnp.int32).at[player].set(card).at[1 - player].set((card + 1) % 3)
        moves = jnp.asarray(moves + [-1] * (3 - len(moves)), jnp.int32)
        state = kuhn.KuhnState(cards=cards, moves=moves, count=jnp.sum(moves >= 0))
        table[s, card] = draw(state)
    # The literature's numbers with b = 0.2: 1/3 bluffs and calls of player 1, b and 3 b of player 0, 1/3 + b calls.
    wanted = [[0.2, 0, 0.6], [1 / 3, 0, 1], [0, 1 / 3, 1], [0, 1 / 3 + 0.2, 1]]
    np.testing.assert_allclose(table, wanted, atol=0.035)
    pure = [np.reshape(bits, (2, 3)) for bits in itertools.product((0.0, 1.0), repeat=6)]
    against = [expected_value((wanted, np.stack([p[0], p[0], p[1], p[0]]))) for p in pure]
    np.testing.assert_allclose(min(against), -1 / 18, atol=1e-6)
    replies = [expected_value((np.stack([p[0], p[0], p[0], p[1]]), wanted)) for p in pure]
    np.testing.assert_allclose(max(replies), -1 / 18, atol=1e-6)


def test_a_weak_expert_moves_at_random():
    environment, reset, _ = functions(expert_strength=0.0)
    task = {"deal": jnp.asarray([1, 0], jnp.int32), "names": jnp.asarray([0, 7], jnp.int32), "level": jnp.int32(0)}
    state, _ = reset(KEY, task)  # The expert never opens with a bet on the queen.
    keys = jax.random.split(KEY, 1000)
    actions, _ = jax.jit(jax.vmap(lambda key: environment.text.expert(key, state)))(keys)
    bets = actions[:, 0] == environment.text.actions[1]
    np.testing.assert_allclose(np.mean(bets), 0.5, atol=0.065)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"illegal": "ignore"}, '`illegal` must be "no_op" or "forfeit", got \'ignore\''),
        ({"forfeit_payoff": (1.0, -1.0)}, "`forfeit_payoff` must be what the offender gets .* got \\(1.0, -1.0\\)"),
        ({"expert_strength": 1.5}, "`expert_strength` must be in \\[0, 1\\], got 1.5"),
        ({"max_steps": 2}, "`max_steps` must be at least the 3 moves of the longest game of kuhn poker, got 2"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        kuhn.make_environment(**options)

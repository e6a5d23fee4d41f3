"""Leduc poker in words: rounds, raises, folds and showdowns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import leduc
from jaxagents.environments.text.words import sentence

KEY = jax.random.key(0)
JACK, QUEEN, KING = range(3)


@functools.cache
def functions(**options):
    environment = leduc.make_environment(**options)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def play(cards, moves):
    """Returns the words that are seen, and the time steps."""
    environment, reset, step = functions()
    names = jnp.asarray([0, 1], jnp.int32)
    state, timestep = reset(KEY, {"deal": jnp.asarray(cards, jnp.int32), "names": names, "level": jnp.int32(0)})
    timesteps = [timestep]
    for move in moves.split():
        word = environment.text.words.index(move)
        state, timestep = step(KEY, state, jnp.asarray([word], jnp.int32))
        assert bool(timestep.info["valid"]), move
        timesteps.append(timestep)
    return [sentence(environment.text.words, t.observation) for t in timesteps], timesteps


def test_the_table_is_shown_in_the_second_round():
    texts, timesteps = play((JACK, KING, QUEEN), "call raise call raise")
    assert texts == [
        "you are player 0 , your card is jack , moves .",
        "you are player 1 , your card is king , moves call .",
        "you are player 0 , your card is jack , moves call raise .",
        "you are player 0 , your card is jack , table shows queen , moves call raise call then .",
        "you are player 1 , your card is king , table shows queen , moves call raise call then raise .",
    ]
    assert [int(t.player) for t in timesteps] == [0, 1, 0, 0, 1]


def test_folds_answer_raises_only_and_there_are_two_raises_in_a_round():
    _, timesteps = play((JACK, KING, QUEEN), "raise raise call raise raise")
    masks = [np.asarray(t.action_mask).astype(int).tolist() for t in timesteps]
    assert masks == [[0, 1, 1], [1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("cards", "moves", "reward"),
    [
        ((JACK, KING, QUEEN), "call call call call", -1),  # Antes only.
        ((JACK, KING, JACK), "call call call call", 1),  # A pair beats a king.
        ((QUEEN, QUEEN, KING), "raise call raise call", 0),  # Equal hands.
        ((KING, QUEEN, JACK), "raise call call call", 3),  # One raise of 2.
        ((KING, QUEEN, QUEEN), "raise raise call raise raise call", -13),  # 1 + 2 * 2 + 2 * 4.
        ((JACK, KING, QUEEN), "raise fold", 1),
        ((KING, JACK, QUEEN), "raise raise fold", -3),  # The ante and the first raise.
        ((KING, JACK, QUEEN), "raise call call raise fold", -3),
    ],
)
def test_payoffs(cards, moves, reward):
    _, timesteps = play(cards, moves)
    assert [bool(t.terminated) for t in timesteps] == [False] * (len(timesteps) - 1) + [True]
    np.testing.assert_array_equal(timesteps[-1].reward, [reward, -reward])


def test_deals_are_of_six_cards():
    deals = leduc.all_deals()
    assert deals.shape == (120, 3)
    # Of a rank there are two cards: a pair on the hands and the table is possible, three of a kind is not.
    assert not (deals == deals[:, :1]).all(axis=1).any()
    assert (deals[:, 0] == deals[:, 2]).mean() == pytest.approx(1 / 5)


@pytest.mark.exhaustive
def test_the_expert_raises_with_a_pair_and_folds_with_little():
    choose = jax.jit(jax.vmap(leduc.choose, in_axes=(0, None)))

    def shares(cards, moves):
        state = leduc.start(jnp.asarray(cards, jnp.int32))
        for move in moves:
            state = leduc.play(state, jnp.int32(move))
        return np.bincount(np.asarray(choose(jax.random.split(KEY, 2000), state)), minlength=3) / 2000

    np.testing.assert_allclose(shares((KING, JACK, QUEEN), []), [0.0, 0.2, 0.8], atol=0.04)
    np.testing.assert_allclose(shares((QUEEN, JACK, QUEEN), [1, 1]), [0.0, 0.1, 0.9], atol=0.03)
    np.testing.assert_allclose(shares((KING, JACK, QUEEN), [1, 1, 2]), [0.7, 0.2, 0.1], atol=0.04)

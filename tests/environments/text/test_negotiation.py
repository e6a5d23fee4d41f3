"""A negotiation in words: offers, trades, and who gained more."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import negotiation
from jaxagents.environments.text.words import sentence
from tests.fakes import play_actions

KEY = jax.random.key(0)
# Player 0 has 2 wood worth 1 each and 1 gold worth 3; player 1 has 1 wood worth 2 and 3 gold worth 1 each.
DEAL = {"holdings": jnp.asarray([[2, 1], [1, 3]], jnp.int32), "worth": jnp.asarray([[1, 3], [2, 1]], jnp.int32)}


@functools.cache
def functions():
    environment = negotiation.make_environment()
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def action(environment, text):
    words = [environment.text.words.index(word) for word in text.replace("_", " ").split()]
    return jnp.asarray(words + [-1] * (6 - len(words)), jnp.int32)


def play(moves):
    environment, reset, step = functions()
    task = {"deal": DEAL, "names": jnp.asarray([0, 1], jnp.int32), "level": jnp.int32(0)}
    state, timesteps = play_actions(reset, step, task, [action(environment, move) for move in moves], KEY)
    return [sentence(environment.text.words, t.observation) for t in timesteps], timesteps, state


def test_offers_are_seen_by_the_other_and_change_hands_when_accepted():
    texts, timesteps, _ = play(["give 1 wood for 2 gold", "accept"])
    assert texts == [
        "you are player 0 , you have wood 2 gold 1 , worth wood 1 gold 3 , they have wood 1 gold 3 , moves left 6 .",
        "you are player 1 , you have wood 1 gold 3 , worth wood 2 gold 1 , they have wood 2 gold 1 , "
        "offer give 1 wood for 2 gold , moves left 5 .",
        "you are player 0 , you have wood 1 gold 3 , worth wood 1 gold 3 , they have wood 2 gold 1 , moves left 4 .",
    ]
    assert all(bool(t.info["valid"]) for t in timesteps)


@pytest.mark.parametrize(
    ("moves", "reward"),
    [
        (["deny"] * 6, 0),  # Nobody gains.
        (["give 1 wood for 2 gold", "accept"] + ["deny"] * 4, 1),  # 5 for player 0, nothing for player 1.
        # A gold for a wood: player 0 loses 2, player 1 loses 1.
        (["deny", "give 1 wood for 1 gold", "accept", "deny", "deny", "deny"], -1),
        (["give 1 wood for 2 gold", "deny", "deny", "deny", "deny", "deny"], 0),
    ],
)
def test_whoever_gains_more_wins(moves, reward):
    _, timesteps, _ = play(moves)
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-2].terminated)
    np.testing.assert_array_equal(timesteps[-1].reward, [reward, -reward])


def test_nobody_gives_what_they_do_not_have():
    _, timesteps, _ = play([])
    # Player 0 has 2 wood and 1 gold: offers of 2 gold are out; nothing can be accepted.
    np.testing.assert_array_equal(timesteps[0].action_mask, [0, 1, 1, 1, 1, 1, 1, 1, 0, 0])
    _, timesteps, _ = play(["give 1 gold for 2 wood"])
    assert not bool(timesteps[1].action_mask[0])  # Player 1 has a single wood.
    _, timesteps, _ = play(["give 2 gold for 1 wood"])
    assert not bool(timesteps[1].info["valid"]) and int(timesteps[1].player) == 0


@pytest.mark.exhaustive
def test_the_expert_trades_to_its_advantage():
    environment, _, _ = functions()
    _, _, state = play([])
    offers = {
        sentence(environment.text.words, environment.text.expert(key, state)[0]) for key in jax.random.split(KEY, 20)
    }
    # A gold is worth three wood to player 0.
    assert offers <= {
        "give 1 wood for 1 gold",
        "give 1 wood for 2 gold",
        "give 2 wood for 1 gold",
        "give 2 wood for 2 gold",
    }
    assert len(offers) > 2
    _, _, state = play(["give 2 wood for 1 gold"])  # 4 for 1.
    assert sentence(environment.text.words, environment.text.expert(KEY, state)[0]) == "accept"
    _, _, state = play(["give 1 wood for 2 gold"])  # 2 for 2 gains nothing.
    assert sentence(environment.text.words, environment.text.expert(KEY, state)[0]) != "accept"

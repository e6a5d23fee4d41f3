"""Games against the expert: seats, rewards and whose turn it is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import bandit, kuhn
from jaxagents.environments.text.opponents import against_expert
from jaxagents.environments.text.words import sentence

KEY = jax.random.key(0)


@functools.cache
def functions(**options):
    environment = against_expert(kuhn.make_environment(**options))
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def begin(seat, cards, **options):
    environment, reset, step = functions(**options)
    game = {"deal": jnp.asarray(cards, jnp.int32), "names": jnp.asarray([0, 1], jnp.int32), "level": jnp.int32(0)}
    state, timestep = reset(KEY, {"game": game, "seat": jnp.int32(seat), "level": jnp.int32(0)})

    def say(state, word):
        return step(KEY, state, jnp.asarray([environment.text.words.index(word)], jnp.int32))

    return environment, state, timestep, say


def test_the_first_seat_opens_and_the_expert_answers():
    environment, state, timestep, say = begin(0, (0, 2))
    assert sentence(environment.text.words, timestep.observation) == "you are player 0 , your card is jack , moves ."
    _, timestep = say(state, "bet")  # The king always calls.
    assert bool(timestep.terminated) and float(timestep.reward) == -2.0 and not bool(timestep.info["success"])
    assert timestep.player is None and timestep.reward.shape == ()
    state, timestep = say(state, "pass")  # It also bets after a pass, and the agent decides once more.
    assert sentence(environment.text.words, timestep.observation) == (
        "you are player 0 , your card is jack , moves pass bet ."
    )
    assert float(timestep.reward) == 0.0
    assert float(say(state, "pass")[1].reward) == -1.0


def test_a_move_at_random_is_one_of_the_agents():
    environment, state, _, _ = begin(1, (1, 2))
    drawn = jax.jit(jax.vmap(environment.text.draw, in_axes=(0, None)))(jax.random.split(KEY, 20), state)
    assert set(drawn[:, 0].tolist()) == {environment.text.words.index(word) for word in ("pass", "bet")}
    assert environment.text.distance is None


def test_the_second_seat_meets_a_move():
    environment, state, timestep, say = begin(1, (1, 2))  # The queen never opens with a bet.
    assert sentence(environment.text.words, timestep.observation) == (
        "you are player 1 , your card is king , moves pass ."
    )
    _, timestep = say(state, "pass")
    assert float(timestep.reward) == 1.0 and bool(timestep.info["success"])


@pytest.mark.exhaustive
def test_what_is_not_understood_is_the_agents_alone():
    environment, state, timestep, say = begin(1, (1, 2), illegal="no_op")
    state, timestep = say(state, "jack")
    assert not bool(timestep.info["valid"]) and not bool(timestep.terminated)
    assert sentence(environment.text.words, timestep.observation).endswith("moves pass . nothing happens .")
    environment, state, timestep, say = begin(1, (1, 2))
    _, timestep = say(state, "jack")
    assert bool(timestep.terminated) and float(timestep.reward) == -2.0 and not bool(timestep.info["valid"])


@pytest.mark.exhaustive
def test_seats_are_drawn_or_fixed():
    environment = against_expert(kuhn.make_environment())
    seats = jax.jit(jax.vmap(environment.sample_task))(jax.random.split(KEY, 200))["seat"]
    assert 60 < int(jnp.sum(seats)) < 140
    fixed = against_expert(kuhn.make_environment(), seat=1).sample_task(KEY)
    np.testing.assert_array_equal(fixed["seat"], 1)


def test_what_is_no_game_is_refused():
    with pytest.raises(ValueError, match="`environment` must be a text world of 2 players, got 1 in 'bandit'"):
        against_expert(bandit.make_environment())
    with pytest.raises(ValueError, match="`seat` must be 0 or 1, got 2"):
        against_expert(kuhn.make_environment(), seat=2)

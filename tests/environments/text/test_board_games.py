"""Tic-tac-toe and Connect Four in words: the rules are those of pgx, and the experts are as good as they should be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters.pgx import make_environment as make_pgx
from jaxagents.environments.text import connect_four, tic_tac_toe
from jaxagents.environments.text.experts import lookahead
from jaxagents.environments.text.opponents import against_expert
from jaxagents.environments.text.words import sentence

KEY = jax.random.key(0)
GAMES = {"tic_tac_toe": tic_tac_toe, "connect_four": connect_four}


@functools.cache
def world(name, **options):
    return GAMES[name].make_environment(**options)


def task(name):
    return {"deal": jnp.zeros((), jnp.int32), "names": jnp.asarray([0, 1], jnp.int32), "level": jnp.int32(0)}


@pytest.mark.parametrize("name", GAMES)
def test_the_rules_are_those_of_pgx(name):
    ours, theirs = world(name), make_pgx(name)
    actions, longest = jnp.asarray(ours.text.actions), theirs.max_steps

    def play(key):
        state, timestep = ours.reset(key, task(name))
        other, theirs_seen = theirs.reset(key, theirs.sample_task(key))
        first = theirs_seen.player  # Which of its players opens is drawn there.

        def step(carry, key):
            state, timestep, other, _ = carry
            legal = timestep.action_mask
            move = jnp.argmax(jnp.where(legal, jax.random.uniform(key, legal.shape), -1.0))
            state, timestep = ours.step(key, state, actions[move])
            other, theirs_seen = theirs.step(key, other, move)
            # A step after the end: ours says no more.
            reward = jnp.where(first == 0, theirs_seen.reward, theirs_seen.reward[::-1])
            seen = (timestep.terminated, theirs_seen.terminated, timestep.reward, reward)
            open_ = ~timestep.terminated
            same = jnp.all((timestep.action_mask == theirs_seen.action_mask) | ~open_)
            return (state, timestep, other, theirs_seen), (*seen, same)

        return jax.lax.scan(step, (state, timestep, other, theirs_seen), jax.random.split(key, longest))[1]

    ended, theirs_ended, reward, theirs_reward, same = jax.jit(jax.vmap(play))(jax.random.split(KEY, 64))
    np.testing.assert_array_equal(ended, theirs_ended)
    assert np.asarray(ended)[:, -1].all() and np.asarray(same).all()
    np.testing.assert_array_equal(reward, theirs_reward)
    assert (np.asarray(reward).sum(axis=1)[:, 0] > 0).any() and (np.asarray(reward).sum(axis=1)[:, 0] < 0).any()


def returns_of_the_expert(name, num_games, **options):
    """Returns of an expert of full strength, in both seats, against one that moves at random."""
    environment = against_expert(world(name, expert_strength=0.0, **options))
    expert = world(name, **options).text.expert

    def play(key):
        reset_key, task_key, play_key = jax.random.split(key, 3)
        start = environment.reset(reset_key, environment.sample_task(task_key))

        def step(carry, key):
            state, _ = carry
            # The state of the game lies within those of `absorbing` and `against_expert`.
            state, timestep = environment.step(key, state, expert(key, state.inner)[0])
            return (state, timestep), timestep.reward

        (state, timestep), rewards = jax.lax.scan(
            step, start, jax.random.split(play_key, environment.max_steps // 2 + 1)
        )
        return jnp.sum(rewards), timestep.terminated

    returns, ended = jax.jit(jax.vmap(play))(jax.random.split(KEY, num_games))
    assert np.asarray(ended).all()
    return np.asarray(returns)


@pytest.mark.exhaustive
def test_minimax_never_loses_at_tic_tac_toe():
    returns = returns_of_the_expert("tic_tac_toe", 256)
    assert returns.min() >= 0.0 and returns.mean() > 0.7


@pytest.mark.exhaustive
def test_looking_ahead_wins_at_connect_four():
    returns = returns_of_the_expert("connect_four", 32, depth=2)
    assert returns.mean() > 0.85


def test_the_number_of_best_moves_is_known():
    best = tic_tac_toe.best_moves()
    # Any opening draws; in answer to a corner only the centre does, to the centre only the corners.
    assert best[0].all()
    np.testing.assert_array_equal(np.flatnonzero(best[1]), [4])
    np.testing.assert_array_equal(np.flatnonzero(best[3**4]), [0, 2, 6, 8])
    assert best.any(axis=1).sum() == 4520  # Boards that go on; 5478 can be reached, 958 of them are over.


def drop(columns):
    state = connect_four.start()
    for column in columns:
        state = connect_four.play(state, jnp.int32(column))
    return state


@pytest.mark.parametrize(
    ("columns", "won"),
    [
        ([0, 1, 0, 1, 0, 1, 0], True),  # A column.
        ([0, 0, 1, 1, 2, 2, 3], True),  # A row.
        ([0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3], True),  # Upwards to the right.
        ([6, 5, 5, 4, 4, 3, 4, 3, 3, 0, 3], True),  # Upwards to the left.
        ([0, 0, 1, 1, 2, 2, 4], False),
    ],
)
def test_four_in_a_row(columns, won):
    state = drop(columns)
    assert bool(state.won) == bool(connect_four.over(state)) == won
    np.testing.assert_array_equal(connect_four.payoff(state), [1.0, -1.0] if won else [0.0, 0.0])


@pytest.mark.exhaustive
def test_the_expert_wins_and_blocks():
    look_one, look_two, look_three = (lookahead(connect_four.RULES, depth) for depth in (1, 2, 3))
    three = drop([0, 6, 1, 6, 2, 5])  # Player 0 to move wins with column 4, player 1 has two in column 7.
    np.testing.assert_array_equal(look_one(three), [0, 0, 0, 1, 0, 0, 0])
    threatened = drop([0, 6, 1, 6, 2])  # Player 1 to move must block.
    np.testing.assert_array_equal(look_two(threatened), [-1, -1, -1, 0, -1, -1, -1])
    assert int(connect_four.make_expert(2)(KEY, threatened)[0]) == 3
    # Two open ends: whatever player 1 does, column 1 or 5 wins. Only seen by looking two further moves ahead.
    values = np.asarray(look_three(drop([1, 1, 2, 2])))
    np.testing.assert_array_equal(np.flatnonzero(values == 1.0), [3])
    full = drop([0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(np.isinf(look_one(full)), [True] + [False] * 6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "moves", "text"),
    [
        ("tic_tac_toe", ["a1", "b2"], "you are player 0 , X to move , X _ _ / _ O _ / _ _ _ ."),
        (
            "connect_four",
            ["column 1"],
            "you are player 1 , O to move , " + "_ _ _ _ _ _ _ / " * 5 + "X _ _ _ _ _ _ .",
        ),
    ],
)
def test_boards_are_seen_in_words(name, moves, text):
    environment = world(name, illegal="no_op")
    words, step = environment.text.words, jax.jit(environment.step)
    state, timestep = environment.reset(KEY, task(name))
    for move in moves:
        state, timestep = step(KEY, state, jnp.asarray([words.index(move)], jnp.int32))
    assert sentence(words, timestep.observation) == text
    state, timestep = step(KEY, state, jnp.asarray([words.index("/")], jnp.int32))
    assert sentence(words, timestep.observation) == f"{text} nothing happens ."
    assert len(environment.render(state).splitlines()) == {"tic_tac_toe": 3, "connect_four": 6}[name]


def test_a_taken_cell_is_not_legal():
    environment = world("tic_tac_toe")
    state, _ = environment.reset(KEY, task("tic_tac_toe"))
    state, _ = environment.step(KEY, state, jnp.asarray([environment.text.words.index("a1")], jnp.int32))
    _, timestep = environment.step(KEY, state, jnp.asarray([environment.text.words.index("a1")], jnp.int32))
    np.testing.assert_array_equal(timestep.reward, [1.0, -1.0])
    assert bool(timestep.terminated) and not bool(timestep.info["valid"])


def test_a_depth_out_of_range_is_refused():
    with pytest.raises(ValueError, match="`depth` must be from 1 to 5, got 0; try 3"):
        connect_four.make_environment(depth=0)

"""What experts choose by, and ways over grids."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text import grid
from jaxagents.environments.text.experts import best_of, choose, first_action, first_rule, lookahead
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import text
from jaxagents.environments.text.words import sentence
from jaxagents.environments.text.world import Status, World

KEY = jax.random.key(0)


def test_choices_are_uniform_over_the_mask():
    drawn = jax.vmap(lambda key: choose(key, jnp.asarray([False, True, False, True])))(jax.random.split(KEY, 2000))
    shares = np.bincount(np.asarray(drawn), minlength=4) / 2000
    # Four standard deviations.
    np.testing.assert_allclose(shares, [0, 0.5, 0, 0.5], atol=0.045)
    assert int(choose(KEY, jnp.zeros(3, bool))) == 0


def test_the_first_rule_that_holds_is_followed():
    def act(number):
        return first_rule([(number > 5, (0, -1)), (number > 3, (1, number)), (True, (2, 0))])

    assert [tuple(map(int, act(jnp.int32(n)))) for n in (7, 4, 1)] == [(0, -1), (1, 4), (2, 0)]


def test_the_first_rule_that_holds_is_an_action():
    grammar = make_grammar("wait", "go to {place}", "say {word:1-2}", place=("desk", "bed"), word="ab")

    def act(number):
        return first_action(
            grammar, [(number > 5, 1, number - 6), (number > 3, 2, jnp.stack([number - 4] * 2)), (True, 0)]
        )

    for number, verb, args in ((7, 1, [1, -1]), (5, 2, [1, 1]), (4, 2, [0, 0]), (1, 0, [-1, -1])):
        got = act(jnp.int32(number))
        assert (int(got[0]), got[0].dtype) == (verb, jnp.int32)
        np.testing.assert_array_equal(got[1], [args])
    assert sentence(grammar.words, grammar.render(*act(jnp.int32(7)))) == "go to bed"


def test_the_best_are_those_with_the_highest_scores_above_zero():
    np.testing.assert_array_equal(best_of(jnp.asarray([0, 2, 5, 2, 0]), 3), [2, 1, 3])
    np.testing.assert_array_equal(best_of(jnp.asarray([0.0, 0.5, -1.0, 0.0]), 3), [1, -1, -1])


def counting(goal=3):
    """One seat: add one or double, from one; progress is the number, at most three of them."""
    return World(
        name="counting",
        grammar=make_grammar("add", "double", "stop"),
        max_steps=9,
        sample=None,
        start=None,
        play=lambda key, state, verb, args: jnp.select([verb == 0, verb == 1], [state + 1, state * 2], state),
        status=lambda state: Status(success=state == goal, over=state >= goal, progress=(state == goal) * 1.0),
        tell=lambda state, seat: text("count"),
        expert=None,
        allowed=lambda state: jnp.asarray([True, True, False]),
    )


def test_looking_ahead_finds_the_way_within_the_depth():
    one, two = (lookahead(counting(), depth) for depth in (1, 2))
    np.testing.assert_array_equal(one(jnp.int32(2)), [1, 0, -np.inf])
    np.testing.assert_array_equal(one(jnp.int32(1)), [0, 0, -np.inf])
    np.testing.assert_array_equal(two(jnp.int32(1)), [1, 1, -np.inf])
    # What is over stays over: from 2, doubling to 4 misses the goal for good.
    np.testing.assert_array_equal(two(jnp.int32(2)), [1, 0, -np.inf])


MAZE = np.asarray([list(row) for row in ("__#_", "_##_", "____", "#__#")]) == "_"


def test_distances_are_steps_around_walls():
    target = np.zeros((4, 4), bool)
    target[0, 1] = True
    inf = np.inf
    found = jax.jit(grid.distances)(jnp.asarray(target), jnp.asarray(MAZE))
    expected = [[1, 0, inf, 8], [2, inf, inf, 7], [3, 4, 5, 6], [inf, 5, 6, inf]]
    np.testing.assert_array_equal(np.where(MAZE, found, inf), np.where(MAZE, expected, inf))
    nowhere = grid.distances(jnp.zeros((2, 2), bool), jnp.ones((2, 2), bool))
    assert np.isinf(nowhere).all()


def test_flood_stops_at_walls_and_borders():
    start = np.zeros((4, 4), bool)
    start[0, 3] = True
    walls = MAZE.copy()
    walls[2, 2] = False
    np.testing.assert_array_equal(
        jax.jit(grid.flood)(jnp.asarray(start), jnp.asarray(walls)),
        [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
    )

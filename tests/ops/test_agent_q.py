"""Actions of the same state, against values and choices made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.agent_q import siblings
from jaxagents.types import Layout


@pytest.fixture
def tree(make_episode):
    """Five episodes of a task and two of another one, of two turns of two tokens; the first is the action's.

    Task 0 begins in state 7: a (success 1, 0, 1), b (0), c (0). Behind a is state 8: a again (1), b (0), and a (1).
    Task 1 begins in a state of the same number: a (0), b (1).
    """
    a, b, c = 11, 12, 13
    first, second = [a, a, a, b, c, a, b], [a, b, a, c, 0, c, 0]
    success = jnp.array([True, False, True, False, False, False, True])
    tokens = np.zeros((7, 2, 4), np.int32)
    tokens[:, :, 1] = np.stack([first, second], axis=1)
    tokens[:, :, 2] = 3  # The end of an action.
    tokens[:, :, 3] = np.arange(14).reshape(7, 2)  # Padding, which is not compared.
    num_tokens = np.stack([np.full(7, 2), 2 * (np.array(second) > 0)], axis=1)
    state = np.array([[7, 8], [7, 8], [7, 8], [7, 9], [7, 0], [7, 5], [7, 0]], np.uint32)
    changes = {"tokens": jnp.asarray(tokens), "fingerprint": jnp.asarray(state), "success": success}
    return make_episode(np.zeros((7, 2)), num_tokens, group=[0, 0, 0, 0, 0, 1, 1], **changes)


def test_the_best_action_of_a_state_is_preferred_to_its_siblings(tree):
    """`Q(7, a) = 2/3`, `Q(7, b) = Q(7, c) = 0`; `Q(8, a) = 1`, `Q(8, b) = 0`; in task 1 `Q(a) = 0`, `Q(b) = 1`."""
    pairs = jax.jit(siblings)(tree)
    pair, desirable = np.full((7, 2), -1), np.zeros((7, 2), bool)
    pair[3, 0] = pair[4, 0] = 0  # b and c, to the first a.
    pair[1, 1] = 1  # Row 0, turn 1.
    pair[5, 0] = 12  # In the other task b is better.
    desirable[[0, 1, 2, 6], 0] = True
    desirable[[0, 2, 3, 5], 1] = True  # Those alone in their state are not behind.
    np.testing.assert_array_equal(pairs.pair.reshape(7, 2), pair)
    np.testing.assert_array_equal(pairs.desirable.reshape(7, 2), desirable)


def test_rows_are_turns(tree):
    rows = siblings(tree).episode
    assert rows.tokens.shape == (14, 1, 4) and rows.prompt_tokens.shape == (14, 1)
    np.testing.assert_array_equal(rows.tokens[:, 0], tree.tokens.reshape(14, 4))
    np.testing.assert_array_equal(rows.success, np.repeat(tree.success, 2))
    np.testing.assert_array_equal(rows.keep, tree.valid.reshape(-1))


def test_an_action_is_compared_once_and_by_more_than_the_gap(tree):
    again = tree.replace(tokens=tree.tokens.at[4, 0, 1].set(12))  # b in place of c: twice the same.
    np.testing.assert_array_equal(np.flatnonzero(siblings(again).pair >= 0), [3, 6, 10])
    np.testing.assert_array_equal(np.flatnonzero(siblings(tree, gap=0.7).pair >= 0), [3, 10])
    dropped = tree.replace(keep=jnp.arange(7) != 6)
    np.testing.assert_array_equal(np.flatnonzero(siblings(dropped).pair >= 0), [3, 6, 8])


def test_what_was_hardly_tried_is_neither_preferred_nor_rejected(tree):
    """Of two visits and more, a alone has a value, in states 7 (2 of 3) and 8 (2 of 2), and nothing to compare with."""
    pairs = jax.jit(siblings)(tree, visits=2)
    assert not (pairs.pair >= 0).any()
    np.testing.assert_array_equal(np.flatnonzero(pairs.desirable), [0, 1, 2, 4, 5])
    again = tree.replace(tokens=tree.tokens.at[4, 0, 1].set(12))  # b in place of c: b has two, and no success.
    np.testing.assert_array_equal(np.flatnonzero(siblings(again, visits=2).pair >= 0), [6])


def test_turns_that_see_earlier_ones_are_refused(tree):
    layout = Layout(prompt=1, observation=1, thought=0, action=3, num_turns=2, context_turns=2)
    with pytest.raises(ValueError, match="`policy.context_turns` must be 1 to compare actions of a state, got 2"):
        siblings(tree.replace(layout=layout))

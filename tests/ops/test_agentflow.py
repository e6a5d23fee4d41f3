"""Credit of a planner's turns, by hand: Flow-GRPO as written, and as released."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.agentflow import grpo_over_turns
from jaxagents.ops.credit import grpo
from jaxagents.types import EpisodeView

# Four episodes of a question, of 1, 2, 3 and 2 turns, of which the first two succeeded; and one alone.
REWARD = [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
TOKENS = [[2, 0, 0], [1, 3, 0], [1, 1, 2], [2, 2, 0], [1, 1, 0]]
GROUP = [0, 0, 0, 0, 1]


def of_turns(credit, episode):
    """Returns the advantage of every turn, `[B, T]`, after all its sampled tokens were found to have the same."""
    advantage = np.asarray(credit(EpisodeView(episode=episode)).advantage)
    mask = np.asarray(episode.action_mask)
    assert (advantage[~mask] == 0).all()
    first = advantage[:, :, 1]
    np.testing.assert_allclose(advantage, np.where(mask, first[:, :, None], 0.0), rtol=1e-6)
    return first


def test_one_outcome_is_the_advantage_of_every_turn(make_episode):
    """The mean of 1, 1, 0, 0 is 1/2, and their deviation."""
    taken = np.asarray(TOKENS) > 0
    expected = np.array([1, 1, -1, -1, 0])[:, None] * taken
    np.testing.assert_allclose(of_turns(grpo, make_episode(REWARD, TOKENS, group=GROUP)), expected, atol=1e-5)


def test_the_release_compares_turns_by_hand(make_episode):
    """Rows 1, 1, 1, 0, 0, 0, 0, 0: the mean is 3/8, the deviation of the sample sqrt(15/56)."""
    rows = np.array([1, 1, 1, 0, 0, 0, 0, 0])
    won, lost = (1 - 3 / 8) / rows.std(ddof=1), (0 - 3 / 8) / rows.std(ddof=1)
    expected = np.array([won, won, lost, lost, 0])[:, None] * (np.asarray(TOKENS) > 0)
    actual = of_turns(grpo_over_turns, make_episode(REWARD, TOKENS, group=GROUP))
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_allclose(rows.std(ddof=1), np.sqrt(15 / 56))


def test_dropped_rows_count_nowhere_and_equal_returns_are_worth_nothing(make_episode):
    kept = np.array([True, True, False, True, True])
    dropped = of_turns(grpo_over_turns, make_episode(REWARD, TOKENS, group=GROUP, keep=jnp.asarray(kept)))
    rows = np.array([1, 1, 1, 0, 0])
    won, lost = (rows[[0, -1]] - rows.mean()) / rows.std(ddof=1)
    np.testing.assert_allclose(dropped[[0, 1, 3], 0], [won, won, lost], atol=1e-5)
    assert (dropped[2] == 0).all()
    equal = make_episode(np.zeros((3, 2)), [[1, 1], [1, 0], [2, 1]])
    assert (of_turns(jax.jit(grpo_over_turns), equal) == 0).all()


def test_games_of_several_seats_are_refused(make_episode):
    several = make_episode([[1.0]], [[1]], seat_return=jnp.zeros((1, 2)))
    with pytest.raises(ValueError, match="`environment` must have one seat for a mean over turns"):
        grpo_over_turns(EpisodeView(episode=several))

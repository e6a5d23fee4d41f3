"""Tests of our teams and games as those of PettingZoo, by the checks that it brings."""

import numpy as np
import pytest

from jaxagents.environments import tmaze
from jaxagents.environments.adapters import pgx
from jaxagents.environments.adapters.to_pettingzoo import make_pettingzoo
from jaxagents.environments.coordination import make_two_step_game

checks = pytest.importorskip("pettingzoo.test", reason="PettingZoo comes with the extra `envs`")


def test_pettingzoo_accepts_a_team():
    checks.parallel_api_test(make_pettingzoo(make_two_step_game()), num_cycles=20)


@pytest.fixture(scope="module")
def board():
    pytest.importorskip("pgx", reason="pgx comes with the extra `envs`")
    return make_pettingzoo(pgx.make_environment("tic_tac_toe"))


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_accepts_a_game_in_turns(board):
    checks.api_test(board, num_cycles=30)


def test_the_first_three_in_a_row_win(board):
    board.reset(seed=0)
    first = board.agent_selection
    (other,) = {"agent_0", "agent_1"} - {first}
    for move in (0, 3, 1, 4):  # The opener takes the upper row, the other one the middle.
        observation, reward, terminated, truncated, info = board.last()
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info["action_mask"][move] and observation.shape == (3, 3, 2)
        board.step(move)
    assert board.agent_selection == first
    np.testing.assert_array_equal(board.last()[4]["action_mask"], [0, 0, 1, 0, 0, 1, 1, 1, 1])
    board.step(2)
    assert board.terminations == {first: True, other: True}
    assert board.rewards == {first: 1.0, other: -1.0}
    for _ in range(2):  # Both hear of it, and leave.
        board.step(None)
    assert board.agents == []


def test_worlds_of_one_agent_are_for_gymnasium():
    with pytest.raises(ValueError, match="try make_gymnasium"):
        make_pettingzoo(tmaze.make_environment(corridor_length=2))

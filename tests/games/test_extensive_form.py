"""Trees to arrays."""

import numpy as np

from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.trees import expand


def test_kuhn_poker_by_hand():
    game = compile_game(kuhn(2))
    first, second = game.seats
    assert (game.name, game.num_players, game.num_histories, game.num_terminals) == ("kuhn2", 2, 58, 30)
    assert (first.levels, second.levels) == ((0, 3, 6), (0, 6))
    # After passing (action 0) with card i, sequence 1 + 2 i, the first player may move again.
    np.testing.assert_array_equal(first.previous, [0, 0, 0, 1, 3, 5])
    np.testing.assert_array_equal(second.previous, [0] * 6)
    assert first.mask.all() and first.num_sequences == 13
    assert game.payoff.shape == (2, 30) and game.payoff.dtype == np.float64
    np.testing.assert_allclose(game.payoff.sum(axis=0), 0.0, atol=1e-15)
    # Of each of six deals: both pass or a fold, 1 chip three times; a call after a bet, 2 chips twice.
    np.testing.assert_allclose(np.abs(game.payoff[0]).sum(), 3 * 1 + 2 * 2)


def test_rows_are_padded_and_shared_outcomes_added_up():
    payoffs = np.arange(12.0).reshape(2, 2, 3)
    game = compile_game(from_payoffs(payoffs, name="small"))
    assert [seat.mask.tolist() for seat in game.seats] == [[[True, True]], [[True, True, True]]]
    np.testing.assert_array_equal(game.sequence, [[1, 1, 1, 2, 2, 2], [1, 2, 3, 1, 2, 3]])
    np.testing.assert_array_equal(game.payoff, payoffs.reshape(2, 6))
    lopsided = compile_game(expand(kuhn(2))._replace(information_sets=((), ()), outcomes={(None, None): [1.0, -1.0]}))
    assert [seat.mask.shape for seat in lopsided.seats] == [(0, 1), (0, 1)]
    assert [seat.levels for seat in lopsided.seats] == [(0,), (0,)]

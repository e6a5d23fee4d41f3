"""Our games against OpenSpiel's: the same trees, and the same values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.games.best_response import nash_conv
from jaxagents.games.definitions.goofspiel import goofspiel
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.definitions.leduc import leduc
from jaxagents.games.definitions.liars_dice import liars_dice
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.definitions.sheriff import sheriff
from jaxagents.games.extensive_form import compile_game
from jaxagents.games.openspiel import from_openspiel
from jaxagents.games.strategies import expected_values, uniform_profile

_GOOFSPIEL = "goofspiel(imp_info=True,num_cards={},points_order=descending,players={},returns_type=win_loss)"
_SHERIFF = "sheriff(item_penalty={},item_value={},sheriff_penalty={},max_bribe={},max_items={},num_rounds={})"
GAMES = {
    "kuhn_poker": kuhn(),
    "kuhn_poker(players=4)": kuhn(4),
    "leduc_poker": leduc(),
    "liars_dice(dice_sides=3)": liars_dice(3),
    "liars_dice(dice_sides=2,numdice=2)": liars_dice(2, num_dice=2),
    _GOOFSPIEL.format(4, 2): goofspiel(4),
    _GOOFSPIEL.format(3, 3): goofspiel(3, num_players=3),
    _SHERIFF.format(1.0, 5.0, 1.0, 2, 3, 1): sheriff(),
    _SHERIFF.format(2.0, 4.0, 3.0, 1, 2, 2): sheriff(2, 1, 2, item_value=4.0, item_penalty=2.0, sheriff_penalty=3.0),
}


@pytest.mark.parametrize("name", GAMES)
def test_openspiel_has_the_same_game(name):
    mine, theirs = compile_game(GAMES[name]), compile_game(from_openspiel(name))
    assert (mine.num_histories, mine.num_terminals) == (theirs.num_histories, theirs.num_terminals)
    assert mine.payoff.shape == theirs.payoff.shape
    for own, other in zip(mine.seats, theirs.seats):
        assert own.levels == other.levels and own.mask.sum() == other.mask.sum()
        np.testing.assert_array_equal(np.sort(own.mask.sum(axis=1)), np.sort(other.mask.sum(axis=1)))
    with jax.enable_x64():
        np.testing.assert_allclose(_values_of_uniform(mine), _values_of_uniform(theirs), atol=1e-12)


@jax.jit
def _values_of_uniform(game):
    profile = uniform_profile(game)
    return jnp.append(expected_values(game, profile), nash_conv(game, profile))


def test_states_that_pay_by_hand():
    play = _play(leduc(), [0, 4, 1, 2, 1, 5, 1, 1])  # Jack, king; call, raise, call; a king; call, call.
    assert play == [-3.0, 3.0]
    assert _play(leduc(), [0, 1, 2, 0]) == [1.0, -1.0]  # Raise, fold.
    assert _play(leduc(), [0, 1, 1, 1, 2, 2, 2, 1]) == [0.0, 0.0]  # Two jacks share.
    # Dice 1 and 2 of sides 3: two ones are not there, one wild three would not help the second bidder.
    assert _play(liars_dice(3), [1, 2, 0, 3, 6]) == [1.0, -1.0]
    assert _play(liars_dice(3), [3, 1, 0, 3, 6]) == [-1.0, 1.0]
    # Prizes 3, 2 and 1: three beats two, one loses to three, and the last two beats one; then three ties.
    assert _play(goofspiel(3), [3, 2, 1, 3]) == [1.0, -1.0]
    assert _play(goofspiel(3), [3, 3, 2, 2]) == [0.0, 0.0]
    assert _play(goofspiel(3), [3, 1, 2, 2]) == [1.0, -1.0]
    assert _play(sheriff(), [3, 2, 0]) == [13.0, 2.0]
    assert _play(sheriff(), [3, 2, 1]) == [-3.0, 3.0]
    assert _play(sheriff(), [0, 2, 1]) == [1.0, -1.0]
    assert _play(kuhn(3), [1, 3, 0, 0, 1, 0, 1]) == [-2.0, 3.0, -1.0]


def _play(definition, actions):
    state = definition.root
    for action in actions:
        state = definition.child(state, action)
    return list(definition.payoffs(state))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kuhn(1), "`num_players` must be at least 2, got 1"),
        (lambda: leduc(1), "`num_players` must be at least 2, got 1"),
        (lambda: liars_dice(1), "`sides` must be at least 2, got 1"),
        (lambda: liars_dice(num_dice=0), "`num_dice` must be at least 1, got 0"),
        (lambda: goofspiel(1), "`num_cards` must be at least 2, got 1"),
        (lambda: sheriff(max_items=0), "`max_items` must be at least 1, got 0"),
        (lambda: from_payoffs(np.zeros((2, 3))), r"shape \[N, A_1, ..., A_N\] .* got \(2, 3\)"),
        (lambda: from_payoffs(np.zeros((3, 2, 2))), r"got \(3, 2, 2\)"),
        (lambda: from_payoffs(np.zeros((2, 0, 2))), r"got \(2, 0, 2\)"),
        (lambda: from_payoffs([[[0.0, np.nan]], [[0.0, 0.0]]]), r"must be finite, got nan at \(0, 0, 1\)"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

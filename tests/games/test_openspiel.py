"""Games of OpenSpiel."""

import importlib

import pytest

from jaxagents.games.extensive_form import compile_game
from jaxagents.games.openspiel import from_openspiel


def test_simultaneous_moves_are_hidden():
    game = compile_game(from_openspiel("matrix_pd"))
    assert [seat.mask.shape for seat in game.seats] == [(1, 2), (1, 2)]
    assert game.payoff.tolist() == [[5.0, 0.0, 10.0, 1.0], [5.0, 10.0, 0.0, 1.0]]


def test_games_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="`game` must be registered in OpenSpiel, got 'kuhn'; try kuhn_poker"):
        from_openspiel("kuhn")
    with pytest.raises(ValueError, match="`game` must have information states and explicit chance, got yacht"):
        from_openspiel("yacht")


def test_a_missing_suite_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"run `pip install 'jaxagents\[openspiel\]'`"):
        from_openspiel("kuhn_poker")

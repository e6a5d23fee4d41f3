"""Rules to trees: what is found in small games, and which rules are refused."""

import pytest

from jaxagents.games import trees
from jaxagents.games.definitions.kuhn import BET, PASS, kuhn
from jaxagents.games.definitions.normal_form import from_payoffs
from jaxagents.games.trees import CHANCE, TERMINAL, Definition, expand


def coin_game(outcomes=((0, 0.5), (1, 0.5)), information=lambda state: state, actions=lambda state: (0, 1), depth=2):
    """Returns a game in which chance tosses a coin, and a single player moves `depth - 1` times; states are moves."""
    return Definition(
        name="coins",
        num_players=1,
        root=(),
        player=lambda state: CHANCE if not state else TERMINAL if len(state) == depth else 0,
        actions=actions,
        outcomes=lambda state: outcomes,
        child=lambda state, action: (*state, action),
        payoffs=lambda state: [float(sum(state))],
        information=information,
    )


def test_kuhn_poker_by_hand():
    tree = expand(kuhn(2))
    first, second = tree.information_sets
    assert (tree.num_histories, tree.num_terminals) == (58, 30)
    # Three cards before any move, then the same cards after pass and bet.
    assert [(known.label, known.level) for known in first[:3]] == [((0, ()), 0), ((1, ()), 0), ((2, ()), 0)]
    assert first[3] == ((0, (PASS, BET)), (PASS, BET), (0, 0), 1)
    assert [known.label for known in second][:2] == [(1, (PASS,)), (1, (BET,))]
    # The jack passes, the king passes: one of six deals, the antes.
    (king,) = [index for index, known in enumerate(second) if known.label == (2, (PASS,))]
    assert tree.outcomes[(0, 0), (king, 0)] == pytest.approx([-1 / 6, 1 / 6])


def test_histories_that_end_with_the_same_choices_are_one_outcome():
    # The player does not see the coin: payoffs 0 and 1 of action 0, 1 and 2 of action 1, each half of the time.
    tree = expand(coin_game(information=lambda state: state[1:]))
    assert tree.outcomes == {((0, 0),): [0.5], ((0, 1),): [1.5]}
    assert (tree.num_histories, tree.num_terminals) == (7, 4)


def test_impossible_outcomes_are_not_visited():
    tree = expand(coin_game(outcomes=((0, 0.0), (1, 1.0))))
    assert [known.label for known in tree.information_sets[0]] == [(1,)]
    assert tree.num_histories == 4


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        # The player forgets the coin after seeing it, and what was done before.
        (
            {"depth": 3, "information": lambda state: state[:1] if len(state) == 1 else "later"},
            r"must not forget \(perfect recall\), got 'later' of player 0 after 0 at \(0,\) and after 1 at \(0,\)",
        ),
        ({"depth": 3, "information": lambda state: "same"}, "got 'same' of player 0 after no choice and after 0 at"),
        ({"outcomes": ((0, 0.5), (1, 0.6))}, r"`outcomes` must have probabilities of sum 1, got \[0.5, 0.6\]"),
        ({"outcomes": ((0, -0.5), (1, 1.5))}, r"`outcomes` must have probabilities of sum 1, got \[-0.5, 1.5\]"),
        ({"outcomes": ((0, float("nan")),)}, "`outcomes` must have probabilities of sum 1"),
        ({"actions": lambda state: ()}, r"`actions` must be at least one, got none of \(0,\)"),
        (
            {"actions": lambda state: range(1 + state[0]), "information": lambda state: "coin"},
            r"`actions` must be the same within an information set, got \[0\] and \[0, 1\] of 'coin'",
        ),
    ],
)
def test_rules_that_do_not_hold_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        expand(coin_game(**rules))


def test_payoffs_and_players_that_do_not_hold_are_refused():
    game = coin_game()
    with pytest.raises(ValueError, match=r"`payoffs` must be 1 finite numbers, got \[nan\] of \(0, 0\) in coins"):
        expand(game._replace(payoffs=lambda state: [float("nan")]))
    with pytest.raises(ValueError, match=r"`payoffs` must be 1 finite numbers, got \[0.0, 0.0\]"):
        expand(game._replace(payoffs=lambda state: [0.0, 0.0]))
    with pytest.raises(ValueError, match="`player` must be CHANCE, TERMINAL or below 1, got 3"):
        expand(game._replace(player=lambda state: 3))
    with pytest.raises(ValueError, match="`num_players` must be at least 1, got 0 of coins"):
        expand(game._replace(num_players=0))


def test_games_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(trees, "MAX_HISTORIES", 57)
    with pytest.raises(ValueError, match="must have at most 57 histories, kuhn2 has more; try a smaller variant"):
        expand(kuhn(2))
    assert expand(from_payoffs([[[1.0]], [[2.0]]])).num_histories == 3

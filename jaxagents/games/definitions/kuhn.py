"""Kuhn poker for two or more players."""

from typing import Any, NamedTuple

from jaxagents.games.trees import CHANCE, TERMINAL, Definition

PASS, BET = 0, 1


class _State(NamedTuple):
    cards: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()


def kuhn(num_players: int = 2) -> Definition:
    """Makes Kuhn poker with N + 1 cards: all players ante one, and bet at most one.

    In turn, players pass or bet; after the first bet, each of the others passes (folds) or bets (calls) once more. The
    highest card among the players who bet, or among all if nobody did, wins the pot.

    Args:
        num_players: N, number of players, at least 2.

    Returns:
        The definition. A label is (own card, moves).

    Raises:
        ValueError: there are fewer than two players.

    References:
        Kuhn (1950), "A Simplified Two-Person Poker". Szafron et al. (2013), "A Parameterized Family of Equilibrium
        Profiles for Three-Player Kuhn Poker".
    """
    if num_players < 2:
        raise ValueError(f"`num_players` must be at least 2, got {num_players}.")

    def player(state: _State) -> int:
        if len(state.cards) < num_players:
            return CHANCE
        bettor = state.moves.index(BET) if BET in state.moves else None
        last = num_players if bettor is None else bettor + num_players
        return TERMINAL if len(state.moves) == last else len(state.moves) % num_players

    def outcomes(state: _State) -> list[tuple[int, float]]:
        left = [card for card in range(num_players + 1) if card not in state.cards]
        return [(card, 1.0 / len(left)) for card in left]

    def child(state: _State, action: Any) -> _State:
        if len(state.cards) < num_players:
            return state._replace(cards=(*state.cards, action))
        return state._replace(moves=(*state.moves, action))

    def payoffs(state: _State) -> list[float]:
        bettors = {index % num_players for index, move in enumerate(state.moves) if move == BET}
        stakes = [2.0 if index in bettors else 1.0 for index in range(num_players)]
        winner = max(bettors or range(num_players), key=lambda index: state.cards[index])
        return [sum(stakes) * (index == winner) - stake for index, stake in enumerate(stakes)]

    return Definition(
        name=f"kuhn{num_players}",
        num_players=num_players,
        root=_State(),
        player=player,
        actions=lambda state: (PASS, BET),
        outcomes=outcomes,
        child=child,
        payoffs=payoffs,
        information=lambda state: (state.cards[len(state.moves) % num_players], state.moves),
    )

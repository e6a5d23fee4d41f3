"""Goofspiel with hidden bids: players bid cards for prizes, and only the winners are public."""

from typing import Any, NamedTuple

from jaxagents.games.trees import TERMINAL, Definition


class _State(NamedTuple):
    """`bids` of all players, turn by turn; `winners` of the turns, None for ties."""

    bids: tuple[int, ...] = ()
    winners: tuple[int | None, ...] = ()


def goofspiel(num_cards: int = 4, num_players: int = 2) -> Definition:
    """Makes goofspiel: cards 1 to C, each played once, are bid for the prizes C, C - 1, ..., 1.

    All bid at the same time; the highest bid wins the prize, or nobody if several are highest. Players learn who won,
    but not the bids. The players with the most points share +1, the others share -1; if all have equal points, the
    payoff is 0. The last cards are played automatically.

    Args:
        num_cards: C, number of cards per player, at least 2.
        num_players: N, number of players, at least 2.

    Returns:
        The definition. A label is (own bids, winners).

    Raises:
        ValueError: there are too few cards or players.

    References:
        Ross (1971), "Goofspiel: The Game of Pure Strategy". Lisy, Lanctot and Bowling (2015) (hidden bids).
    """
    for name, value in (("num_cards", num_cards), ("num_players", num_players)):
        if value < 2:
            raise ValueError(f"`{name}` must be at least 2, got {value}.")

    def bids_of(state: _State, player: int) -> tuple[int, ...]:
        return state.bids[player::num_players]

    def actions(state: _State) -> list[int]:
        own = bids_of(state, len(state.bids) % num_players)
        return [card for card in range(1, num_cards + 1) if card not in own]

    def child(state: _State, action: Any) -> _State:
        state = state._replace(bids=(*state.bids, action))
        if len(state.bids) % num_players:
            return state
        state = state._replace(winners=(*state.winners, _winner(state.bids[-num_players:])))
        if len(state.winners) < num_cards - 1:
            return state
        last = tuple(sum(range(1, num_cards + 1)) - sum(bids_of(state, player)) for player in range(num_players))
        return _State(bids=(*state.bids, *last), winners=(*state.winners, _winner(last)))

    def payoffs(state: _State) -> list[float]:
        points = [0] * num_players
        for prize, winner in zip(range(num_cards, 0, -1), state.winners):
            if winner is not None:
                points[winner] += prize
        best = [player for player in range(num_players) if points[player] == max(points)]
        if len(best) == num_players:
            return [0.0] * num_players
        lost = -1.0 / (num_players - len(best))
        return [1.0 / len(best) if player in best else lost for player in range(num_players)]

    return Definition(
        name=f"goofspiel{num_cards}x{num_players}",
        num_players=num_players,
        root=_State(),
        player=lambda state: TERMINAL if len(state.winners) == num_cards else len(state.bids) % num_players,
        actions=actions,
        outcomes=lambda state: [],
        child=child,
        payoffs=payoffs,
        information=lambda state: (bids_of(state, len(state.bids) % num_players), state.winners),
    )


def _winner(bids: tuple[int, ...]) -> int | None:
    return bids.index(max(bids)) if bids.count(max(bids)) == 1 else None

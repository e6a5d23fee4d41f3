"""Goofspiel with hidden bids: cards are bid for prizes, and only who won is public."""

from typing import Any, NamedTuple

from jaxagents.games.trees import TERMINAL, Definition


class _State(NamedTuple):
    """`bids` of all players, turn after turn; `winners` of the turns, None for ties."""

    bids: tuple[int, ...] = ()
    winners: tuple[int | None, ...] = ()


def goofspiel(num_cards: int = 4, num_players: int = 2) -> Definition:
    """Makes goofspiel: prizes C, C - 1, ..., 1 are bid for with cards 1 to C, each played once.

    All bid at the same time; the highest bid wins the prize, nobody if two or more are highest. Players learn who won
    and not what was bid. Who has most points shares +1 with others who do, the rest shares -1; all alike is 0. The
    last cards are played by themselves.

    Args:
        num_cards: C, two or more.
        num_players: N, two or more.

    Returns:
        The definition. A label is (own bids, winners).

    Raises:
        ValueError: too few cards or players.

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

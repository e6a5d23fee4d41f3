"""Leduc poker: two suits, two betting rounds, one public card."""

from typing import Any, NamedTuple

from jaxagents.games.trees import CHANCE, TERMINAL, Definition

FOLD, CALL, RAISE = 0, 1, 2
_MAX_RAISES, _BETS = 2, (2.0, 4.0)


class _State(NamedTuple):
    """`moves` of each round, and the number of players `waiting` to move in the current round."""

    stakes: tuple[float, ...]
    folded: tuple[bool, ...]
    player: int
    waiting: int
    cards: tuple[int, ...] = ()
    moves: tuple[tuple[int, ...], ...] = ((),)
    raises: int = 0


def leduc(num_players: int = 2) -> Definition:
    """Makes Leduc poker: N + 1 ranks in two suits, one card each, a betting round, a public card, another round.

    All players ante one. A raise is two in the first round and four in the second, with at most two raises per round. A
    pair with the public card beats all other cards; otherwise the higher rank wins, and equal ranks share the pot.

    Args:
        num_players: N, number of players, at least 2.

    Returns:
        The definition. Cards of the same rank are distinguished, as in OpenSpiel. A label is (own card, public card or
        None, moves of each round).

    Raises:
        ValueError: there are fewer than two players.

    References:
        Southey et al. (2005), "Bayes' Bluff: Opponent Modelling in Poker".
    """
    if num_players < 2:
        raise ValueError(f"`num_players` must be at least 2, got {num_players}.")
    start = _State(stakes=(1.0,) * num_players, folded=(False,) * num_players, player=0, waiting=num_players)

    def player(state: _State) -> int:
        if sum(state.folded) == num_players - 1 or (len(state.moves) == 2 and state.waiting == 0):
            return TERMINAL
        return CHANCE if len(state.cards) < num_players or state.waiting == 0 else state.player

    def outcomes(state: _State) -> list[tuple[int, float]]:
        left = [card for card in range(2 * (num_players + 1)) if card not in state.cards]
        return [(card, 1.0 / len(left)) for card in left]

    def child(state: _State, action: Any) -> _State:
        if len(state.cards) < num_players:
            return state._replace(cards=(*state.cards, action))
        if state.waiting == 0:
            first = state.folded.index(False)
            active = num_players - sum(state.folded)
            return state._replace(
                cards=(*state.cards, action), moves=(*state.moves, ()), raises=0, player=first, waiting=active
            )
        return _bet(state, action)

    return Definition(
        name=f"leduc{num_players}",
        num_players=num_players,
        root=start,
        player=player,
        actions=_actions,
        outcomes=outcomes,
        child=child,
        payoffs=_payoffs,
        information=lambda state: (
            state.cards[state.player],
            state.cards[num_players] if len(state.cards) > num_players else None,
            state.moves,
        ),
    )


def _actions(state: _State) -> list[int]:
    can_fold = max(state.stakes) > state.stakes[state.player]
    return [*([FOLD] if can_fold else []), CALL, *([RAISE] if state.raises < _MAX_RAISES else [])]


def _bet(state: _State, action: int) -> _State:
    player, stakes, folded = state.player, list(state.stakes), list(state.folded)
    waiting, raises = state.waiting - 1, state.raises
    if action == FOLD:
        folded[player] = True
    else:
        stakes[player] = max(stakes)
    if action == RAISE:
        stakes[player] += _BETS[len(state.moves) - 1]
        raises, waiting = raises + 1, len(folded) - sum(folded) - 1
    following = (player + 1) % len(folded)
    while folded[following]:
        following = (following + 1) % len(folded)
    return state._replace(
        stakes=tuple(stakes),
        folded=tuple(folded),
        player=following,
        waiting=waiting,
        raises=raises,
        moves=(*state.moves[:-1], (*state.moves[-1], action)),
    )


def _payoffs(state: _State) -> list[float]:
    left = [player for player, folded in enumerate(state.folded) if not folded]
    winners = left
    if len(left) > 1:
        public = state.cards[-1] // 2
        strength = {player: (state.cards[player] // 2 == public, state.cards[player] // 2) for player in left}
        winners = [player for player in left if strength[player] == max(strength.values())]
    share = sum(state.stakes) / len(winners)
    return [share * (player in winners) - stake for player, stake in enumerate(state.stakes)]

"""Liar's dice for two players: bid on the dice of both, or call the other a liar."""

from typing import Any, NamedTuple

from jaxagents.games.trees import CHANCE, TERMINAL, Definition


class _State(NamedTuple):
    dice: tuple[int, ...] = ()
    bids: tuple[int, ...] = ()


def liars_dice(sides: int = 6, num_dice: int = 1) -> Definition:
    """Makes liar's dice: both roll in secret, and bid in turn until one does not believe the other.

    A bid (quantity, face) claims that at least that many of all dice show the face; the highest face counts as every
    face. Bids go up, by quantity first: action `(quantity - 1) sides + face - 1`. The last action, `2 num_dice sides`,
    calls the last bidder a liar. The bidder wins one if the bid is true, and loses one otherwise.

    Args:
        sides: number of sides of a die, at least 2.
        num_dice: number of dice of each player.

    Returns:
        The definition. A label is (own dice, sorted, bids).

    Raises:
        ValueError: there are fewer than two sides, or no dice.

    References:
        Lisy, Lanctot and Bowling (2015), "Online Monte Carlo Counterfactual Regret Minimization for Search in
        Imperfect Information Games", appendix.
    """
    for name, value, least in (("sides", sides, 2), ("num_dice", num_dice, 1)):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")
    total = 2 * num_dice
    liar = total * sides

    def player(state: _State) -> int:
        if len(state.dice) < total:
            return CHANCE
        return TERMINAL if liar in state.bids else len(state.bids) % 2

    def actions(state: _State) -> list[int]:
        return [*range(state.bids[-1] + 1, liar), liar] if state.bids else [*range(liar)]

    def child(state: _State, action: Any) -> _State:
        if len(state.dice) < total:
            return state._replace(dice=(*state.dice, action))
        return state._replace(bids=(*state.bids, action))

    def payoffs(state: _State) -> list[float]:
        quantity, face = 1 + state.bids[-2] // sides, 1 + state.bids[-2] % sides
        holds = sum(die in (face, sides) for die in state.dice) >= quantity
        bidder = len(state.bids) % 2
        return [1.0, -1.0] if holds == (bidder == 0) else [-1.0, 1.0]

    def information(state: _State) -> tuple:
        own = len(state.bids) % 2
        return tuple(sorted(state.dice[own * num_dice : (own + 1) * num_dice])), state.bids

    return Definition(
        name=f"liars_dice{sides}x{num_dice}",
        num_players=2,
        root=_State(),
        player=player,
        actions=actions,
        outcomes=lambda state: [(face, 1.0 / sides) for face in range(1, sides + 1)],
        child=child,
        payoffs=payoffs,
        information=information,
    )

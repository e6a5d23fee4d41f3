"""Sheriff: a smuggler offers bribes to avoid a search; not zero-sum, with equilibria that need a mediator."""

from typing import Any, NamedTuple

from jaxagents.games.trees import TERMINAL, Definition

SMUGGLER, SHERIFF = 0, 1
PASS, INSPECT = 0, 1


class _State(NamedTuple):
    """`bids` is bribe, answer, bribe, answer..."""

    items: int | None = None
    bids: tuple[int, ...] = ()


def sheriff(
    max_items: int = 3,
    max_bribe: int = 2,
    num_rounds: int = 1,
    *,
    item_value: float = 5.0,
    item_penalty: float = 1.0,
    sheriff_penalty: float = 1.0,
) -> Definition:
    """Makes the sheriff game, small by default.

    The smuggler (player 0) loads illegal items, unseen. In every round the smuggler offers a bribe, and the sheriff
    says whether to let the cargo pass or to inspect it; only the last round counts. Without an inspection, the smuggler
    gets the value of the items minus the bribe, and the sheriff gets the bribe. With an inspection, the smuggler pays
    the penalty for every item to the sheriff, or the sheriff pays a penalty to an honest smuggler.

    Args:
        max_items: greatest number of items that can be loaded.
        max_bribe: greatest bribe that can be offered.
        num_rounds: number of bargaining rounds.
        item_value: value of an item that passes.
        item_penalty: penalty for an item that is found.
        sheriff_penalty: penalty that the sheriff pays if no item is found.

    Returns:
        The definition. A label is (items, bids) for the smuggler and bids for the sheriff.

    Raises:
        ValueError: there are no items or no rounds, or a bribe is negative.

    References:
        Farina et al. (2019), "Correlation in Extensive-Form Games: Saddle-Point Formulation and Benchmarks", section 5.
    """
    for name, value, least in (("max_items", max_items, 1), ("max_bribe", max_bribe, 0), ("num_rounds", num_rounds, 1)):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")

    def player(state: _State) -> int:
        if len(state.bids) == 2 * num_rounds:
            return TERMINAL
        return SMUGGLER if state.items is None else len(state.bids) % 2

    def actions(state: _State) -> list[int]:
        if state.items is None:
            return [*range(max_items + 1)]
        return [PASS, INSPECT] if len(state.bids) % 2 else [*range(max_bribe + 1)]

    def child(state: _State, action: Any) -> _State:
        return state._replace(items=action) if state.items is None else state._replace(bids=(*state.bids, action))

    def payoffs(state: _State) -> list[float]:
        *_, bribe, answer = state.bids
        if answer == PASS:
            return [state.items * item_value - bribe, float(bribe)]
        paid = state.items * item_penalty if state.items else -sheriff_penalty
        return [-paid, paid]

    return Definition(
        name=f"sheriff{max_items}x{max_bribe}x{num_rounds}",
        num_players=2,
        root=_State(),
        player=player,
        actions=actions,
        outcomes=lambda state: [],
        child=child,
        payoffs=payoffs,
        information=lambda state: state if player(state) == SMUGGLER else state.bids,
    )

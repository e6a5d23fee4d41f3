"""Any game in normal form, with one move per player."""

import numpy as np

from jaxagents.games.trees import TERMINAL, Definition


def from_payoffs(payoffs: np.ndarray, name: str = "normal_form") -> Definition:
    """Makes a game in which all players move once, at the same time.

    Args:
        payoffs: `[N, A_1, ..., A_N]`, payoff of every player for every joint action.
        name: name of the game.

    Returns:
        The definition. Every player has one information set, labelled `()`.

    Raises:
        ValueError: the rank is wrong, a player has no actions, or payoffs are not finite.
    """
    payoffs = np.asarray(payoffs, np.float64)
    if payoffs.ndim < 2 or payoffs.shape[0] != payoffs.ndim - 1 or not payoffs.size:
        raise ValueError(
            f"`payoffs` must have the shape [N, A_1, ..., A_N] with an axis of actions for each of N players, got "
            f"{payoffs.shape}; try np.stack([first, second]) of two matrices."
        )
    if not np.isfinite(payoffs).all():
        where = tuple(int(index) for index in np.argwhere(~np.isfinite(payoffs))[0])
        raise ValueError(f"`payoffs` must be finite, got {payoffs[where]} at {where}.")
    num_players = payoffs.shape[0]
    return Definition(
        name=name,
        num_players=num_players,
        root=(),
        player=lambda state: TERMINAL if len(state) == num_players else len(state),
        actions=lambda state: range(payoffs.shape[1 + len(state)]),
        outcomes=lambda state: [],
        child=lambda state, action: (*state, action),
        payoffs=lambda state: payoffs[(slice(None), *state)].tolist(),
        information=lambda state: (),
    )

"""Games of OpenSpiel (Lanctot et al., 2019), if it is installed."""

import importlib
from typing import Any

from jaxagents.games.trees import CHANCE, TERMINAL, Definition


def from_openspiel(game: Any) -> Definition:
    """Makes the definition of an OpenSpiel game.

    Args:
        game: `pyspiel.Game`, or its name with parameters, such as `"kuhn_poker(players=3)"`. Simultaneous moves are
            made one after the other, hidden.

    Returns:
        The definition. Actions are OpenSpiel's numbers, and labels its information state strings.

    Raises:
        ModuleNotFoundError: OpenSpiel is not installed.
        ValueError: the game is unknown, or has no explicit chance or information states.
    """
    spiel = import_openspiel()
    if isinstance(game, str):
        name = game.partition("(")[0]
        if name not in spiel.registered_names():
            near = [known for known in spiel.registered_names() if name.split("_")[0] in known]
            raise ValueError(f"`game` must be registered in OpenSpiel, got {game!r}; try {' or '.join(near[:5])}.")
        game = spiel.load_game(game)
    if game.get_type().dynamics == spiel.GameType.Dynamics.SIMULTANEOUS:
        game = spiel.convert_to_turn_based(game)
    kind = game.get_type()
    if not kind.provides_information_state_string or kind.chance_mode == spiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        raise ValueError(
            f"`game` must have information states and explicit chance, got {kind.short_name}; try one of "
            "imperfect information, such as kuhn_poker."
        )
    special = {spiel.PlayerId.TERMINAL: TERMINAL, spiel.PlayerId.CHANCE: CHANCE}
    return Definition(
        name=str(game),
        num_players=game.num_players(),
        root=game.new_initial_state(),
        player=lambda state: special.get(state.current_player(), state.current_player()),
        actions=lambda state: state.legal_actions(),
        outcomes=lambda state: state.chance_outcomes(),
        child=lambda state, action: state.child(action),
        payoffs=lambda state: state.returns(),
        information=lambda state: state.information_state_string(),
    )


def import_openspiel() -> Any:
    """Imports `pyspiel`.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module("pyspiel")
    except ModuleNotFoundError as error:
        if error.name != "pyspiel":
            raise
        message = "`open_spiel` must be installed for its games; run `pip install 'jaxagents[openspiel]'`."
        raise ModuleNotFoundError(message, name=error.name) from error

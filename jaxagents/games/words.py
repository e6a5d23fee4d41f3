"""Text games, given as environments, made explicit by visiting all of their histories."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.games.trees import CHANCE, TERMINAL, Definition
from jaxagents.types import Array, Environment, PyTree

_CHUNK = 256  # Number of histories that are stepped at once.
_MAX_HISTORIES = 200_000


class History(NamedTuple):
    """A point of a text game.

    Attributes:
        deal: index of the deal.
        moves: indices of the actions so far.
        player: index of the player to move, or `TERMINAL`.
        choices: indices of the actions that the mask allows, and the total number of actions for an illegal one; empty
            at the end.
        payoffs: payoffs of all seats, summed over the moves.
        known: what the player to move has seen and done, ending with the current observation.
    """

    deal: int
    moves: tuple[int, ...]
    player: int
    choices: tuple[int, ...]
    payoffs: tuple[float, ...]
    known: tuple


def visit_histories(environment: Environment, task: PyTree) -> dict[tuple, History]:
    """Plays all choices of all deals, including one illegal action.

    Args:
        environment: text game.
        task: one task per deal, leaves `[D, ...]`; all randomness is in the deal.

    Returns:
        Every history, by deal and moves.

    Raises:
        ValueError: there are too many histories.
    """
    reset = jax.jit(jax.vmap(environment.reset, in_axes=(None, 0)))
    step = jax.jit(jax.vmap(environment.step, in_axes=(None, 0, 0)))
    key, actions = jax.random.key(0), with_empty(environment.text.actions)
    state, timestep = reset(key, task)
    seats = range(environment.num_players)
    count = jax.tree.leaves(task)[0].shape[0]
    parents = [((), (0.0,) * environment.num_players, tuple(() for _ in seats))] * count  # type: list[Any]
    labels, histories = [(deal, ()) for deal in range(count)], {}  # type: list[Any], dict[Any, History]
    while labels:
        seen = jax.device_get((timestep.observation, timestep.action_mask, timestep.player, timestep.reward))
        over = np.asarray(timestep.terminated | timestep.truncated)
        rows, chosen, children = [], [], []  # type: list[int], list[int], list[Any]
        for row, ((deal, moves), (_, paid, memory)) in enumerate(zip(labels, parents)):
            observation, mask, player, reward = (leaf[row] for leaf in seen)
            player, paid = int(player), tuple(a + float(b) for a, b in zip(paid, reward))
            known = (player, *memory[player], tuple(observation[observation >= 0].tolist()))
            choices = () if over[row] else (*np.flatnonzero(mask).tolist(), len(actions) - 1)
            histories[deal, moves] = History(deal, moves, TERMINAL if over[row] else player, choices, paid, known)
            for move in choices:
                grown = tuple((*known[1:], move) if seat == player else memory[seat] for seat in seats)
                rows, chosen = [*rows, row], [*chosen, move]
                children.append(((deal, (*moves, move)), ((), paid, grown)))
        labels, parents = [label for label, _ in children], [parent for _, parent in children]
        if len(histories) + len(labels) > _MAX_HISTORIES:
            raise ValueError(
                f"`environment` must have at most {_MAX_HISTORIES:,} histories, illegal actions included, "
                f"{environment.name!r} has more; try environment.illegal=forfeit."
            )
        if labels:
            state, timestep = _step_in_chunks(step, key, state, np.asarray(rows), actions[chosen])
    return histories


def define_game(environment: Environment, histories: dict[tuple, History], num_deals: int) -> Definition:
    """Returns the game with these histories, whose deals are equally likely."""
    return Definition(
        name=environment.name,
        num_players=environment.num_players,
        root=None,
        player=lambda state: CHANCE if state is None else histories[state].player,
        actions=lambda state: histories[state].choices,
        outcomes=lambda state: [(deal, 1.0 / num_deals) for deal in range(num_deals)],
        child=lambda state, action: (action, ()) if state is None else (state[0], (*state[1], action)),
        payoffs=lambda state: histories[state].payoffs,
        information=lambda state: histories[state].known,
    )


def with_empty(actions: np.ndarray) -> np.ndarray:
    """Returns the rows of actions and an empty one, which no world understands."""
    return np.concatenate([actions, np.full((1, actions.shape[1]), -1, actions.dtype)])


def _step_in_chunks(step: Callable, key: Array, state: Any, rows: np.ndarray, actions: np.ndarray) -> tuple[Any, Any]:
    """Steps from the states in these rows in chunks of constant size, so that one compiled program suffices."""
    outcomes = []
    for start in range(0, len(rows), _CHUNK):
        part = np.resize(rows[start : start + _CHUNK], _CHUNK)
        acted = np.resize(actions[start : start + _CHUNK], (_CHUNK, actions.shape[1]))
        outcomes.append(step(key, jax.tree.map(lambda leaf, part=part: leaf[part], state), jnp.asarray(acted)))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: len(rows)], *outcomes)

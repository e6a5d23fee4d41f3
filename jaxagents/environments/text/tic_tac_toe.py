"""Tic-tac-toe in words, with an expert that never loses."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.textgames import Rules, make_text_game
from jaxagents.environments.text.words import one_of
from jaxagents.types import Array, Environment, Pattern

CELLS = tuple(f"{row}{column}" for row in "abc" for column in "123")
MARKS = ("_", "X", "O")
LINES = np.asarray([(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)], np.int32)
_POWERS = 3 ** np.arange(9)


@struct.dataclass
class TicTacToeState:
    """A board.

    Attributes:
        board: int32 `[9]`, row by row: 0 empty, 1 player 0 (X), 2 player 1 (O).
        count: int32, moves so far.
    """

    board: Array
    count: Array


def make_environment(**options: Any) -> Environment:
    """Makes tic-tac-toe: 1 for three in a row, -1 for the other player, 0 for a draw.

    The observation is "you are player 0 , X to move , _ _ _ / _ O _ / _ _ X .", the action a cell from "a1" (top left)
    to "c3". The expert draws among the moves that minimax finds best.

    Args:
        **options: of `make_text_game`.

    Returns:
        The environment.
    """
    rules = Rules(
        name="tic tac toe",
        moves=tuple((cell,) for cell in CELLS),
        words=(*MARKS, "to move", "/", "."),
        longest=9,
        stake=1.0,
        deal=lambda key: jnp.zeros((), jnp.int32),
        start=lambda deal: TicTacToeState(board=jnp.zeros(9, jnp.int32), count=jnp.zeros((), jnp.int32)),
        player=lambda state: state.count % 2,
        legal=lambda state: (state.board == 0) & ~over(state),
        play=play,
        over=over,
        payoff=payoff,
        observe=_make_observe,
        pattern=_pattern,
        expert=_make_expert(),
        render=render,
    )
    return make_text_game(rules, **options)


def play(state: TicTacToeState, action: Array) -> TicTacToeState:
    """Returns the board after a move."""
    return state.replace(board=state.board.at[action].set(1 + state.count % 2), count=state.count + 1)


def has_line(board: Array, mark: Array) -> Array:
    """Tells whether a mark has three in a row."""
    return jnp.any(jnp.all(board[jnp.asarray(LINES)] == mark, axis=1))


def over(state: TicTacToeState) -> Array:
    """Tells whether there is a line or no empty cell."""
    return has_line(state.board, 1) | has_line(state.board, 2) | (state.count >= 9)


def payoff(state: TicTacToeState) -> Array:
    """Returns 1 for the player with a line and -1 for the other, float32 `[2]`; zeros without a line."""
    won = has_line(state.board, 1).astype(jnp.float32) - has_line(state.board, 2).astype(jnp.float32)
    return jnp.stack([won, -won])


@functools.cache
def best_moves() -> np.ndarray:
    """Solves the game on the host; bool `[3^9, 9]`, the best moves by `sum_i board_i 3^i`, none where it is over.

    Whose turn it is follows from the board. The quickest win and the slowest loss are no better than others.
    """
    best = np.zeros((3**9, 9), bool)

    @functools.cache
    def value(board: tuple[int, ...]) -> int:
        """Returns what the board is worth to the player to move."""
        count = 9 - board.count(0)
        if any(board[a] and board[a] == board[b] == board[c] for a, b, c in LINES.tolist()):
            return -1
        if count == 9:
            return 0
        mark, empty = 1 + count % 2, [cell for cell in range(9) if board[cell] == 0]
        values = {cell: -value((*board[:cell], mark, *board[cell + 1 :])) for cell in empty}
        top = max(values.values())
        best[int(np.dot(board, _POWERS))] = [values.get(cell) == top for cell in range(9)]
        return top

    value((0,) * 9)
    return best


def _make_expert():
    table = best_moves()

    def expert(key: Array, state: TicTacToeState) -> Array:
        good = jnp.asarray(table)[jnp.sum(state.board * jnp.asarray(_POWERS, jnp.int32))]
        return jnp.argmax(jnp.where(good, jax.random.uniform(key, (9,)), -1.0)).astype(jnp.int32)

    return expert


def render(state: TicTacToeState) -> str:
    """Draws the board."""
    cells = [MARKS[mark] for mark in np.asarray(state.board).tolist()]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


def _make_observe(ids):
    marks, to_move, comma, slash, stop = ids(*MARKS), ids("to move"), ids(","), ids("/"), ids(".")

    def observe(state: TicTacToeState, player: Array) -> Array:
        cells = jnp.asarray(marks)[state.board]
        own = jnp.asarray(marks)[1 + player][None]
        return jnp.concatenate([own, to_move, comma, cells[:3], slash, cells[3:6], slash, cells[6:], stop])

    return observe


def _pattern(ids: Callable[..., np.ndarray]) -> Pattern:
    rows = (*[one_of(ids, *MARKS)] * 3, one_of(ids, "/")) * 3
    return one_of(ids, *MARKS[1:]), one_of(ids, ("to move", ",")), *rows[:-1], one_of(ids, ".")

"""Tic-tac-toe in words, with an expert that never loses."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.textgames import ended, make_text_game
from jaxagents.environments.text.texts import board, pick, text
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment

CELLS = tuple(f"{row}{column}" for row in "abc" for column in "123")
MARKS = ("_", "X", "O")
LINES = np.asarray([(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)], np.int32)
_POWERS = 3 ** np.arange(9)


@struct.dataclass
class TicTacToeState:
    """A board.

    Attributes:
        board: int32 `[9]`, row by row: 0 empty, 1 player 0 (X), 2 player 1 (O).
        count: int32, number of moves so far.
    """

    board: Array
    count: Array


def make_environment(**options: Any) -> Environment:
    """Makes tic-tac-toe: 1 for three in a row, -1 for the other player, 0 for a draw.

    The observation is "you are player 0 , X to move , _ _ _ / _ O _ / _ _ X .", the action a cell from "a1" (top left)
    to "c3". The expert draws among the moves that minimax finds best.

    Args:
        **options: arguments of `make_text_game`.

    Returns:
        The environment.
    """
    grammar, zero = make_grammar(*CELLS), jnp.zeros((), jnp.int32)
    world = World(
        name="tic tac toe",
        grammar=grammar,
        max_steps=9,
        sample=lambda key, level: {"deal": zero, "level": level},
        start=lambda key, task: TicTacToeState(board=jnp.zeros(9, jnp.int32), count=zero),
        player=lambda state: state.count % 2,
        allowed=lambda state: (state.board == 0) & ~over(state),
        play=lambda key, state, cell, args: play(state, cell),
        status=lambda state: ended(over(state), payoff(state)),
        tell=lambda state, player: text(
            pick(MARKS, 1 + player), "to move", ",", board(MARKS, state.board.reshape(3, 3)), "."
        ),
        expert=lambda key, state: (choose(key, state), grammar.args(), None),
        render=render,
    )
    return make_text_game(world, stake=1.0, **options)


def play(state: TicTacToeState, action: Array) -> TicTacToeState:
    """Returns the board after a move."""
    return state.replace(board=state.board.at[action].set(1 + state.count % 2), count=state.count + 1)


def has_line(board: Array, mark: Array | int) -> Array:
    """Returns whether a mark has three in a row."""
    return jnp.any(jnp.all(board[jnp.asarray(LINES)] == mark, axis=1))


def over(state: TicTacToeState) -> Array:
    """Returns whether there is a line or no empty cell."""
    return has_line(state.board, 1) | has_line(state.board, 2) | (state.count >= 9)


def payoff(state: TicTacToeState) -> Array:
    """Returns 1 for the player with a line and -1 for the other, float32 `[2]`; zeros without a line."""
    won = has_line(state.board, 1).astype(jnp.float32) - has_line(state.board, 2).astype(jnp.float32)
    return jnp.stack([won, -won])


@functools.cache
def best_moves() -> np.ndarray:
    """Solves the game on the host; bool `[3^9, 9]`, the best moves by `sum_i board_i 3^i`, none if it is over.

    The board determines whose turn it is. The quickest win and the slowest loss are not preferred to others.
    """
    best = np.zeros((3**9, 9), bool)

    @functools.cache
    def value(board: tuple[int, ...]) -> int:
        """Returns the value of the board to the player to move."""
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


def choose(key: Array, state: TicTacToeState) -> Array:
    """Draws among the best moves, int32 `[]`."""
    good = jnp.asarray(best_moves())[jnp.sum(state.board * jnp.asarray(_POWERS, jnp.int32))]
    return jnp.argmax(jnp.where(good, jax.random.uniform(key, (9,)), -1.0)).astype(jnp.int32)


def render(state: TicTacToeState) -> str:
    """Draws the board."""
    cells = [MARKS[mark] for mark in np.asarray(state.board).tolist()]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))

"""Connect Four in words, with an expert that looks a few moves ahead."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.experts import lookahead
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.textgames import ended, make_text_game
from jaxagents.environments.text.texts import board, pick, text
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment

ROWS, COLUMNS = 6, 7
MARKS = ("_", "X", "O")
MOVES = tuple(f"column {column + 1}" for column in range(COLUMNS))


def _lines() -> np.ndarray:
    """Returns the cells of the 69 possible lines of four, int32 `[69, 4]`."""
    lines = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + i * down, column + i * right) for i in range(4)]
                if all(0 <= r < ROWS and 0 <= c < COLUMNS for r, c in cells):
                    lines.append([r * COLUMNS + c for r, c in cells])
    return np.asarray(lines, np.int32)


LINES = _lines()


@struct.dataclass
class ConnectFourState:
    """A board.

    Attributes:
        board: int32 `[42]`, row by row from the top: 0 empty, 1 player 0 (X), 2 player 1 (O).
        count: int32, number of moves so far.
        won: bool, whether the last move made four in a row.
    """

    board: Array
    count: Array
    won: Array


def make_environment(*, depth: int = 3, **options: Any) -> Environment:
    """Makes Connect Four: 1 for four in a row, -1 for the other player, 0 for a draw.

    The observation is "you are player 0 , X to move ,", followed by the rows of the board from the top with "/" between
    them; the action is "column 1" (left) to "column 7". The expert draws among the best moves of a minimax search of
    limited depth.

    Args:
        depth: number of moves that the expert looks ahead, 1 to 5: with 1 it sees its own wins, with 2 it blocks those
            of the other player, with 3 it sees forks; each further move takes 7 times as long.
        **options: arguments of `make_text_game`.

    Returns:
        The environment.

    Raises:
        ValueError: the depth is out of its range.
    """
    if not 1 <= depth <= 5:
        raise ValueError(f"`depth` must be from 1 to 5, got {depth}; try 3.")
    return make_text_game(replace(RULES, expert=make_expert(depth)), stake=1.0, **options)


def start() -> ConnectFourState:
    """Returns the empty board."""
    zero = jnp.zeros((), jnp.int32)
    return ConnectFourState(board=jnp.zeros(ROWS * COLUMNS, jnp.int32), count=zero, won=jnp.zeros((), bool))


def play(state: ConnectFourState, column: Array) -> ConnectFourState:
    """Drops a stone into a column, which must not be full."""
    filled = jnp.sum(state.board.reshape(ROWS, COLUMNS)[:, column] > 0)
    mark = 1 + state.count % 2
    cell = jnp.where(filled < ROWS, (ROWS - 1 - filled) * COLUMNS + column, ROWS * COLUMNS)
    board = state.board.at[cell].set(mark, mode="drop")
    won = jnp.any(jnp.all(board[jnp.asarray(LINES)] == mark, axis=1))
    return ConnectFourState(board=board, count=state.count + 1, won=won)


def over(state: ConnectFourState) -> Array:
    """Returns whether there are four in a row or no empty cell."""
    return state.won | (state.count >= ROWS * COLUMNS)


def payoff(state: ConnectFourState) -> Array:
    """Returns 1 for the player with four in a row and -1 for the other, float32 `[2]`; zeros for a draw."""
    last = jnp.where(state.count % 2 == 1, 1.0, -1.0)  # Player 0 made the odd moves.
    won = jnp.where(state.won, last, 0.0)
    return jnp.stack([won, -won]).astype(jnp.float32)


def render(state: ConnectFourState) -> str:
    """Draws the board."""
    cells = [MARKS[mark] for mark in np.asarray(state.board).tolist()]
    return "\n".join(" ".join(cells[row * COLUMNS : (row + 1) * COLUMNS]) for row in range(ROWS))


RULES = World(
    name="connect four",
    grammar=make_grammar(*MOVES),
    max_steps=ROWS * COLUMNS,
    sample=lambda key, level: {"deal": jnp.zeros((), jnp.int32), "level": level},
    start=lambda key, task: start(),
    player=lambda state: state.count % 2,
    allowed=lambda state: (state.board[:COLUMNS] == 0) & ~over(state),
    play=lambda key, state, column, args: play(state, column),
    status=lambda state: ended(over(state), payoff(state)),
    tell=lambda state, player: text(
        pick(MARKS, 1 + player), "to move", ",", board(MARKS, state.board.reshape(ROWS, COLUMNS)), "."
    ),
    expert=None,
    render=render,
)


def make_expert(depth: int) -> Callable[[Array, ConnectFourState], tuple[Array, Array, None]]:
    """Makes `(key, state) -> move`, drawn among the columns that are best within the search depth."""
    look = lookahead(RULES, depth)

    def expert(key: Array, state: ConnectFourState) -> tuple[Array, Array, None]:
        values = look(state)
        best = jnp.where(values >= jnp.max(values), jax.random.uniform(key, values.shape), -1.0)
        return jnp.argmax(best).astype(jnp.int32), RULES.grammar.args(), None

    return expert

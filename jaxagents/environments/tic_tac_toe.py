"""Perfect play of tic-tac-toe, by minimax over all positions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.opponents import Opponent
from jaxagents.types import Array, PyTree

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_PLACES = 3 ** np.arange(9)


def make_perfect_player() -> Opponent:
    """Makes the player that draws uniformly from the moves with the best outcome; it never loses.

    Returns:
        `(key, observation [3, 3, 2] or [18] (own stones, opponent's stones), action_mask) -> action`, for
        `wrappers.against`.
    """
    table = jnp.asarray(best_moves())

    def play(key: Array, observation: PyTree, action_mask: Array | None) -> Array:
        del action_mask
        stones = jnp.reshape(observation, (9, 2)).astype(jnp.int32)
        code = jnp.sum((stones[:, 0] + 2 * stones[:, 1]) * jnp.asarray(_PLACES, jnp.int32))
        return jax.random.categorical(key, jnp.where(table[code], 0.0, -jnp.inf)).astype(jnp.int32)

    return play


@functools.cache
def best_moves() -> np.ndarray:
    """Computes bool `[19683, 9]`, the moves with the best outcome for the player to move.

    The index of a position is the sum over cells i of `3^i` times 0 (free), 1 (own stone) or 2 (opponent's stone).
    Positions that cannot occur have all moves.
    """
    table = np.ones((3**9, 9), bool)

    @functools.cache
    def value(board: tuple[int, ...]) -> int:
        if any(all(board[cell] == 2 for cell in line) for line in LINES):
            return -1
        free = [cell for cell in range(9) if not board[cell]]
        if not free:
            return 0
        # After a move, the other player sees its own stones as 1.
        turned = [tuple((0, 2, 1)[stone] for stone in (*board[:cell], 1, *board[cell + 1 :])) for cell in free]
        values = [-value(following) for following in turned]
        row = np.zeros(9, bool)
        row[[cell for cell, v in zip(free, values) if v == max(values)]] = True
        table[np.dot(board, _PLACES)] = row
        return max(values)

    value((0,) * 9)
    return table

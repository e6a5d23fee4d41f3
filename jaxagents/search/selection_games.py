"""Exact play of games in which two players take turns choosing elements of a set, and only the chosen set counts.

With M elements and k choices there are `C(M, k)` outcomes, and far fewer situations than sequences of moves: backward
induction over subsets solves the game, for any number of payoffs at once.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxagents.types import Array

REDUCTIONS = {"max": jnp.max, "min": jnp.min, "mean": jnp.mean}


class Subsets(NamedTuple):
    """Subsets of M elements by size.

    Attributes:
        leaves: bool `[C(M, k), M]`, subsets of size k.
        children: for every size j < k, int32 `[C(M, j), M - j]`: the subsets of size j + 1 with one more element, as
            indices among those of their size.
    """

    leaves: np.ndarray
    children: tuple[np.ndarray, ...]


def make_subsets(num_elements: int, num_chosen: int, *, max_leaves: int = 1_000_000) -> Subsets:
    """Lists the subsets of up to `num_chosen` of `num_elements` elements, in lexicographic order.

    Args:
        num_elements: M, number of elements.
        num_chosen: k, number of choices.
        max_leaves: greatest number of outcomes that is accepted.

    Returns:
        The subsets.

    Raises:
        ValueError: k is not in 1 .. M, or there are too many subsets.
    """
    if not 1 <= num_chosen <= num_elements:
        raise ValueError(f"`num_chosen` must be from 1 to {num_elements}, got {num_chosen}.")
    count = 1
    for i in range(num_chosen):
        count = count * (num_elements - i) // (i + 1)
        if count > max_leaves:
            raise ValueError(
                f"`num_elements` must have at most {max_leaves} subsets of {num_chosen}, got {num_elements}; try fewer."
            )
    children, level = [], [()]  # type: list[np.ndarray], list[tuple[int, ...]]
    for size in range(1, num_chosen + 1):
        following = list(combinations(range(num_elements), size))
        place = {subset: i for i, subset in enumerate(following)}
        rows = [
            [place[tuple(sorted((*subset, element)))] for element in range(num_elements) if element not in subset]
            for subset in level
        ]
        children.append(np.asarray(rows, np.int32))
        level = following
    leaves = np.zeros((len(level), num_elements), bool)
    np.put_along_axis(leaves, np.asarray(level), True, axis=1)
    return Subsets(leaves=leaves, children=tuple(children))


def solve(payoff: Array, subsets: Subsets, players: Sequence[str]) -> Array:
    """Computes the value of the empty set by backward induction.

    Args:
        payoff: `[C(M, k), ...]`, payoff of every outcome for the maximising player.
        subsets: see `make_subsets`.
        players: who chooses first, second, ...: "max" and "min" choose what is best for them, "mean" chooses at random.

    Returns:
        `[...]`.

    Raises:
        ValueError: there is not one player for every choice, or a player is unknown.
    """
    if len(players) != len(subsets.children) or not set(players) <= set(REDUCTIONS):
        raise ValueError(f"`players` must be {len(subsets.children)} of {', '.join(REDUCTIONS)}, got {list(players)}.")
    value = jnp.asarray(payoff)
    for children, player in zip(reversed(subsets.children), reversed(players)):
        value = REDUCTIONS[player](value[children], axis=1)  # type: ignore[operator]
    return value[0]

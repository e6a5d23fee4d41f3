"""Games in extensive form as arrays: information sets by level, sequences, and what pairs of sequences pay."""

import numpy as np
from flax import struct

from jaxagents.games.trees import Definition, Point, Tree, expand
from jaxagents.types import Array


@struct.dataclass
class Seat:
    """What one player can do: I information sets with up to A actions each.

    A sequence is a choice together with the own choices before it, which perfect recall makes one number: that of
    action a at information set i is `1 + i * A + a`, and 0 is the empty sequence, before the first choice.

    Attributes:
        mask: bool `[I, A]`, True for legal actions; they come first.
        previous: int32 `[I]`, the sequence before every information set.
        levels: level k holds the information sets `levels[k]:levels[k + 1]`: those after k own choices. Within a level
            `previous` does not decrease.
    """

    mask: Array
    previous: Array
    levels: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def num_sequences(self) -> int:
        """Returns the number of sequences, those of illegal actions included."""
        return 1 + self.mask.shape[0] * self.mask.shape[1]


@struct.dataclass
class Game:
    """A game of N players; histories that no player's choices tell apart are one of Z outcomes.

    Arrays are of numpy, in float64: they enter a compiled program in the precision that it was traced in.

    Attributes:
        seats: of the players.
        sequence: int32 `[N, Z]`, the players' sequences of every outcome.
        payoff: `[N, Z]`, payoffs times the probability of chance, summed over the histories of an outcome.
        name: of the definition.
        num_histories: visited; those of chance probability zero do not count.
        num_terminals: of these, terminal.
    """

    seats: tuple[Seat, ...]
    sequence: Array
    payoff: Array
    name: str = struct.field(pytree_node=False)
    num_histories: int = struct.field(pytree_node=False)
    num_terminals: int = struct.field(pytree_node=False)

    @property
    def num_players(self) -> int:
        """Returns N."""
        return len(self.seats)


def compile_game(definition: Definition | Tree) -> Game:
    """Compiles a game to arrays, on the host.

    Args:
        definition: rules, or a tree of `trees.expand`, whose information sets say what rows of policies are about.

    Returns:
        The game.

    Raises:
        ValueError: see `trees.expand`.
    """
    tree = definition if isinstance(definition, Tree) else expand(definition)
    seats = tuple(_make_seat(tree, player) for player in range(len(tree.information_sets)))
    points = list(tree.outcomes)
    sequence = [[_number(point[player], seat) for point in points] for player, seat in enumerate(seats)]
    return Game(
        seats=seats,
        sequence=np.asarray(sequence, np.int32),  # type: ignore[arg-type]
        payoff=np.asarray([tree.outcomes[point] for point in points], np.float64).T,  # type: ignore[arg-type]
        name=tree.name,
        num_histories=tree.num_histories,
        num_terminals=tree.num_terminals,
    )


def _make_seat(tree: Tree, player: int) -> Seat:
    sets = tree.information_sets[player]
    width = max((len(known.actions) for known in sets), default=1)
    counts = np.asarray([len(known.actions) for known in sets], np.int32)
    levels = np.asarray([known.level for known in sets], np.int32)
    seat = Seat(
        mask=np.arange(width) < counts[:, None],  # type: ignore[arg-type]
        previous=np.zeros(len(sets), np.int32),  # type: ignore[arg-type]
        levels=(0, *np.cumsum(np.bincount(levels)).tolist()) if sets else (0,),
    )
    return seat.replace(previous=np.asarray([_number(known.previous, seat) for known in sets], np.int32))


def _number(point: Point, seat: Seat) -> int:
    return 0 if point is None else 1 + point[0] * seat.mask.shape[1] + point[1]

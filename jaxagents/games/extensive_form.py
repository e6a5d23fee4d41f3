"""Games in extensive form as arrays: information sets by level, sequences, and payoffs of combined sequences."""

import numpy as np
from flax import struct

from jaxagents.games.trees import Definition, Point, Tree, expand
from jaxagents.types import Array


@struct.dataclass
class Seat:
    """The decisions of one player: I information sets with up to A actions each.

    A sequence is a choice together with the player's earlier choices, which perfect recall turns into one number: the
    sequence of action a at information set i is `1 + i * A + a`, and 0 is the empty sequence, before the first choice.

    Attributes:
        mask: bool `[I, A]`, True for legal actions, which come first.
        previous: int32 `[I]`, sequence before every information set.
        levels: level k consists of the information sets `levels[k]:levels[k + 1]`: those after k own choices. Within a
            level, `previous` does not decrease.
    """

    mask: Array
    previous: Array
    levels: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def num_sequences(self) -> int:
        """Returns the number of sequences, including those of illegal actions."""
        return 1 + self.mask.shape[0] * self.mask.shape[1]


@struct.dataclass
class Game:
    """A game with N players; histories with the same choices of all players are merged into one of Z outcomes.

    Arrays are float64 numpy arrays: they enter a compiled program in the precision in which it is traced.

    Attributes:
        seats: seats of the players.
        sequence: int32 `[N, Z]`, players' sequences for every outcome.
        payoff: `[N, Z]`, payoffs times the probability of chance, summed over the histories of an outcome.
        name: name of the definition.
        num_histories: number of visited histories; those of chance probability zero do not count.
        num_terminals: number of terminal ones among them.
    """

    seats: tuple[Seat, ...]
    sequence: Array
    payoff: Array
    name: str = struct.field(pytree_node=False)
    num_histories: int = struct.field(pytree_node=False)
    num_terminals: int = struct.field(pytree_node=False)

    @property
    def num_players(self) -> int:
        """Returns N, the number of players."""
        return len(self.seats)


def compile_game(definition: Definition | Tree) -> Game:
    """Compiles a game to arrays, on the host.

    Args:
        definition: rules, or a tree from `trees.expand`, whose information sets define the rows of policies.

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

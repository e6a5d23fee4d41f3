"""Games given by rules in plain Python, and the trees found by visiting all of their histories once."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

CHANCE, TERMINAL = -1, -2
MAX_HISTORIES = 5_000_000

Action = Hashable
Point = tuple[int, int] | None  # Information set and index of the action taken there; None before the first one.


class Definition(NamedTuple):
    """The rules of a game, as pure functions of a state.

    Players who move at the same time move one after the other here, without seeing the moves before theirs.

    Attributes:
        name: name for messages and tables.
        num_players: N, number of players.
        root: state before the first move.
        player: `(state) -> index` of the player to move, or `CHANCE` or `TERMINAL`.
        actions: `(state) -> legal actions` of that player; equal for all states of an information set.
        outcomes: `(state) -> [(action, probability)]` of a chance move.
        child: `(state, action) -> state`.
        payoffs: `(state) -> N numbers` for a terminal state.
        information: `(state) -> label` of everything the player to move knows; different players may use the same
            label.
    """

    name: str
    num_players: int
    root: Any
    player: Callable[[Any], int]
    actions: Callable[[Any], Sequence[Action]]
    outcomes: Callable[[Any], Sequence[tuple[Action, float]]]
    child: Callable[[Any, Action], Any]
    payoffs: Callable[[Any], Sequence[float]]
    information: Callable[[Any], Hashable]


class InformationSet(NamedTuple):
    """A set of histories that a player cannot distinguish.

    Attributes:
        label: label from the definition.
        actions: actions that are legal.
        previous: the player's own last choice before it.
        level: number of the player's own choices before it.
    """

    label: Hashable
    actions: tuple[Action, ...]
    previous: Point
    level: int


class Tree(NamedTuple):
    """A game all of whose histories have been visited.

    Attributes:
        name: name of the definition.
        information_sets: information sets of every player, sorted by level; within a level, those after the same choice
            are adjacent. Indices in points refer to this list.
        outcomes: `{own last choice of every player: payoffs}`: payoffs times the probability of chance, summed over all
            terminal histories that end with these choices.
        num_histories: number of histories with positive chance probability, including the root and terminal ones.
        num_terminals: number of terminal ones among them.
    """

    name: str
    information_sets: tuple[tuple[InformationSet, ...], ...]
    outcomes: dict[tuple[Point, ...], list[float]]
    num_histories: int
    num_terminals: int


def expand(definition: Definition) -> Tree:
    """Visits all histories of a game.

    Args:
        definition: rules of the game.

    Returns:
        The tree.

    Raises:
        ValueError: payoffs or probabilities are invalid, a player forgets (no perfect recall), actions differ within an
            information set, or there are more than `MAX_HISTORIES` histories.
    """
    if definition.num_players < 1:
        raise ValueError(f"`num_players` must be at least 1, got {definition.num_players} of {definition.name}.")
    found: list[dict[Hashable, int]] = [{} for _ in range(definition.num_players)]
    sets: list[list[InformationSet]] = [[] for _ in range(definition.num_players)]
    outcomes: dict[tuple[Point, ...], list[float]] = {}
    num_histories = num_terminals = 0
    stack = [(definition.root, 1.0, (None,) * definition.num_players)]  # type: list[tuple[Any, float, tuple[Point, ...]]]
    while stack:
        state, chance, points = stack.pop()
        num_histories += 1
        if num_histories > MAX_HISTORIES:
            raise ValueError(
                f"`definition` must have at most {MAX_HISTORIES:,} histories, {definition.name} has more; try a "
                "smaller variant."
            )
        player = _player(definition, state)
        if player == TERMINAL:
            num_terminals += 1
            total = outcomes.setdefault(points, [0.0] * definition.num_players)
            for index, payoff in enumerate(_payoffs(definition, state)):
                total[index] += chance * payoff
        elif player == CHANCE:
            children = [(a, chance * p, points) for a, p in _outcomes(definition, state) if p > 0.0]
            stack += [(definition.child(state, a), p, points) for a, p, points in reversed(children)]
        else:
            index, actions = _visit(definition, state, player, points[player], found[player], sets[player])
            for number in reversed(range(len(actions))):
                after = (*points[:player], (index, number), *points[player + 1 :])
                stack.append((definition.child(state, actions[number]), chance, after))
    return _sorted(Tree(definition.name, tuple(map(tuple, sets)), outcomes, num_histories, num_terminals))


def _player(definition: Definition, state: Any) -> int:
    player = definition.player(state)
    if player not in (CHANCE, TERMINAL) and not 0 <= player < definition.num_players:
        raise ValueError(
            f"`player` must be CHANCE, TERMINAL or below {definition.num_players}, got {player} of {state!r}."
        )
    return player


def _payoffs(definition: Definition, state: Any) -> list[float]:
    payoffs = [float(payoff) for payoff in definition.payoffs(state)]
    if len(payoffs) != definition.num_players or not all(map(math.isfinite, payoffs)):
        raise ValueError(
            f"`payoffs` must be {definition.num_players} finite numbers, got {payoffs} of {state!r} in "
            f"{definition.name}."
        )
    return payoffs


def _outcomes(definition: Definition, state: Any) -> list[tuple[Action, float]]:
    outcomes = [(action, float(probability)) for action, probability in definition.outcomes(state)]
    probabilities = [probability for _, probability in outcomes]
    if not all(p >= 0.0 for p in probabilities) or not math.isclose(sum(probabilities), 1.0, abs_tol=1e-9):
        raise ValueError(
            f"`outcomes` must have probabilities of sum 1, got {probabilities} of {state!r} in {definition.name}."
        )
    return outcomes


def _visit(
    definition: Definition,
    state: Any,
    player: int,
    previous: Point,
    found: dict[Hashable, int],
    sets: list[InformationSet],
) -> tuple[int, tuple[Action, ...]]:
    """Returns the index and the actions of a state's information set, which is added if it is new."""
    label, actions = definition.information(state), tuple(definition.actions(state))
    if label not in found:
        if not actions:
            raise ValueError(f"`actions` must be at least one, got none of {label!r} of player {player}.")
        found[label] = len(sets)
        level = 0 if previous is None else sets[previous[0]].level + 1
        sets.append(InformationSet(label, actions, previous, level))
    index = found[label]
    known = sets[index]
    if known.actions != actions:
        raise ValueError(
            f"`actions` must be the same within an information set, got {list(known.actions)} and {list(actions)} of "
            f"{label!r} of player {player}; try labels that tell them apart."
        )
    if known.previous != previous:
        raise ValueError(
            f"`information` must not forget (perfect recall), got {label!r} of player {player} after "
            f"{_describe(known.previous, sets)} and after {_describe(previous, sets)}; try labels with all that the "
            "player saw and did."
        )
    return index, actions


def _describe(point: Point, sets: Sequence[InformationSet]) -> str:
    return "no choice" if point is None else f"{sets[point[0]].actions[point[1]]!r} at {sets[point[0]].label!r}"


def _sorted(tree: Tree) -> Tree:
    """Sorts information sets by level, and within a level by the choice before them."""
    places = [dict(_places(sets)) for sets in tree.information_sets]

    def moved(player: int, point: Point) -> Point:
        return point and (places[player][point[0]], point[1])

    sets = [
        tuple(
            known._replace(previous=moved(player, known.previous))
            for _, known in sorted(enumerate(sets), key=lambda pair, player=player: places[player][pair[0]])  # type: ignore[misc]
        )
        for player, sets in enumerate(tree.information_sets)
    ]
    outcomes = {
        tuple(moved(player, point) for player, point in enumerate(points)): payoffs
        for points, payoffs in tree.outcomes.items()
    }
    return tree._replace(information_sets=tuple(sets), outcomes=outcomes)


def _places(sets: Sequence[InformationSet]) -> Iterator[tuple[int, int]]:
    """Yields `(index before, index after)` of the sorting."""
    places: dict[int, int] = {}
    for level in range(1 + max((known.level for known in sets), default=-1)):
        of_level = [index for index, known in enumerate(sets) if known.level == level]
        for index in sorted(of_level, key=lambda i: (_after(sets[i].previous, places), i)):
            places[index] = len(places)
    yield from places.items()


def _after(point: Point, places: dict[int, int]) -> tuple[int, int]:
    return (-1, -1) if point is None else (places[point[0]], point[1])

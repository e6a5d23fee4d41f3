"""Leduc poker in words: six cards of three ranks, two rounds, and a card on the table in the second."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.textgames import ended, make_text_game
from jaxagents.environments.text.texts import Text, pick, text, when
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment

CARDS = ("jack", "queen", "king")
FOLD, CALL, RAISE = range(3)
MOVE_WORDS = ("fold", "call", "raise")
RAISES = np.asarray([2, 4], np.int32)
"""Chips of a raise, by round."""


@struct.dataclass
class LeducState:
    """State of a hand.

    Attributes:
        cards: int32 `[3]`, ranks of player 0, player 1 and the table.
        moves: int32 `[2, 4]`, moves by round, -1 for none.
        count: int32 `[2]`, number of moves by round.
        round: int32, 0 or 1; 2 after the showdown.
        raises: int32, number of raises in this round.
        chips: int32 `[2]`, chips put in by the players.
        folded: int32, player who folded; -1 if nobody has.
    """

    cards: Array
    moves: Array
    count: Array
    round: Array
    raises: Array
    chips: Array
    folded: Array


def make_environment(**options: Any) -> Environment:
    """Makes Leduc poker: an ante of 1, raises of 2 and then 4, at most two of them per round.

    A pair with the card on the table wins, else the higher card; rewards are chips won or lost. A call without a raise
    is a check; a fold is only allowed after a raise. The observation is "you are player 0 , your card is king , table
    shows queen , moves call raise call then raise ."; the action is "fold", "call" or "raise". The expert plays with
    fixed probabilities that depend on its hand: sensible, but not an equilibrium.

    Args:
        **options: arguments of `make_text_game`.

    Returns:
        The environment.

    References:
        Southey et al. (2005), "Bayes' Bluff: Opponent Modelling in Poker".
    """
    grammar = make_grammar(*MOVE_WORDS)
    world = World(
        name="leduc poker",
        grammar=grammar,
        max_steps=8,
        sample=lambda key, level: {"deal": draw_distinct(key, jnp.ones(6, bool), 3) // 2, "level": level},
        start=lambda key, task: start(task["deal"]),
        player=lambda state: state.count[jnp.minimum(state.round, 1)] % 2,
        allowed=legal,
        play=lambda key, state, verb, args: play(state, verb),
        status=lambda state: ended(over(state), payoff(state)),
        tell=tell,
        expert=lambda key, state: (choose(key, state), grammar.args(), None),
    )
    return make_text_game(world, stake=13.0, **options)  # The ante, and two raises in each round.


def all_deals() -> np.ndarray:
    """Returns the 120 deals of three of six cards, all equally likely, as ranks, int32 `[120, 3]`."""
    return np.asarray(list(itertools.permutations(range(6), 3)), np.int32) // 2


def start(cards: Array) -> LeducState:
    """Returns the hand before the first move."""
    zero = jnp.zeros((), jnp.int32)
    return LeducState(
        cards=cards,
        moves=jnp.full((2, 4), -1, jnp.int32),
        count=jnp.zeros(2, jnp.int32),
        round=zero,
        raises=zero,
        chips=jnp.ones(2, jnp.int32),
        folded=zero - 1,
    )


def over(state: LeducState) -> Array:
    """Returns whether a player has folded or both rounds are over."""
    return (state.folded >= 0) | (state.round >= 2)


def legal(state: LeducState) -> Array:
    """Returns which of fold, call and raise are allowed, bool `[3]`."""
    return jnp.stack([state.raises > 0, jnp.ones((), bool), state.raises < 2]) & ~over(state)


def play(state: LeducState, action: Array) -> LeducState:
    """Returns the hand after a move."""
    now = jnp.minimum(state.round, 1)
    number = state.count[now]
    player, raised = number % 2, action == RAISE
    matched = jnp.max(state.chips)
    paid = jnp.where(action == FOLD, state.chips[player], matched + jnp.where(raised, jnp.asarray(RAISES)[now], 0))
    # A call ends the round, unless it is a check that opens it.
    ends = (action == CALL) & ((state.raises > 0) | (number > 0))
    return state.replace(
        moves=state.moves.at[now, number].set(action.astype(jnp.int32), mode="drop"),
        count=state.count.at[now].add(1),
        round=state.round + ends,
        raises=jnp.where(ends, 0, state.raises + raised),
        chips=state.chips.at[player].set(paid),
        folded=jnp.where(action == FOLD, player, state.folded),
    )


def payoff(state: LeducState) -> Array:
    """Returns the chips won by each player in a finished hand, float32 `[2]`."""
    hand = state.cards[:2] + jnp.where(state.cards[:2] == state.cards[2], 3, 0)
    showdown = jnp.sign(hand[0] - hand[1]) * state.chips[0]
    by_fold = jnp.where(state.folded == 0, -state.chips[0], state.chips[1])
    won = jnp.where(state.folded >= 0, by_fold, showdown)
    return jnp.stack([won, -won]).astype(jnp.float32)


def choose(key: Array, state: LeducState) -> Array:
    """Draws a move by the strength of the hand, int32 `[]`: strong hands raise, weak ones fold to a raise."""
    now = jnp.minimum(state.round, 1)
    card = state.cards[state.count[now] % 2]
    hand = jnp.where(now == 0, card, jnp.where(card == state.cards[2], 4, 3 * (card == 2)))
    # Rows: jack, queen, king in the first round; then a king or a pair in the second, in which other cards are weak.
    weak = (now == 1) & (hand == 0)
    wish = jnp.asarray([[0.4, 0.5, 0.1], [0.1, 0.6, 0.3], [0.0, 0.2, 0.8], [0.2, 0.7, 0.1], [0.0, 0.1, 0.9]])[hand]
    wish = jnp.where(weak, jnp.asarray([0.7, 0.2, 0.1]), wish)
    wish = jnp.where(legal(state), wish, 0.0)
    return jax.random.categorical(key, jnp.log(wish)).astype(jnp.int32)


def tell(state: LeducState, player: Array) -> Text:
    """Describes what a player sees."""
    first, second = (pick(MOVE_WORDS, state.moves[number]) for number in range(2))
    later = state.round > 0
    table = when(later, text("table shows", pick(CARDS, state.cards[2]), ","))
    own = text("your card is", pick(CARDS, state.cards[player]), ",")
    return text(own, table, "moves", first, when(later, text("then", second)), ".")

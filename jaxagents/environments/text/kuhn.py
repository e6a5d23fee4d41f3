"""Kuhn poker in words: three cards, one bet, and an equilibrium that bluffs."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.textgames import ended, make_text_game
from jaxagents.environments.text.texts import Text, pick, text
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment

CARDS = ("jack", "queen", "king")
PASS, BET = range(2)
BLUFF = 0.2
"""How often player 0 opens with a bet on the jack in the equilibrium that the expert plays, from 0 to 1/3."""


@struct.dataclass
class KuhnState:
    """State of a hand.

    Attributes:
        cards: int32 `[2]`, cards of the players, 0 to 2.
        moves: int32 `[3]`, pass or bet, -1 for moves not made.
        count: int32, number of moves so far.
    """

    cards: Array
    moves: Array
    count: Array


def make_environment(**options: Any) -> Environment:
    """Makes Kuhn poker: both players ante a chip, and each may bet one more once.

    A pass in answer to a bet folds, a bet calls. Rewards are chips won or lost: 1 after a fold or after two passes, 2
    after a called bet. The observation is "you are player 0 , your card is king , moves pass bet ."; the action is
    "pass" or "bet". The value of the game is -1/18 for player 0. The expert plays an equilibrium.

    Args:
        **options: arguments of `make_text_game`.

    Returns:
        The environment.

    References:
        Kuhn (1950), "A Simplified Two-Person Poker".
    """
    grammar = make_grammar("pass", "bet")
    world = World(
        name="kuhn poker",
        grammar=grammar,
        max_steps=3,
        sample=lambda key, level: {"deal": draw_distinct(key, jnp.ones(3, bool), 2), "level": level},
        start=lambda key, task: start(task["deal"]),
        player=lambda state: state.count % 2,
        allowed=lambda state: jnp.broadcast_to(~over(state), (2,)),
        play=lambda key, state, verb, args: play(state, verb),
        status=lambda state: ended(over(state), payoff(state)),
        tell=tell,
        expert=lambda key, state: (equilibrium(key, state), grammar.args(), None),
    )
    return make_text_game(world, stake=2.0, **options)  # The ante and the bet.


def all_deals() -> np.ndarray:
    """Returns the six deals, all equally likely, int32 `[6, 2]`."""
    return np.asarray(list(itertools.permutations(range(3), 2)), np.int32)


def start(cards: Array) -> KuhnState:
    """Returns the hand before the first move."""
    return KuhnState(cards=cards, moves=jnp.full(3, -1, jnp.int32), count=jnp.zeros((), jnp.int32))


def play(state: KuhnState, action: Array) -> KuhnState:
    """Returns the hand after a move."""
    moves = state.moves.at[state.count].set(action.astype(jnp.int32), mode="drop")
    return state.replace(moves=moves, count=state.count + 1)


def over(state: KuhnState) -> Array:
    """Returns whether the hand has ended: after two equal moves, a fold, or the third move."""
    first, second = state.moves[0], state.moves[1]
    return (state.count >= 2) & ~((first == PASS) & (second == BET)) | (state.count >= 3)


def payoff(state: KuhnState) -> Array:
    """Returns the chips won by each player in a finished hand, float32 `[2]`."""
    last, before = state.moves[state.count - 1], state.moves[state.count - 2]
    higher = jnp.where(state.cards[0] > state.cards[1], 1, -1)
    # A pass that answers a bet folds: the player who bet wins a chip. The bettor moved before the last player.
    bettor = jnp.where(state.count % 2 == 0, 1, -1)
    won = jnp.where((before == BET) & (last == PASS), bettor, higher * jnp.where(last == BET, 2, 1))
    return jnp.stack([won, -won]).astype(jnp.float32)


def equilibrium(key: Array, state: KuhnState) -> Array:
    """Draws a move of one of the equilibria; int32 `[]`.

    Player 0 bets the jack with probability b and the king with 3 b, never the queen, with which they call with
    probability 1/3 + b. Player 1 calls with the queen in one of three cases, and bets the jack after a pass equally
    often.
    """
    jack, queen, king = range(3)
    bet = np.zeros((4, 3), np.float32)  # [situation, card]: opening, answering a pass, a bet, the bet after the pass.
    bet[0, [jack, king]] = BLUFF, 3 * BLUFF
    bet[1, [jack, king]] = 1 / 3, 1.0
    bet[2, [queen, king]] = 1 / 3, 1.0
    bet[3, [queen, king]] = 1 / 3 + BLUFF, 1.0
    situation = jnp.where(state.count == 1, 1 + state.moves[0], jnp.where(state.count == 0, 0, 3))
    card = state.cards[state.count % 2]
    return jax.random.bernoulli(key, jnp.asarray(bet)[situation, card]).astype(jnp.int32)


def tell(state: KuhnState, player: Array) -> Text:
    """Describes what a player sees."""
    moves = pick(("pass", "bet"), state.moves)
    return text("your card is", pick(CARDS, state.cards[player]), ",", "moves", moves, ".")

"""A simple negotiation in words: two players trade wood and gold, and the one with the larger gain wins."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.textgames import ended, make_text_game
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment

GOODS = ("wood", "gold")
OFFERS = tuple((good, give, take) for good in range(2) for give in (1, 2) for take in (1, 2))
"""Good that is given, how many of it, and how many of the other good for it."""
ACCEPT, DENY, FIRST_OFFER = range(3)
TURNS = 6
MOST_HELD, MOST_WORTH = 3, 4

_GIVEN = np.asarray([[(-give, take), (take, -give)][good] for good, give, take in OFFERS], np.int32)
"""What an offer does to the holdings of whoever makes it, `[8, 2]`; to the other, the opposite."""


SENTENCES = tuple(("give", str(give), GOODS[good], "for", str(take), GOODS[1 - good]) for good, give, take in OFFERS)


@struct.dataclass
class NegotiationState:
    """State of a negotiation.

    Attributes:
        start: int32 `[2, 2]`, initial wood and gold of the players.
        holdings: int32 `[2, 2]`, current wood and gold of the players.
        worth: int32 `[2, 2]`, worth of the goods to the players.
        offer: int32, index in `OFFERS` of the other player's open offer; -1 for none.
        count: int32, number of moves so far.
    """

    start: Array
    holdings: Array
    worth: Array
    offer: Array
    count: Array


def make_environment(**options: Any) -> Environment:
    """Makes a negotiation of six turns over wood and gold, whose worth differs between the players.

    Holdings are public, their worth to the other player is not. In a turn, a player accepts or denies the open offer,
    or makes another offer. After the last turn, the player whose goods have gained more by their own valuation wins 1
    and the other loses 1; equal gains are a draw. The observation is "you are player 0 , you have wood 2 gold 1 , worth
    wood 3 gold 1 , they have wood 1 gold 3 , offer give 1 gold for 1 wood , moves left 5 .", the action "accept",
    "deny" or "give 1 wood for 2 gold". The expert accepts offers that gain it something, and makes such offers.

    Args:
        **options: arguments of `make_text_game`.

    Returns:
        The environment.

    References:
        Liu et al. (2025), "SPIRAL", section 4 (simple negotiation, of TextArena).
    """
    grammar = make_grammar("accept", "deny", "{offer}", offer=SENTENCES)
    world = World(
        name="negotiation",
        grammar=grammar,
        max_steps=TURNS,
        sample=lambda key, level: {"deal": deal(key), "level": level},
        start=lambda key, task: start(task["deal"]),
        player=lambda state: state.count % 2,
        allowed=legal,
        play=lambda key, state, verb, args: play(state, verb + jnp.maximum(args[0, 0], 0)),
        status=lambda state: ended(over(state), payoff(state)),
        tell=tell,
        expert=lambda key, state: (*grammar.entry(choose(key, state)), None),
    )
    return make_text_game(world, stake=1.0, **options)


def deal(key: Array) -> dict[str, Array]:
    """Draws holdings from 1 to 3 and worths from 1 to 4, int32 `[2, 2]` each."""
    held_key, worth_key = jax.random.split(key)
    return {
        "holdings": jax.random.randint(held_key, (2, 2), 1, MOST_HELD + 1),
        "worth": jax.random.randint(worth_key, (2, 2), 1, MOST_WORTH + 1),
    }


def start(dealt: dict[str, Array]) -> NegotiationState:
    """Returns the negotiation before the first move."""
    zero = jnp.zeros((), jnp.int32)
    return NegotiationState(
        start=dealt["holdings"], holdings=dealt["holdings"], worth=dealt["worth"], offer=zero - 1, count=zero
    )


def over(state: NegotiationState) -> Array:
    """Returns whether all turns have been taken."""
    return state.count >= TURNS


def legal(state: NegotiationState) -> Array:
    """Returns which moves are allowed, bool `[10]`: players cannot give what they do not have."""
    own = state.holdings[state.count % 2]
    offers = jnp.all(own[None] + jnp.asarray(_GIVEN) >= 0, axis=1)
    on_table = jnp.asarray(_GIVEN)[jnp.maximum(state.offer, 0)]
    accept = (state.offer >= 0) & jnp.all(own - on_table >= 0)
    return jnp.concatenate([jnp.stack([accept, jnp.ones((), bool)]), offers]) & ~over(state)


def play(state: NegotiationState, action: Array) -> NegotiationState:
    """Returns the negotiation after a move."""
    player = state.count % 2
    on_table = jnp.asarray(_GIVEN)[jnp.maximum(state.offer, 0)]
    traded = jnp.where(jnp.arange(2)[:, None] == player, -on_table[None], on_table[None])
    return state.replace(
        holdings=state.holdings + jnp.where(action == ACCEPT, traded, 0),
        offer=jnp.where(action >= FIRST_OFFER, action - FIRST_OFFER, -1).astype(jnp.int32),
        count=state.count + 1,
    )


def payoff(state: NegotiationState) -> Array:
    """Returns 1 for the player who gained more and -1 for the other, float32 `[2]`; zeros for equal gains."""
    gains = jnp.sum((state.holdings - state.start) * state.worth, axis=1)
    won = jnp.sign(gains[0] - gains[1])
    return jnp.stack([won, -won]).astype(jnp.float32)


def choose(key: Array, state: NegotiationState) -> Array:
    """Accepts an offer with a gain, else offers a trade with a gain, else denies; int32 `[]`."""
    player, given = state.count % 2, jnp.asarray(_GIVEN)
    worth, allowed = state.worth[player], legal(state)
    gained = -jnp.sum(given[jnp.maximum(state.offer, 0)] * worth)
    gains = jnp.sum(given * worth[None], axis=1)
    # The other player must have what is asked for.
    useful = allowed[FIRST_OFFER:] & (gains > 0) & jnp.all(state.holdings[1 - player][None] - given >= 0, axis=1)
    score = jnp.where(useful, jax.random.uniform(key, gains.shape), -1.0)
    offer = jnp.where(jnp.any(useful), FIRST_OFFER + jnp.argmax(score), DENY)
    return jnp.where(allowed[ACCEPT] & (gained > 0), ACCEPT, offer).astype(jnp.int32)


def tell(state: NegotiationState, player: Array) -> Text:
    """Describes what a player sees."""

    def amounts(head: str, numbers: Array) -> Text:
        return text(head, *(part for good in range(2) for part in (GOODS[good], number(numbers[good], 1))), ",")

    return text(
        amounts("you have", state.holdings[player]),
        amounts("worth", state.worth[player]),
        amounts("they have", state.holdings[1 - player]),
        when(state.offer >= 0, text("offer", pick(SENTENCES, state.offer), ",")),
        "moves left",
        number(jnp.maximum(TURNS - state.count, 0), 1),
        ".",
    )

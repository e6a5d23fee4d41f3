"""A small Hanabi in words: players see all cards but their own, and hints are few."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import first_rule
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, number, pick, text
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

COLOURS, RANKS, COPIES = ("red", "blue"), 3, (2, 2, 1)
"""A deck of ten cards: of each colour two ones, two twos, and a three. Card `c * 3 + r - 1` is rank r of colour c."""
CARDS = np.repeat(np.arange(len(COLOURS) * RANKS), COPIES * len(COLOURS))
HAND, SEATS, HINTS, LIVES = 2, 2, 3, 2
PLAY, DISCARD, TELL_COLOUR, TELL_RANK = range(4)


@struct.dataclass
class HanabiState:
    """State of a game.

    `hands` are places in the deck, int32 `[2, 2]`, -1 for none, the newest last; `known` is what the owners of cards
    were told of their colour and rank, bool `[10, 2]`; `piles` has the highest ranks on the table; and `counts` are
    cards drawn, hints and lives left, turns taken, and turns left (-1 while there are cards), int32 `[5]`.
    """

    deck: Array
    hands: Array
    known: Array
    piles: Array
    counts: Array


def make_environment(*, max_turns: int = 20, **options: Any) -> Environment:
    """Makes a game of two seats.

    A seat sees `hints 3 lives 2 deck 6 table red 0 blue 1 they red 2 blue 1 you red ? ? 1`: the hand of the other
    player, and what it knows of its own. `play 1` puts a card on its pile if it is the next rank of its colour, and
    otherwise costs a life; `discard 2` brings a hint back, and is not allowed while all hints are there; the last card
    of a colour brings one back, too. `tell red` and `tell 1` spend a hint and mark all such cards of the other hand.
    The game ends when all lives are lost (the score is kept), when all cards are on the table, or when each seat has
    had a turn after the last card was drawn. All are paid the increase of the score: cards on the table, divided by
    six.

    The expert plays cards that it knows to fit, gives a hint about a card that fits, and otherwise discards its oldest
    card; while discards are not allowed, it gives any hint.

    Args:
        max_turns: maximum turns of both players together.
        **options: arguments of `make_text_game`.

    Returns:
        The environment, whose tasks are decks.

    References:
        Bard et al. (2020), The Hanabi Challenge, section 2; hanabi_learning_environment, hanabi_lib/hanabi_state.cc.

    Deviation: a lost game keeps its score, which the original rules set to 0.
    """
    templates = ("play {place}", "discard {place}", "tell {colour}", "tell {rank}")
    grammar = make_grammar(*templates, place=("1", "2"), colour=COLOURS, rank=("1", "2", "3"))

    def sample(key: Array, level: Array) -> Task:
        return {"deck": jax.random.permutation(key, jnp.asarray(CARDS, jnp.int32)), "level": level}

    def start(key: Array, task: Task) -> HanabiState:
        return HanabiState(
            deck=task["deck"],
            hands=jnp.arange(SEATS * HAND, dtype=jnp.int32).reshape(SEATS, HAND),
            known=jnp.zeros((len(CARDS), 2), bool),
            piles=jnp.zeros(len(COLOURS), jnp.int32),
            counts=jnp.asarray([SEATS * HAND, HINTS, LIVES, 0, -1], jnp.int32),
        )

    def status(state: HanabiState) -> Status:
        score = jnp.sum(state.piles)
        _, _, lives, turns, left = state.counts
        over = (lives == 0) | (left == 0) | (turns >= max_turns) | (score == len(COLOURS) * RANKS)
        share = score / (len(COLOURS) * RANKS)
        parts = {"score": score.astype(jnp.float32), "lives": lives.astype(jnp.float32)}
        return Status(success=over, over=over, payoff=jnp.full(SEATS, share), parts=parts)

    world = World(
        name="hanabi",
        grammar=grammar,
        max_steps=max_turns,
        num_seats=SEATS,
        sample=sample,
        start=start,
        player=lambda state: state.counts[3] % SEATS,
        play=play,
        allowed=allowed,
        status=status,
        tell=tell,
        expert=lambda key, state: (*grammar.entry(advise(state)), None),
    )
    return make_text_world(world, **options)


def fits(state: HanabiState, card: Array) -> Array:
    """Returns whether cards are the next ones of their piles."""
    return card % RANKS == state.piles[card // RANKS]


def play(key: Array, state: HanabiState, verb: Array, args: Array) -> HanabiState:
    """Plays, discards or gives a hint."""
    drawn, hints, lives, turns, left = state.counts
    seat, place, acts = turns % SEATS, args[0, 0], verb <= DISCARD
    card = state.deck[state.hands[seat, place]]
    good = (verb == PLAY) & fits(state, card)
    fresh = jnp.where(drawn < len(CARDS), drawn, -1)
    hand = state.hands[seat]
    moved = jnp.where(acts, jnp.append(jnp.where(place == 0, hand[1], hand[0])[None], fresh), hand)
    other = state.hands[1 - seat]
    same = jnp.stack([state.deck[other] // RANKS, state.deck[other] % RANKS], axis=1) == place
    hinted = same & (jnp.stack([verb == TELL_COLOUR, verb == TELL_RANK]))[None] & (other >= 0)[:, None]
    drawn = jnp.where(acts, jnp.minimum(drawn + 1, len(CARDS)), drawn)
    completes = good & (card % RANKS == RANKS - 1)
    hints = jnp.where(acts, jnp.minimum(hints + ((verb == DISCARD) | completes), HINTS), hints - 1)
    lives = lives - ((verb == PLAY) & ~good)
    left = jnp.where(left > 0, left - 1, jnp.where((left < 0) & (drawn == len(CARDS)), SEATS, left))
    return state.replace(
        hands=state.hands.at[seat].set(moved),
        known=state.known.at[other].set(state.known[other] | hinted),
        piles=state.piles.at[card // RANKS].add(good),
        counts=jnp.stack([drawn, hints, lives, turns + 1, left]).astype(jnp.int32),
    )


def allowed(state: HanabiState) -> Array:
    """Returns the possible entries, bool `[9]`.

    Discards bring a hint back, and need one to be missing; hints cost one, and must be true of some card.
    """
    seat = state.counts[3] % SEATS
    own, other = state.hands[seat] >= 0, state.hands[1 - seat]
    cards = jnp.where(other >= 0, state.deck[other], -RANKS)
    colours = jnp.any(cards[:, None] // RANKS == np.arange(len(COLOURS))[None], axis=0)
    ranks = jnp.any((cards[:, None] % RANKS == np.arange(RANKS)[None]) & (other >= 0)[:, None], axis=0)
    hints = state.counts[1]
    return jnp.concatenate([own, own & (hints < HINTS), jnp.append(colours, ranks) & (hints > 0)])


def advise(state: HanabiState) -> Array:
    """Returns the entry of the expert's action: play what is known to fit, hint at what fits, else discard or hint."""
    seat = state.counts[3] % SEATS
    (own, other), can = (state.hands[seat], state.hands[1 - seat]), allowed(state)
    rank_fits_all = jnp.all(state.piles[None] == state.deck[own][:, None] % RANKS, axis=1)
    sure = state.known[own, 1] & (own >= 0)
    sure = sure & (rank_fits_all | (state.known[own, 0] & fits(state, state.deck[own])))
    wanted = (other >= 0) & fits(state, state.deck[other])
    hidden = wanted[:, None] & ~state.known[other]
    card, kind = jnp.unravel_index(jnp.argmax(hidden[:, ::-1]), hidden.shape)
    named = jnp.where(kind == 0, state.deck[other[card]] % RANKS + len(COLOURS), state.deck[other[card]] // RANKS)
    hint, oldest, anything = 2 * HAND + named, jnp.int32(HAND), jnp.argmax(can)
    rules = [(jnp.any(sure), jnp.argmax(sure)), (jnp.any(hidden) & can[hint], hint), (can[oldest], oldest)]
    rules += [(jnp.any(can[2 * HAND :]), 2 * HAND + jnp.argmax(can[2 * HAND :]))]
    return first_rule([*rules, (jnp.bool_(True), anything)]).astype(jnp.int32)


def tell(state: HanabiState, seat: Array) -> Text:
    """Describes the table, the hand of the other player, and what is known of the own hand."""
    drawn, hints, lives, _, _ = state.counts
    own, other = state.hands[seat], state.hands[1 - seat]
    faces = [(colour, str(rank + 1)) for colour in COLOURS for rank in range(RANKS)]
    theirs = pick(faces, jnp.where(other >= 0, state.deck[other], -1))
    mine, card = [], state.deck[own]
    for place in range(HAND):
        colour, rank = (jnp.where(state.known[own[place], kind], 1, 0) for kind in range(2))
        mine.append(pick(["?", *COLOURS], jnp.where(own[place] >= 0, colour * (1 + card[place] // RANKS), -1)))
        mine.append(pick(["?", "1", "2", "3"], jnp.where(own[place] >= 0, rank * (1 + card[place] % RANKS), -1)))
    counts = text("hints", number(hints, 1), "lives", number(lives, 1), "deck", number(len(CARDS) - drawn, 1))
    table = [text(colour, number(state.piles[i], 1)) for i, colour in enumerate(COLOURS)]
    return text(counts, "table", *table, "they", theirs, "you", *mine)

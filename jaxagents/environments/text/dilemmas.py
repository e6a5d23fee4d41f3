"""Social dilemmas in words: public goods and commons, in rounds of several seats that act at once or in turn."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

MOST, CAPACITY = 5, 12
"""What a seat can give or take in a round, and what a commons can hold."""
AMOUNTS = tuple(map(str, range(MOST + 1)))


@struct.dataclass
class DilemmaState:
    """State of a dilemma.

    It has the stock, int32; the amounts of this round (if seats act in turn) and of the last one, int32 `[P]`, -1 for
    none; the earnings, float32 `[P]`; and the number of past rounds, int32.
    """

    task: Task
    stock: Array
    now: Array
    last: Array
    earned: Array
    round: Array


class Dilemma(NamedTuple):
    """What distinguishes dilemmas: maximum amounts of seats, their earnings, and an expert's actions, int32 `[P]`."""

    name: str
    verb: str
    sample: Callable[[Array, Array], Task]
    most: Callable[[DilemmaState], Array]
    settle: Callable[[DilemmaState, Array], tuple[Array, Array]]
    advise: Callable[[DilemmaState], Array]
    best: Callable[[Task], Array]
    say: Callable[[DilemmaState, Array], Text]


def make_public_goods(num_seats: int = 3, *, num_rounds: int = 3, in_turn: bool = False, **options: Any) -> Environment:
    """Makes a public good, `payoff_i = have_i - give_i + multiplier * sum_j give_j / P` in every round.

    The observation reads `player 0 has 4 pot times 1 6 tenths rounds 2 last 4 0 1`, the action `give 2`. Tasks are the
    coins per round, 1 to 5 for each seat, and the multiplier, from 1.2 to beyond P. The expert plays the only
    equilibrium: it gives nothing if the multiplier is below P, else everything. `info["metrics"]` has `welfare`, the
    total earnings so far divided by the maximum of an episode.

    Args:
        num_seats: P, number of seats, 2 to 5.
        num_rounds: number of rounds of an episode, 1 to 9.
        in_turn: whether seats act one after the other and see the earlier actions of a round; else all act at once.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers of seats or rounds are out of their range.

    References:
        Isaac and Walker (1988), Group Size Effects in Public Goods Provision, section II.
    """

    def sample(key: Array, level: Array) -> Task:
        has_key, times_key = jax.random.split(key)
        tenths = 10 + 2 * jax.random.randint(times_key, (), 1, 5 * num_seats)
        return {"has": jax.random.randint(has_key, (num_seats,), 1, MOST + 1), "tenths": tenths, "level": level}

    dilemma = Dilemma(
        name="public_goods",
        verb="give",
        sample=sample,
        most=lambda state: state.task["has"],
        settle=lambda state, gave: (
            state.task["has"] - gave + state.task["tenths"] / 10 * jnp.sum(gave) / num_seats,
            state.stock,
        ),
        advise=lambda state: jnp.where(state.task["tenths"] > 10 * num_seats, state.task["has"], 0),
        best=lambda task: num_rounds * task["tenths"] / 10 * jnp.sum(task["has"]),
        say=lambda state, seat: text(
            "has", number(state.task["has"][seat], 1), "pot times", number(state.task["tenths"], 2), "tenths"
        ),
    )
    return _make(dilemma, num_seats, num_rounds, in_turn, **options)


def make_commons(num_seats: int = 2, *, num_rounds: int = 4, in_turn: bool = False, **options: Any) -> Environment:
    """Makes a commons: seats take from a stock, the rest doubles up to 12, and an empty stock stays empty.

    The observation reads `player 0 stock 8 rounds 3 last 2 2`, the action `take 2`. If the seats ask for more than
    there is in total, the stock is divided in proportion to what they asked for, rounded down, and the rest is lost.
    Tasks are the initial stocks and the maximum that a seat can take. The expert takes what will grow back, and in the
    last round its share.

    Args:
        num_seats: P, number of seats, 2 to 5.
        num_rounds: number of rounds of an episode, 1 to 9.
        in_turn: as in `make_public_goods`.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers of seats or rounds are out of their range.

    References:
        Ostrom, Gardner and Walker (1994), Rules, Games, and Common-Pool Resources; Piatti et al. (2024), GovSim.
    """

    def sample(key: Array, level: Array) -> Task:
        stock_key, most_key = jax.random.split(key)
        stock = jax.random.randint(stock_key, (), 2, CAPACITY + 1)
        return {"stock": stock, "most": jax.random.randint(most_key, (), 1, MOST + 1), "level": level}

    def settle(state: DilemmaState, took: Array) -> tuple[Array, Array]:
        asked = jnp.sum(took)
        got = jnp.where(asked > state.stock, took * state.stock // jnp.maximum(asked, 1), took)
        return got, jnp.minimum(2 * jnp.maximum(state.stock - asked, 0), CAPACITY)

    def advise(state: DilemmaState) -> Array:
        spare = jnp.where(state.round == num_rounds - 1, state.stock, state.stock - (CAPACITY + 1) // 2)
        share = jnp.maximum(spare, 0) // num_seats
        return jnp.full(num_seats, jnp.minimum(share, state.task["most"]))

    dilemma = Dilemma(
        name="commons",
        verb="take",
        sample=sample,
        most=lambda state: jnp.full(num_seats, state.task["most"]),
        settle=settle,
        advise=advise,
        best=lambda task: task["stock"] + (num_rounds - 1) * (CAPACITY / 2),
        say=lambda state, seat: text("stock", number(state.stock, 2), "take up to", number(state.task["most"], 1)),
    )
    return _make(dilemma, num_seats, num_rounds, in_turn, **options)


def sustainable_share(world: World, state: DilemmaState) -> Text:
    """Writes how much every seat can take from a commons such that it grows back; a note for `with_notes`.

    References:
        Piatti et al. (2024), Cooperate or Collapse: Emergence of Sustainable Cooperation in a Society of LLM Agents
        (universalisation).
    """
    return text(number(state.stock // 2 // world.num_seats, 1), "it will be empty")


def _make(dilemma: Dilemma, num_seats: int, num_rounds: int, in_turn: bool, **options: Any) -> Environment:
    if not 2 <= num_seats <= 5 or not 1 <= num_rounds <= 9:
        raise ValueError(f"`num_seats` must be 2 to 5 and `num_rounds` 1 to 9, got {num_seats} and {num_rounds}.")
    grammar, nobody = make_grammar(f"{dilemma.verb} {{amount}}", amount=AMOUNTS), jnp.full(num_seats, -1, jnp.int32)

    def seat_of(state: DilemmaState) -> Array:
        return jnp.sum(state.now >= 0).astype(jnp.int32) % num_seats

    def start(key: Array, task: Task) -> DilemmaState:
        stock = task.get("stock", jnp.int32(0))
        earned, zero = jnp.zeros(num_seats), jnp.zeros((), jnp.int32)
        return DilemmaState(task=task, stock=stock, now=nobody, last=nobody, earned=earned, round=zero)

    def play(key: Array, state: DilemmaState, verb: Array, args: Array) -> DilemmaState:
        amounts = state.now.at[seat_of(state)].set(args[0, 0]) if in_turn else args[:, 0, 0]
        complete = jnp.all(amounts >= 0)
        gain, stock = dilemma.settle(state, amounts)
        return state.replace(
            stock=jnp.where(complete, stock, state.stock),
            now=jnp.where(complete, nobody, amounts),
            last=jnp.where(complete, amounts, state.last),
            earned=state.earned + jnp.where(complete, gain, 0),
            round=state.round + complete,
        )

    def allowed(state: DilemmaState) -> Array:
        can = jnp.arange(MOST + 1)[None] <= dilemma.most(state)[:, None]
        return can[seat_of(state)] if in_turn else can

    def status(state: DilemmaState) -> Status:
        over = state.round >= num_rounds
        welfare = jnp.sum(state.earned) / dilemma.best(state.task)
        return Status(success=over, over=over, payoff=state.earned, parts={"welfare": welfare})

    def tell(state: DilemmaState, seat: Array) -> Text:
        head = text("player", number(seat, 1), dilemma.say(state, seat), "rounds", number(num_rounds - state.round, 1))
        last = when(state.round > 0, text("last", pick(AMOUNTS, state.last)))
        return text(head, last, when(jnp.any(state.now >= 0), text("now", pick(AMOUNTS, state.now))))

    def expert(key: Array, state: DilemmaState) -> tuple[Array, Array, None]:
        amounts = dilemma.advise(state).astype(jnp.int32)
        if in_turn:
            return jnp.int32(0), grammar.args(amounts[seat_of(state)]), None
        return jnp.zeros(num_seats, jnp.int32), jax.vmap(grammar.args)(amounts), None

    world = World(
        name=dilemma.name,
        grammar=grammar,
        max_steps=2 * num_seats * num_rounds,
        num_seats=num_seats,
        sample=dilemma.sample,
        start=start,
        player=seat_of if in_turn else None,
        play=play,
        allowed=allowed,
        status=status,
        tell=tell,
        expert=expert,
    )
    return make_text_world(world, **options)

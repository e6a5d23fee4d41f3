"""A market in words: tools predict the price, one of them correctly; then the agent buys, sells or waits."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

SECTORS = ("bank", "oil", "chip", "farm", "ship", "drug")
SOURCES = ("news", "volume", "trend")
MOVES, ORDERS = ("down", "flat", "up"), ("sell", "hold", "buy")
LOOK, TRADE = range(2)
FIRST_PRICE = 50


@struct.dataclass
class MarketState:
    """Number of past days, profit, number of looks on all days, and the tool of today's last look (-1: none), int32."""

    task: Task
    day: Array
    profit: Array
    looks: Array
    source: Array


def make_environment(
    num_days: int = 3, *, noise: float = 0.0, look_cost: float = 0.0, seed: int = 0, **options: Any
) -> Environment:
    """Makes a market.

    The observation reads `oil day 2 price 51 profit 1` in digits, and ends with `news up` after `look news`. On each
    day, the agent looks at tools, and then says `buy`, `hold` or `sell`: the price rises by 1, stays, or falls by 1;
    `buy` earns the rise, `sell` the fall, and the wrong one loses as much. In every sector, one of three tools is right
    and the others are random; which one is the same in all tasks, and has to be found out. `info["metrics"]` has
    `score`, the profit divided by the number of moves, and `looks` per day. Success is a score of 1 at the end; dense
    rewards pay the score, minus the cost of looks.

    Args:
        num_days: number of days, with one trade each, 1 to 5.
        noise: probability that the right tool is random, too; success is then never certain.
        look_cost: cost of a look.
        seed: seed of the right tool in each sector.
        **options: arguments of `make_text_world`.

    Returns:
        The environment, whose tasks are sectors, moves, and the predictions of the tools.

    Raises:
        ValueError: the number of days, a probability or a cost is out of its range.

    References:
        Deng et al. (2025), AlphaQuanter (tools are asked until a decision is made).
    """
    if not 1 <= num_days <= 5 or not 0.0 <= noise <= 1.0 or look_cost < 0:
        raise ValueError(
            "`num_days` must be 1 to 5, `noise` in [0, 1], `look_cost` at least 0, got "
            f"{num_days}, {noise} and {look_cost}."
        )
    right = np.random.default_rng(seed).permutation(np.arange(len(SECTORS)) % len(SOURCES))
    grammar = make_grammar("look {source}", "{order}", source=SOURCES, order=ORDERS)
    zero = jnp.zeros((), jnp.int32)

    def play(key: Array, state: MarketState, verb: Array, args: Array) -> MarketState:
        trades = verb == TRADE
        earned = (args[0, 0] - 1) * (state.task["moves"][state.day] - 1)
        return state.replace(
            day=state.day + trades,
            profit=state.profit + jnp.where(trades, earned, 0),
            looks=state.looks + ~trades,
            source=jnp.where(trades, -1, args[0, 0]),
        )

    def status(state: MarketState) -> Status:
        over, most = state.day >= num_days, jnp.sum(state.task["moves"] != 1)
        score = state.profit / jnp.maximum(most, 1)
        return Status(
            success=over & (state.profit == most),
            over=over,
            progress=score - look_cost * state.looks,
            parts={"score": score.astype(jnp.float32), "looks": state.looks / num_days},
        )

    def expert(key: Array, state: MarketState) -> tuple[Array, Array, Text]:
        best = jnp.asarray(right, jnp.int32)[state.task["sector"]]
        looks = state.source != best
        forecast = state.task["told"][jnp.minimum(state.day, num_days - 1), best]
        thought = when(looks, text("ask", pick(SOURCES, best)), text("it goes", pick(MOVES, forecast)))
        return jnp.where(looks, LOOK, TRADE), jnp.where(looks, grammar.args(best), grammar.args(forecast)), thought

    world = World(
        name="market",
        grammar=grammar,
        max_steps=2 * num_days + 2,
        sample=partial(sample, num_days, noise, right),
        start=lambda key, task: MarketState(task=task, day=zero, profit=zero, looks=zero, source=zero - 1),
        play=play,
        status=status,
        tell=partial(tell, num_days),
        expert=expert,
    )
    return make_text_world(world, **options)


def sample(num_days: int, noise: float, right: np.ndarray, key: Array, level: Array) -> Task:
    """Draws a sector, moves, int32 `[days]`, and the predictions of the tools, int32 `[days, 3]`."""
    keys = jax.random.split(key, 4)
    sector = jax.random.randint(keys[0], (), 0, len(SECTORS))
    moves = jax.random.randint(keys[1], (num_days,), 0, 3)
    anything = jax.random.randint(keys[2], (num_days, len(SOURCES)), 0, 3)
    noisy = jax.random.bernoulli(keys[3], noise, (num_days, 1))
    honest = (np.arange(len(SOURCES)) == jnp.asarray(right)[sector])[None] & ~noisy
    return {"sector": sector, "moves": moves, "told": jnp.where(honest, moves[:, None], anything), "level": level}


def tell(num_days: int, state: MarketState, seat: Array) -> Text:
    """Describes the day, the price, the profit, and the result of today's last look."""
    del seat
    task, day = state.task, jnp.minimum(state.day, num_days - 1)
    price = FIRST_PRICE + jnp.sum(jnp.where(np.arange(num_days) < state.day, task["moves"] - 1, 0))
    profit = text(when(state.profit < 0, "loss", "profit"), number(jnp.abs(state.profit), 1))
    forecast = text(pick(SOURCES, state.source), pick(MOVES, task["told"][day, state.source]))
    head = text(pick(SECTORS, task["sector"]), "day", number(day + 1, 1), "price", number(price, 2), profit)
    return text(head, when(state.source >= 0, forecast))

"""A shop in words: products are searched for, viewed, and bought in a colour."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import best_of, choose, first_action
from jaxagents.environments.text.grammar import allow, make_grammar
from jaxagents.environments.text.texts import Text, cases, each, number, pick, text, when
from jaxagents.environments.text.world import Status, World, grades
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, Environment, Task

KINDS = ("mug", "bowl", "lamp", "torch", "shirt", "coat", "ball", "kite")  # Two of each department.
TRAITS = ("steel", "light", "soft", "strong", "plain", "warm")
COLOURS = ("red", "blue", "green", "white")
WORDS, COLOUR = (*KINDS, *TRAITS, *COLOURS), len(KINDS) + len(TRAITS)
SEARCH, OPEN, CHOOSE, BACK, BUY = range(5)
SHOWN = 3


@struct.dataclass
class ShopState:
    """Search results, int32 `[3]`, the product that is viewed and its colour, int32; all -1 for none."""

    task: Task
    found: Array
    product: Array
    colour: Array
    bought: Array


def make_environment(
    num_wishes: Sequence[int] = (1, 2, 3), *, max_steps: int = 8, seed: int = 0, **options: Any
) -> Environment:
    """Makes a shop.

    The observation reads `want mug steel red below 6`, then the search results, `1 mug steel light 4 2 mug soft steel
    7`, or a product, `mug steel light 4 in red blue chosen red`. `search steel mug` shows the three products with most
    of the words, `open 2` views one, `choose red` selects a colour, `back` returns, and `buy` ends the episode. The
    score of a purchase is `type * (wishes met + price met) / (wishes + 1)`, where `type` is 1 for the wanted kind, 0.5
    for the other kind of its department, and otherwise 0. Success is a score of 1; dense rewards pay the score;
    `info["metrics"]` grades it.

    Args:
        num_wishes: number of wishes besides kind and price, one per level, from 1 to 3: a trait, a colour, another
            trait.
        max_steps: maximum turns, at least 4.
        seed: seed of the catalogue, which is the same in every task, and known to the expert.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: a number is out of its range.

    References:
        Yao, Chen, Yang and Narasimhan (2022), WebShop, section 3 (equation 1).
    """
    require_between("num_wishes", num_wishes, 1, 3)
    require_between("max_steps", max_steps, 4)
    has, price = map(jnp.asarray, draw_products(seed))
    templates = ("search {word:1-4}", "open {place}", "choose {colour}", "back", "buy")
    grammar = make_grammar(*templates, word=WORDS[:COLOUR], place=("1", "2", "3"), colour=COLOURS)
    nothing = jnp.int32(-1)

    def start(key: Array, task: Task) -> ShopState:
        found = jnp.full(SHOWN, -1, jnp.int32)
        return ShopState(task=task, found=found, product=nothing, colour=nothing, bought=jnp.bool_(False))

    def play(key: Array, state: ShopState, verb: Array, args: Array) -> ShopState:
        found = best_of(jnp.sum(has[:, args[0]] & (args[0] >= 0)[None], axis=1), SHOWN)
        product = jnp.where(verb == OPEN, state.found[args[0, 0]], state.product)
        return state.replace(
            found=jnp.where(verb == SEARCH, found, state.found),
            product=jnp.where((verb == SEARCH) | (verb == BACK), -1, product),
            colour=jnp.where(verb == CHOOSE, args[0, 0], jnp.where(verb == BUY, state.colour, -1)),
            bought=verb == BUY,
        )

    def allowed(state: ShopState) -> Array:
        viewing = state.product >= 0
        offered = has[state.product, COLOUR:] & viewing
        return allow(grammar, True, (state.found >= 0) & ~viewing, offered, viewing, viewing)

    def status(state: ShopState) -> Status:
        graded = grade(has, price, state.task, state.product, state.colour)
        parts = jax.tree.map(lambda value: jnp.where(state.bought, value, 0.0), graded)
        return Status(success=parts["score"] == 1.0, over=state.bought, progress=parts["score"], parts=parts)

    def expert(key: Array, state: ShopState) -> tuple[Array, Array, None]:
        wish, colour = state.task["wish"], state.task["wish"][3] - COLOUR
        right = jax.vmap(lambda one: grade(has, price, state.task, one, colour)["score"] == 1.0)(state.found)
        right = right & (state.found >= 0) & ((colour < 0) | has[state.found, wish[3]])
        viewing = state.product >= 0
        rules = [
            (viewing & (colour >= 0) & (state.colour != colour), CHOOSE, colour),
            (viewing, BUY),
            (jnp.any(right), OPEN, choose(key, right)),
            (True, SEARCH, wish[:3]),
        ]
        return *first_action(grammar, rules), None

    world = World(
        name="shop",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=len(num_wishes),
        sample=partial(sample, has, price, tuple(num_wishes)),
        start=start,
        play=play,
        allowed=allowed,
        status=status,
        tell=partial(tell, has, price),
        expert=expert,
    )
    return make_text_world(world, **options)


def draw_products(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws six products of each kind, two with each trait: their words, bool `[48, W]`, and prices, int32 `[48]`."""
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(len(TRAITS)) + len(KINDS) for _ in KINDS]
    traits = np.concatenate([np.stack([order, np.roll(order, 1)], axis=1) for order in orders])
    colours = COLOUR + generator.random((len(traits), len(COLOURS))).argsort(axis=1)[:, :2]
    words = np.concatenate([np.arange(len(traits))[:, None] // len(TRAITS), traits, colours], axis=1)
    return np.any(words[:, :, None] == np.arange(len(WORDS)), axis=1), generator.integers(1, 8, len(traits))


def sample(has: Array, price: Array, num_wishes: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws wishes that a product meets: words for kind, two traits, colour, int32 `[4]`, -1 for none, and a price."""
    keys, index = jax.random.split(key, 4), np.arange(len(WORDS))
    product, count = jax.random.randint(keys[0], (), 0, len(price)), jnp.asarray(num_wishes)[level]
    traits = has[product] & (index >= len(KINDS)) & (index < COLOUR)
    trait, colour = choose(keys[1], traits), choose(keys[2], has[product] & (index >= COLOUR))
    other, more = jnp.argmax(traits & (index != trait)), jnp.arange(3) < count
    wish = jnp.stack([jnp.argmax(has[product]), trait, jnp.where(more[2], other, -1), jnp.where(more[1], colour, -1)])
    below = price[product] + jax.random.randint(keys[3], (), 1, 3)
    return {"wish": wish.astype(jnp.int32), "below": below.astype(jnp.int32), "level": level}


def grade(has: Array, price: Array, task: Task, product: Array, colour: Array) -> dict[str, Array]:
    """Grades a product in a colour, see `make_environment`."""
    wish, kind = task["wish"], jnp.argmax(has[product])
    fits = jnp.where(kind == wish[0], 1.0, jnp.where(kind // 2 == wish[0] // 2, 0.5, 0.0))
    count = jnp.sum(wish[1:] >= 0)
    met = jnp.sum(jnp.append(has[product][wish[1:3]], colour + COLOUR == wish[3]) & (wish[1:] >= 0))
    cheap = price[product] < task["below"]
    return grades(type=fits, wishes=met / count, price=cheap, score=fits * (met + cheap) / (count + 1))


def tell(has: Array, price: Array, state: ShopState, seat: Array) -> Text:
    """Describes the wishes, and what is on the screen."""

    def card(product: Array) -> Text:
        return text(each(WORDS[:COLOUR], has[product, :COLOUR], most=3), number(price[product], 1))

    listed = [when(state.found[i] >= 0, text(str(i + 1), card(state.found[i]))) for i in range(SHOWN)]
    colours = text("in", each(COLOURS, has[state.product, COLOUR:], most=2))
    detail = text(card(state.product), colours, when(state.colour >= 0, text("chosen", pick(COLOURS, state.colour))))
    request = text("want", pick(WORDS, state.task["wish"]), "below", number(state.task["below"], 1))
    return text(request, cases(jnp.where(state.product >= 0, 0, 1), detail, text(*listed)))

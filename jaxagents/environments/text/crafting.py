"""Crafting in words: gather bases, and make goods by the recipes of a book, which may be hidden."""

from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, cases, each, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

BASES = ("wood", "stone", "iron", "clay", "sand", "wool", "coal", "reed")
"""What is got by asking for it."""
GOODS = (
    *("plank", "brick", "thread", "pole", "tile", "cloth", "frame", "oven", "rope"),
    *("cart", "lamp", "sail", "boat", "mill", "tower", "wagon", "bridge", "palace"),
)
"""What is made, `WIDTH` of each depth, from depth 1 on; after the bases in the numbers of items."""
METHODS = ("carve", "bake", "weave", "forge")
WIDTH = 3
GET, MAKE, UNDO = range(3)
WRONG_METHOD, INCOMPLETE = 1, 2
Mistake = Literal["nothing", "spoils", "ends"]


@struct.dataclass
class CraftingState:
    """The pack, with I items.

    Attributes:
        task: the task of the episode.
        pack: bool `[I]`, at most one of each item.
        before: bool `[I]`, pack that "undo" restores; the pack itself if nothing can be undone.
        failure: int32, reason why the last action failed; 0 if it did not fail or the reason is not reported.
        lacking: int32, item that was missing for it.
        ended: bool, whether a mistake ended the episode.
    """

    task: Task
    pack: Array
    before: Array
    failure: Array
    lacking: Array
    ended: Array


def make_environment(
    depths: tuple[int, ...] = (1, 2, 3, 4),
    *,
    num_books: int = 1,
    hidden_methods: bool = False,
    told: bool = False,
    mistake: Mistake = "nothing",
    informative: bool = False,
    split: Literal["tasks", "books"] = "tasks",
    seed: int = 0,
    max_steps: int = 10,
    **options: Any,
) -> Environment:
    """Makes a world of crafting.

    Eight bases can always be gathered ("get wood"). A good of depth d is made ("bake tile") from one of depth d - 1 and
    perhaps a base, by one of four methods; its ingredients are used up. No recipe tree has an item twice, so that the
    number of steps to a goal is exact in every state. "undo" reverts the last change, once. A task is a goal and up to
    two useless items that are given. The observation reads `goal boat pack wood tile`; with `informative`, it begins
    after a failed action with `wrong method` or `you need sand`. The thought of the expert is what it is about to make.

    Args:
        depths: depths of the goals, one per level, from 1 to 6; depth d takes d + 1 to 2 d + 1 steps.
        num_books: number of recipe books; a task belongs to one of them, and only the prompt of `told` says which.
        hidden_methods: whether the books have the same ingredients, and methods that no text states.
        told: whether the prompt has the recipes that the goal needs.
        mistake: effect of a wrong method with all ingredients: "nothing", "spoils" them, or "ends" the episode.
        informative: whether the reason of a failed action is given. Such actions are then allowed; otherwise they are
            not.
        split: what is held out: "tasks", goals with given items in a book, or whole "books".
        seed: seed of the books.
        max_steps: maximum turns.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: depths or options are invalid, there are too few turns, or too few books to hold some out.

    References:
        Prasad, Koller, Hartmann, Clark, Sabharwal, Bansal and Khot (2024), ADaPT: TextCraft, section 4.
    """
    depths = tuple(depths)
    _check(depths, num_books, mistake, split, max_steps)
    goods, items = GOODS[: WIDTH * max(depths)], BASES + GOODS[: WIDTH * max(depths)]
    grammar = make_grammar("get {base}", "{method} {good}", "undo", base=BASES, method=METHODS, good=goods)
    act = partial(play, mistake=mistake, informative=informative)

    def allowed(state: CraftingState) -> Array:
        def changes(verb: Any, args: Any) -> Array:
            following = act(None, state, verb, args)
            return jnp.any(following.pack != state.pack) | following.ended | (informative & (verb == MAKE))

        return jax.vmap(changes)(grammar.entry_verb, grammar.entry_args)

    def tell(state: CraftingState, seat: Array) -> Text:
        del seat
        why = cases(state.failure, None, "wrong method", text("you need", pick(items, state.lacking)))
        pack = each(items, state.pack, most=max_steps + 2)
        return text(why if informative else None, "goal", pick(goods, state.task["goal"]), "pack", pack)

    def prompt(task: Task) -> Text:
        tree = missing(task, jnp.zeros(len(items), bool))[len(BASES) :]
        sentences = []
        for first in range(0, len(goods), WIDTH):
            good = first + jnp.argmax(tree[first : first + WIDTH])
            one, other = task["ingredients"][good]
            method = () if hidden_methods else (pick(METHODS, task["methods"][good]),)
            sentence = text(pick(goods, good), "is", *method, pick(items, one), pick(items, other), ".")
            sentences.append(when(tree[good], sentence))
        return text(*sentences)

    def identity(task: Task) -> tuple[Array, ...]:
        return (task["book"],) if split == "books" else (task["book"], task["goal"], task["given"])

    books = make_books(seed, num_books, max(depths), same_ingredients=hidden_methods)
    world = World(
        name="crafting",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=len(depths),
        sample=partial(sample, books, depths),
        identity=identity,
        start=start,
        allowed=allowed,
        play=act,
        status=status,
        tell=tell,
        prompt=prompt if told else None,
        expert=partial(expert, goods),
        distance=distance,
    )
    return make_text_world(world, **options)


def _check(depths: tuple[int, ...], num_books: int, mistake: str, split: str, max_steps: int) -> None:
    if not depths or not 1 <= min(depths) <= max(depths) <= len(GOODS) // WIDTH:
        raise ValueError(f"`depths` must be from 1 to {len(GOODS) // WIDTH}, got {depths}; try (1, 2).")
    if mistake not in get_args(Mistake) or split not in ("tasks", "books"):
        raise ValueError(
            f'`mistake` must be of {get_args(Mistake)} and `split` "tasks" or "books", got {mistake!r} and {split!r}.'
        )
    if num_books < (16 if split == "books" else 1):
        raise ValueError(f"`num_books` must be at least 1, or 16 to hold books out, got {num_books}; try 64.")
    if max_steps < 2 * max(depths) + 1:
        raise ValueError(f"`max_steps` must be at least {2 * max(depths) + 1} for {depths}, got {max_steps}.")


def make_books(seed: int, num_books: int, depth: int, *, same_ingredients: bool) -> tuple[np.ndarray, np.ndarray]:
    """Draws recipes, on the host.

    Returns:
        Ingredients int32 `[N, G, 2]`, items, the second -1 if there is none; and methods int32 `[N, G]`.
    """
    rng, num_goods = np.random.default_rng(seed), WIDTH * depth
    ingredients = np.full((num_books, num_goods, 2), -1, np.int32)
    for book in range(1 if same_ingredients else num_books):
        trees: list[set[int]] = []
        for good in range(num_goods):
            rank, place = divmod(good, WIDTH)
            if place == 0:
                order = rng.permutation(WIDTH if rank else len(BASES))
            below = int(order[place]) + (rank - 1) * WIDTH
            first = len(BASES) + below if rank else int(order[place])
            tree = {first} | (trees[below] if rank else set())
            others = [base for base in range(len(BASES)) if base not in tree]
            second = int(rng.choice(others)) if rng.random() < 0.75 else -1
            trees.append(tree | {second})
            ingredients[book, good] = first, second
    ingredients = ingredients[:1].repeat(num_books, 0) if same_ingredients else ingredients
    return ingredients, rng.integers(len(METHODS), size=(num_books, num_goods)).astype(np.int32)


def sample(books: tuple[np.ndarray, np.ndarray], depths: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws a book, a goal, and up to two useless items that are given."""
    book_key, goal_key, given_key, count_key = jax.random.split(key, 4)
    book = jax.random.randint(book_key, (), 0, len(books[0]))
    ingredients, methods = (jnp.asarray(table)[book] for table in books)
    goal = (jnp.asarray(depths, jnp.int32)[level] - 1) * WIDTH + jax.random.randint(goal_key, (), 0, WIDTH)
    task = {"ingredients": ingredients, "methods": methods, "goal": goal, "book": book, "level": level}
    items = jnp.arange(len(BASES) + len(methods))
    useless = draw_distinct(given_key, ~missing(task, jnp.zeros(items.shape, bool)), 2)
    kept = jnp.arange(2) < jax.random.randint(count_key, (), 0, 3)
    return task | {"given": jnp.any((items[:, None] == useless[None]) & kept[None], axis=1)}


def recipe_uses(task: Task) -> Array:
    """Returns which items go into which good, bool `[G, I]`."""
    num_items = len(BASES) + len(task["methods"])
    return jnp.any(task["ingredients"][:, :, None] == jnp.arange(num_items)[None, None], axis=1)


def missing(task: Task, pack: Array) -> Array:
    """Returns what must still be made for the goal, bool `[I]`: its tree without the parts below given items.

    No item occurs twice in a tree, so that the number of steps is the number of missing items.
    """
    uses = recipe_uses(task)
    lacks = (jnp.arange(uses.shape[1]) == len(BASES) + task["goal"]) & ~pack
    for first in reversed(range(0, len(uses), WIDTH)):  # The deepest goods first.
        made = lacks[len(BASES) + first :][:WIDTH]
        lacks = lacks | (jnp.any(made[:, None] & uses[first : first + WIDTH], axis=0) & ~pack)
    return lacks


def start(key: Array, task: Task) -> CraftingState:
    """Returns the state with the given items in the pack."""
    del key
    given, none = task["given"], jnp.asarray(-1, jnp.int32)
    return CraftingState(task=task, pack=given, before=given, failure=none + 1, lacking=none, ended=jnp.zeros((), bool))


def play(key: Array, state: CraftingState, verb: Array, args: Array, *, mistake: Mistake, informative: bool):
    """Gathers, makes or undoes, as described in `make_environment`."""
    del key
    items, good = jnp.arange(len(state.pack)), jnp.clip(args[1, 0], 0)
    used = recipe_uses(state.task)[good]
    lacks = used & ~state.pack
    right = args[0, 0] == state.task["methods"][good]
    failure = jnp.where(verb != MAKE, 0, jnp.where(jnp.any(lacks), INCOMPLETE, jnp.where(right, 0, WRONG_METHOD)))
    in_vain = (failure == INCOMPLETE) | ((failure == WRONG_METHOD) & (mistake == "nothing"))
    made = (state.pack & ~used) | (right & (items == len(BASES) + good))
    pack = jnp.stack([state.pack | (items == args[0, 0]), jnp.where(in_vain, state.pack, made), state.before])[verb]
    changed = jnp.any(pack != state.pack)
    return state.replace(
        pack=pack,
        before=jnp.where(verb == UNDO, pack, jnp.where(changed, state.pack, state.before)),
        failure=failure * informative,
        lacking=jnp.where(failure * informative == INCOMPLETE, jnp.argmax(lacks), -1).astype(jnp.int32),
        ended=(failure == WRONG_METHOD) & (mistake == "ends"),
    )


def distance(state: CraftingState) -> Array:
    """Counts the fewest actions to the goal, float32 `[]`; inf after a mistake that ended the episode."""
    from_here, from_before = (jnp.sum(missing(state.task, pack)) for pack in (state.pack, state.before))
    return jnp.where(state.ended, jnp.inf, jnp.minimum(from_here, 1 + from_before).astype(jnp.float32))


def status(state: CraftingState) -> Status:
    """Returns success; progress is the share of the path that is done, and `made` that of the goods."""
    success = state.pack[len(BASES) + state.task["goal"]]
    tree, lacks = missing(state.task, state.task["given"]), missing(state.task, state.pack)
    made = 1.0 - jnp.sum(lacks[len(BASES) :]) / jnp.sum(tree[len(BASES) :])
    progress = jnp.clip(1.0 - distance(state) / jnp.sum(tree), 0.0, 1.0)
    return Status(success=success, over=success | state.ended, progress=progress, parts={"made": made})


def expert(goods: tuple[str, ...], key: Array, state: CraftingState) -> tuple[Array, Array, Text]:
    """Plays a shortest path: undoes a costly mistake, else gathers what the next good needs, and makes it."""
    del key
    lacks, taken_back = missing(state.task, state.pack), missing(state.task, state.before)
    good = jnp.argmax(lacks[len(BASES) :])
    needs = recipe_uses(state.task)[good] & ~state.pack
    verb = jnp.where(jnp.any(needs), GET, MAKE)
    verb = jnp.where(1 + jnp.sum(taken_back) < jnp.sum(lacks), UNDO, verb)
    args = jnp.asarray([[jnp.argmax(needs), -1], [state.task["methods"][good], good], [-1, -1]])[verb]
    return verb.astype(jnp.int32), args[:, None].astype(jnp.int32), text(pick(goods, good))

"""ML-Bench (Tang et al., 2023): all documentation, needed or retrieved parts of it, or an agent that searches it."""

from dataclasses import replace
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text import tools
from jaxagents.environments.text import tools_rules as rules
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.subgrammars import join_grammars, own_action, widen
from jaxagents.environments.text.texts import Text, text, when
from jaxagents.environments.text.world import World
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, State, Task

Show = Literal["all", "needed", "retrieved", "search"]
_TERMS = (*rules.TYPES, *rules.PURPOSES)


def with_documentation(world: World, *, show: Show = "all", count: int = 3, num_searches: int = 4) -> World:
    """Changes which tools a prompt documents, or lets the agent search for them.

    Args:
        world: `tools`; skins and other wrappers go around this one.
        show: "all" tools, those that are "needed", the `count` tools that are "retrieved" by the words of the request
            (see `retrieved`), or none: `search ship` is then answered by the tools that do or give this, at most two.
        count: number of retrieved tools.
        num_searches: number of additional turns for searches.

    Returns:
        The rules. Before it calls, the expert searches for all that is needed, backwards from what the user wants.

    Raises:
        ValueError: the world is another one, or `show` is unknown.

    References:
        Tang et al. (2023), "ML-Bench", section 3 (oracle segment, retrieval, whole README, agent).
    """
    if world.name != "tools" or show not in get_args(Show):
        raise ValueError(
            f"`world` must be tools and `show` one of {', '.join(get_args(Show))}, got {world.name!r} and {show!r}."
        )
    if show != "search":
        chosen = {"all": lambda task: None, "needed": needed, "retrieved": lambda task: retrieved(task, count)}[show]
        return replace(world, prompt=lambda task: tools.prompt(task, chosen(task)))
    grammar = join_grammars(world.grammar, make_grammar("search {term}", term=_TERMS), together=True)
    search, outer = len(world.grammar.templates), with_inner_state(world)

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        inner = world.play(key, state["inner"], *own_action(world.grammar, verb, args, 0))
        called = {"inner": inner, "term": jnp.int32(-1), "searched": state["searched"]}
        here = args[0, 0] == np.arange(len(_TERMS))
        return select(verb == search, {**state, "term": args[0, 0], "searched": state["searched"] | here}, called)

    def tell(state: State, seat: Array) -> Text:
        task = state["inner"].task
        match = matches(task, state["term"])[task["shown"]]
        first = jnp.argsort(~match, stable=True)[:2]
        lines = [when(match[place], tools.document(task, task["shown"][place])) for place in first]
        found = text(*lines, when(jnp.any(match), None, "error"))
        return when(state["term"] >= 0, found, world.tell(state["inner"], seat))

    def expert(key: Array, state: State) -> tuple[Array, Array, None]:
        verb, args, _ = world.expert(key, state["inner"])
        task, purpose = state["inner"].task, len(rules.TYPES) + tools.wanted(state["inner"].task)
        given = rules.path_types(task)[1:]  # By the look-ups, from first to last.
        lacks = needed(task)[: len(given)] & ~state["searched"][given] & ~task["impossible"]
        last = len(given) - 1 - jnp.argmax(lacks[::-1])
        begins = ~state["searched"][purpose]
        term, asks = jnp.where(begins, purpose, given[last]), begins | jnp.any(lacks)
        own = widen(args, grammar)
        return jnp.where(asks, search, verb), jnp.where(asks, widen(grammar.args(term), grammar), own), None

    fresh = {"term": jnp.int32(-1), "searched": jnp.zeros(len(_TERMS), bool)}
    return replace(
        outer,
        grammar=grammar,
        max_steps=world.max_steps + num_searches,
        start=lambda key, task: {"inner": world.start(key, task), **fresh},
        situation=None,
        play=play,
        tell=tell,
        expert=expert,
        distance=None,
        prompt=lambda task: tools.prompt(task, jnp.zeros(rules.NUM_TOOLS, bool)),
    )


def needed(task: Task) -> Array:
    """Returns which tools the shortest path calls, bool `[8]`: look-ups along the path, and the act."""
    tool, last = jnp.arange(rules.NUM_TOOLS), rules.place_on_path(task, task["act"])
    return ((tool >= task["first"]) & (tool < last)) | (tool == task["act"])


def matches(task: Task, term: Array) -> Array:
    """Returns which tools give a type or do what is wanted, bool `[8]`, for the index of a term."""
    gives, does = task["gives"] == term, task["does"] == term - len(rules.TYPES)
    return (term >= 0) & jnp.where(term < len(rules.TYPES), gives, does)


def retrieved(task: Task, count: int) -> Array:
    """Returns the tools whose documentation is most similar to the request, bool `[8]`; ties go to the first tools.

    The score is the sum of `log(1 + (8 - n + 1/2) / (n + 1/2))` over the words of the request (purpose, type and day)
    that occur in the documentation of a tool, and in that of n tools: BM25 for texts of about equal length.
    """
    first = rules.path_types(task)[task["first"]]
    dated = (task["dated"][task["act"]] > 0) & ~task["hidden"]
    words = jnp.stack(
        [
            task["does"] == tools.wanted(task),
            (task["takes"] == first) | (task["gives"] == first),
            (task["dated"] > 0) & dated,
        ]
    )
    number = jnp.sum(words, axis=1)
    rarity = jnp.log(1.0 + (rules.NUM_TOOLS - number + 0.5) / (number + 0.5))
    score = jnp.sum(words * rarity[:, None], axis=0)[task["shown"]]
    best = task["shown"][jnp.argsort(-score, stable=True)[:count]]
    return jnp.any(best[:, None] == jnp.arange(rules.NUM_TOOLS)[None], axis=0)

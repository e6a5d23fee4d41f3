"""Search in words: questions of several hops over a graph of facts, whose pages are found by their words."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import best_of, choose, first_rule
from jaxagents.environments.text.grammar import allow, make_grammar
from jaxagents.environments.text.texts import Text, cases, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

NAMES = (
    *("amber", "birch", "cedar", "dune", "elm", "fern", "gold", "hazel", "ivy", "jade", "kelp", "lark", "moss", "nile"),
    *("onyx", "pearl", "quartz", "raven", "slate", "thyme", "umber", "violet", "willow", "yarrow", "zinc", "aspen"),
    *("basil", "coral", "daisy", "ember", "flint", "grove", "heron", "indigo", "juniper", "laurel", "maple", "nectar"),
    *("olive", "poppy", "reed", "sage", "tulip", "vale", "wren", "acorn", "brook", "clover"),
)
RELATIONS = ("founder", "rival", "mentor", "port", "twin", "heir")
FACTS = 3
"""Facts of a page, each of another relation."""
RESULTS = ("1", "2", "3")
SEARCH, OPEN, ANSWER, UNKNOWN = range(4)
START, LISTED, OPENED = range(3)


@struct.dataclass
class SearchState:
    """State of a search over E pages.

    Attributes:
        task: the task of the episode.
        results: int32 `[3]`, pages of the last search, the best first; -1 for none.
        page: int32, page that was opened last; -1 for none.
        view: int32, what is shown: the start, a list of results, or a page.
        opened: bool `[E]`, pages that were opened in this episode.
        answer: int32, a name, E for unknown, -1 before the answer.
    """

    task: Task
    results: Array
    page: Array
    view: Array
    opened: Array
    answer: Array


def make_environment(
    hops: tuple[int, ...] = (1, 2, 3, 4),
    *,
    num_pages: int = 16,
    num_graphs: int = 1,
    unanswerable: float = 0.0,
    seed: int = 0,
    max_steps: int = 10,
    **options: Any,
) -> Environment:
    """Makes a world of search.

    Every name has a page of three facts, `elm founder jade port moss twin dune`; the prompt asks `what is founder of
    port of elm`. `search port elm` lists the pages with most of these words, where the page's own name counts more than
    a mentioned one: `1 elm 2 fern 3 gold`. `open 1` shows a page. `answer jade` ends the episode, and so does `answer
    unknown`, which is right if the last page lacks the relation. The thought of the expert is the name that the
    question has led to so far.

    Args:
        hops: number of facts that an answer needs, one per level, from 1 to 4.
        num_pages: E, number of pages, from 8 to 48; those off the path are distractors.
        num_graphs: number of sets of facts, one of which a task uses. With a single set, facts can be memorised.
        unanswerable: share of questions without an answer.
        seed: seed of the graphs.
        max_steps: maximum turns, at least two per hop and one for an answer.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: hops, numbers of pages or shares are out of their range, or there are too few turns.

    References:
        Jin et al. (2025), Search-R1, section 3; Yang et al. (2018), HotpotQA, section 2.
    """
    hops = tuple(hops)
    if not hops or not 1 <= min(hops) <= max(hops) <= 4:
        raise ValueError(f"`hops` must be from 1 to 4, got {hops}; try (1, 2).")
    if not 8 <= num_pages <= len(NAMES) or num_graphs < 1 or not 0.0 <= unanswerable <= 1.0:
        raise ValueError(
            f"`num_pages` must be from 8 to {len(NAMES)}, `num_graphs` at least 1 and `unanswerable` in [0, 1], got "
            f"{num_pages}, {num_graphs} and {unanswerable}."
        )
    if max_steps < 2 * max(hops) + 1:
        raise ValueError(f"`max_steps` must be at least {2 * max(hops) + 1} for {hops}, got {max_steps}.")
    names = NAMES[:num_pages]
    templates = ("search {word:1-3}", "open {result}", "answer {name}", "answer unknown")
    grammar = make_grammar(*templates, word=(*names, *RELATIONS), result=RESULTS, name=names)
    world = World(
        name="search",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=len(hops),
        sample=partial(sample, make_graphs(seed, num_graphs, num_pages), hops, unanswerable),
        identity=lambda task: {name: task[name] for name in ("graph", "first", "relations")},
        start=start,
        allowed=lambda state: allow(grammar, True, state.results >= 0, True, True),
        play=play,
        status=status,
        tell=partial(tell, names),
        prompt=partial(prompt, names),
        expert=partial(expert, names),
    )
    return make_text_world(world, **options)


def make_graphs(seed: int, num_graphs: int, num_pages: int) -> np.ndarray:
    """Draws facts, on the host: int32 `[N, E, R]`, a name or -1; no name has a fact about itself."""
    rng, facts = np.random.default_rng(seed), np.full((num_graphs, num_pages, len(RELATIONS)), -1, np.int32)
    for graph in range(num_graphs):
        for page in range(num_pages):
            others = rng.permutation(np.delete(np.arange(num_pages), page))[:FACTS]
            facts[graph, page, rng.permutation(len(RELATIONS))[:FACTS]] = others
    return facts


def sample(graphs: np.ndarray, hops: tuple[int, ...], unanswerable: float, key: Array, level: Array) -> Task:
    """Draws a graph and walks on it; the last step of an unanswerable question is a missing fact."""
    graph_key, first_key, lost_key, *walk_keys = jax.random.split(key, 3 + max(hops))
    graph = jax.random.randint(graph_key, (), 0, len(graphs))
    facts, count = jnp.asarray(graphs)[graph], jnp.asarray(hops, jnp.int32)[level]
    first = name = jax.random.randint(first_key, (), 0, len(facts))
    lost, relations = jax.random.bernoulli(lost_key, unanswerable), []
    for hop, walk_key in enumerate(walk_keys):
        missing = lost & (hop == count - 1)
        relation = choose(walk_key, (facts[name] < 0) == missing)
        relations.append(jnp.where(hop < count, relation, -1))
        name = jnp.maximum(facts[name, relation], 0)
    return {"facts": facts, "graph": graph, "first": first, "relations": jnp.stack(relations), "level": level}


def walk(task: Task) -> tuple[Array, Array]:
    """Follows a question.

    Returns:
        Pages int32 `[H]` on its path, -1 if it is shorter, and the answer, int32 `[]`, E for unknown.
    """
    name, pages = task["first"], []
    for relation in task["relations"]:
        pages.append(jnp.where(relation >= 0, name, -1))
        found = task["facts"][name, relation]
        name = jnp.where(relation < 0, name, jnp.where(found < 0, len(task["facts"]), found))
    return jnp.stack(pages), name


def start(key: Array, task: Task) -> SearchState:
    """Returns the state before the first search."""
    del key
    none, zero = jnp.asarray(-1, jnp.int32), jnp.zeros((), jnp.int32)
    opened = jnp.zeros(len(task["facts"]), bool)
    return SearchState(task=task, results=jnp.full(3, -1, jnp.int32), page=none, view=zero, opened=opened, answer=none)


def rank(facts: Array, query: Array, *, pairs: float = 0.0) -> Array:
    """Finds the pages with most words of a query, int32 `[3]`, -1 for none; a page's own name counts 1.5.

    Args:
        facts: int32 `[E, R]`, a name or -1.
        query: int32 `[Q]`, names, and relations from E on; -1 for none.
        pairs: additional score if a name and its relation are both in the query.
    """
    pages = np.arange(len(facts))
    asked = jnp.any(query[:, None] == np.arange(len(facts) + len(RELATIONS))[None], axis=0)
    names, relations = asked[: len(facts)], asked[len(facts) :]
    there = facts >= 0
    score = 1.5 * names + jnp.sum(there & relations[None], axis=1)
    score += jnp.sum(
        jnp.any((facts[:, :, None] == pages[None, None]) & there[:, :, None], axis=1) & names[None], axis=1
    )
    score += pairs * jnp.sum(there & relations[None] & names[facts], axis=1)
    return best_of(score, len(RESULTS))


def play(key: Array, state: SearchState, verb: Array, args: Array) -> SearchState:
    """Searches, opens or answers."""
    del key
    answer = jnp.where(verb == UNKNOWN, len(state.opened), jnp.where(verb == ANSWER, args[0, 0], -1))
    return look_up(state, verb, args).replace(answer=answer)


def look_up(state: SearchState, verb: Array, args: Array, *, pairs: float = 0.0) -> SearchState:
    """Searches, as `rank` does, or opens a page; other verbs leave the view unchanged."""
    page = jnp.where(verb == OPEN, state.results[jnp.clip(args[0, 0], 0, len(RESULTS) - 1)], state.page)
    found = rank(state.task["facts"], args[0, :3], pairs=pairs)
    return state.replace(
        results=jnp.where(verb == SEARCH, found, state.results),
        page=page,
        view=jnp.where(verb == SEARCH, LISTED, jnp.where(verb == OPEN, OPENED, state.view)),
        opened=state.opened | ((verb == OPEN) & (np.arange(len(state.opened)) == page)),
    )


def status(state: SearchState) -> Status:
    """Returns success; progress is the share of the needed pages that were opened, and 1 with the right answer."""
    pages, answer = walk(state.task)
    success, over = state.answer == answer, state.answer >= 0
    evidence = jnp.sum((pages >= 0) & state.opened[pages]) / jnp.sum(pages >= 0)
    progress = jnp.where(over, success, evidence / 2).astype(jnp.float32)
    return Status(success=success, over=over, progress=progress, parts={"evidence": evidence})


def tell(names: tuple[str, ...], state: SearchState, seat: Array) -> Text:
    """Describes the results or the page, or "search" at first."""
    del seat
    listed = [when(page >= 0, text(place, pick(names, page))) for place, page in zip(RESULTS, state.results)]
    found = when(jnp.any(state.results >= 0), text(*listed), "nothing found")
    facts_of_page = state.task["facts"][state.page]
    (relations,) = jnp.nonzero(facts_of_page >= 0, size=FACTS)
    facts = pick((*RELATIONS, *names), jnp.stack([relations, len(RELATIONS) + facts_of_page[relations]], axis=1))
    return cases(state.view, "search", found, text(pick(names, state.page), facts))


def prompt(names: tuple[str, ...], task: Task) -> Text:
    """Asks the question, the last relation first."""
    asked = [
        when(relation >= 0, text(pick(RELATIONS, relation), "of")) for relation in reversed(list(task["relations"]))
    ]
    return text("what is", *asked, pick(names, task["first"]))


def expert(names: tuple[str, ...], key: Array, state: SearchState) -> tuple[Array, Array, Text]:
    """Opens the pages that give the answer one after the other, and searches for those that are not listed."""
    del key
    pages, answer = walk(state.task)
    needed = (pages >= 0) & ~state.opened[pages]
    page = pages[jnp.argmax(needed)]
    listed = state.results == page
    verb, args = first_rule(
        [
            (~jnp.any(needed), (jnp.where(answer < len(names), ANSWER, UNKNOWN), answer)),
            (jnp.any(listed), (OPEN, jnp.argmax(listed))),
            (True, (SEARCH, page)),
        ]
    )
    args = jnp.where(verb == UNKNOWN, -1, args)
    thought = when(jnp.any(needed), pick(names, page), pick((*names, "unknown"), answer))
    return jnp.int32(verb), jnp.stack([args, -1, -1])[None].astype(jnp.int32), thought

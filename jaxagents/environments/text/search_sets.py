"""Search for more than one name: masked names of a page, or all pages with a given fact."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text import search
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose, first_action
from jaxagents.environments.text.grammar import allow, make_grammar
from jaxagents.environments.text.search import FACTS, NAMES, RELATIONS, RESULTS, SearchState
from jaxagents.environments.text.texts import Text, each, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.ops.checks import require_between, require_one_of
from jaxagents.types import Array, Environment, Task

MOST = 4
"""Names of an answer."""


def make_environment(
    mode: Literal["masked", "table"] = "masked",
    *,
    num_pages: int = 16,
    num_graphs: int = 4,
    seed: int = 0,
    max_steps: int = 8,
    **options: Any,
) -> Environment:
    """Makes a world of search whose answers are sets of names.

    Pages and actions are those of `environments.text.search`, except that a name and its relation together count more
    than both separately, and that `answer jade moss` has up to four names. In the mode "masked", level l shows the
    facts of a page with l + 1 names removed, `fill founder ? port moss twin ?`, and the name of the page only if the
    rest fits several: the page has to be found by what is left. In the mode "table", `list founder jade` asks for all
    pages with a fact, at most l + 1 of them. The thought of the expert is the right answer, as far as it was read.

    `info["metrics"]` has `match`, the F1 score of the answer, `recall`, which superfluous names do not lower, `length`,
    the number of names in the answer, and `evidence`, the share of the needed pages that were opened.

    Args:
        mode: "masked" or "table".
        num_pages: E, number of pages, from 8 to 48.
        num_graphs: number of sets of facts, one of which a task uses.
        seed: seed of the graphs.
        max_steps: maximum turns, at least 5.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: the mode or a number is invalid.

    References:
        Wu et al. (2025), MaskSearch, section 3.1; Zheng et al. (2025), Deep-DxSearch (answers matched as sets).
    """
    require_one_of("mode", mode, ("masked", "table"))
    require_between("num_pages", num_pages, 8, len(NAMES))
    require_between("num_graphs", num_graphs, 1)
    require_between("max_steps", max_steps, 5)
    names = NAMES[:num_pages]
    templates = ("search {word:1-3}", "open {result}", f"answer {{name:1-{MOST}}}")
    grammar = make_grammar(*templates, word=(*names, *RELATIONS), result=RESULTS, name=names)
    pages = np.arange(num_pages)

    def start(key: Array, task: Task) -> SearchState:
        return search.start(key, task).replace(answer=jnp.zeros(num_pages, bool))

    def play(key: Array, state: SearchState, verb: Array, args: Array) -> SearchState:
        given = jnp.any(args[0][:, None] == pages[None], axis=0)
        return search.look_up(state, verb, args, pairs=1.0).replace(answer=(verb == search.ANSWER) & given)

    def expert(key: Array, state: SearchState) -> tuple[Array, Array, Text]:
        task, needed = state.task, state.task["sources"] & ~state.opened
        listed = (state.results >= 0) & needed[state.results]
        (answer,) = jnp.nonzero(task["answer"], size=MOST, fill_value=-1)
        rules = [
            (~jnp.any(needed), search.ANSWER, answer),
            (jnp.any(listed), search.OPEN, jnp.argmax(listed)),
            (True, search.SEARCH, task["query"]),
        ]
        thought = when(jnp.any(needed), None, each(names, task["answer"], most=MOST))
        return *first_action(grammar, rules), thought

    draw = {"masked": draw_masked, "table": draw_table}[mode]
    world = World(
        name="search_sets",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=FACTS,
        sample=partial(sample, draw, search.make_graphs(seed, num_graphs, num_pages)),
        identity=lambda task: (task["graph"], task["relations"], task["asked"], task["answer"]),
        start=start,
        allowed=lambda state: allow(grammar, True, state.results >= 0, True),
        play=play,
        status=status,
        tell=partial(search.tell, names),
        prompt=partial(prompt, names, mode),
        expert=expert,
    )
    return make_text_world(world, **options)


def sample(draw: Callable[..., Task], graphs: np.ndarray, key: Array, level: Array) -> Task:
    """Draws facts, and what is asked about them."""
    graph_key, *keys = jax.random.split(key, 3)
    graph = jax.random.randint(graph_key, (), 0, len(graphs))
    facts = jnp.asarray(graphs)[graph]
    return {"facts": facts, "graph": graph, **draw(facts, keys, level), "level": level}


def draw_masked(facts: Array, keys: list[Array], level: Array) -> Task:
    """Draws a page and masks l + 1 of its names, E in `asked`; it is named if others have the rest, too."""
    page, pages = jax.random.randint(keys[0], (), 0, len(facts)), np.arange(len(facts))
    (relations,) = jnp.nonzero(facts[page] >= 0, size=FACTS)
    objects, masked = facts[page, relations], jax.random.permutation(keys[1], FACTS) <= level
    alone = jnp.sum(jnp.all((facts[:, relations] == objects[None]) | masked[None], axis=1)) == 1
    words = jnp.stack([jnp.where(masked, -1, objects), jnp.where(masked, -1, len(facts) + relations)], axis=1).ravel()
    (first,) = jnp.nonzero(words >= 0, size=3, fill_value=-1)
    return {
        "page": jnp.where(alone, -1, page),
        "relations": relations,
        "asked": jnp.where(masked, len(facts), objects),
        "query": jnp.where(alone, jnp.where(first < 0, -1, words[first]), jnp.asarray([page, -1, -1])),
        "answer": jnp.any((objects[:, None] == pages[None]) & masked[:, None], axis=0),
        "sources": pages == page,
    }


def draw_table(facts: Array, keys: list[Array], level: Array) -> Task:
    """Draws a fact that one to l + 1 pages have; all of them are the answer."""
    has = facts[:, :, None] == np.arange(len(facts))[None, None]
    count = jnp.sum(has, axis=0).ravel()
    relation, name = jnp.divmod(choose(keys[0], (count > 0) & (count <= level + 1)), len(facts))
    none = jnp.int32(-1)
    return {
        "page": none,
        "relations": jnp.stack([relation, none, none]),
        "asked": jnp.stack([name, none, none]),
        "query": jnp.stack([name, len(facts) + relation, none]),
        "answer": has[:, relation, name],
        "sources": has[:, relation, name],
    }


def status(state: SearchState) -> Status:
    """Grades an answer; progress is half the share of the needed pages that were opened, and finally the match."""
    right, given, sources = state.task["answer"], state.answer, state.task["sources"]
    hits, over = jnp.sum(given & right), jnp.any(given)
    match = 2 * hits / (jnp.sum(given) + jnp.sum(right))
    evidence = jnp.sum(sources & state.opened) / jnp.sum(sources)
    length = jnp.sum(given).astype(jnp.float32)
    parts = {"match": match, "recall": hits / jnp.sum(right), "length": length, "evidence": evidence}
    success = over & jnp.all(given == right)
    return Status(success=success, over=over, progress=jnp.where(over, match, evidence / 2), parts=parts)


def prompt(names: tuple[str, ...], mode: str, task: Task) -> Text:
    """Asks the question."""
    facts = jnp.stack([task["relations"], jnp.where(task["asked"] < 0, -1, task["asked"] + len(RELATIONS))], axis=1)
    question = pick((*RELATIONS, *names, "?"), facts)
    return text("list", question) if mode == "table" else text("fill", pick(names, task["page"]), question)

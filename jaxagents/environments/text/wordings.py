"""Text worlds in other words: synonyms and fillers in observations, with unchanged actions."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.texts import Text, pick, rename, text
from jaxagents.environments.text.tracing import world_words
from jaxagents.environments.text.words import NOTHING_HAPPENS
from jaxagents.environments.text.world import World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.types import Array, State, Task

FILLERS = ("please", "well", "so", "now", "kindly", "also", "just", "then")


def with_wordings(
    world: World,
    *,
    num_wordings: int = 16,
    num_held_out: int = 0,
    num_synonyms: int = 4,
    num_fillers: int = 0,
    words: Sequence[str] | None = None,
) -> World:
    """Describes a world in one of several wordings, drawn with the task.

    Every word has synonyms, `press press2 press3 press4`, and a wording uses one of them for each word, drawn at random
    but the same in every run. Held-out wordings are other choices among the same synonyms. Fillers, words without
    meaning, stand before every observation.

    The task is `{"inner": task, "wording": int32, "level": int32}`, and `"filler": int32 [num_fillers]` where there are
    some, on the side of the split where the inner task is.

    Args:
        world: rules of the world.
        num_wordings: number of wordings for all tasks, or for those of training.
        num_held_out: number of further wordings that are drawn only for held-out tasks, which use no others; with 0,
            all tasks use the same.
        num_synonyms: number of names of a word; 1: it is unchanged.
        num_fillers: number of fillers of an observation.
        words: words that have synonyms; None: all that begin with a letter and are not part of an action.

    Returns:
        The rules.

    Raises:
        ValueError: counts are out of their range, or the world lacks some of the words.

    References:
        Pan et al. (2023), "KwaiAgents", section 3 (templates); Yang et al. (2025), "TinyHelen's First Curriculum",
        section 2 (words and noise).
    """
    for name, count in (("num_wordings", num_wordings), ("num_synonyms", num_synonyms)):
        require_positive(name, count)
    require_between("num_held_out", num_held_out, 0)
    require_between("num_fillers", num_fillers, 0)
    known = world_words(world)
    fixed = {*world.grammar.words, *NOTHING_HAPPENS}
    chosen = [word for word in known if word not in fixed and word[0].isalpha()] if words is None else list(words)
    if missing := [word for word in chosen if word not in known or word in fixed]:
        raise ValueError(f"`words` must be what {world.name!r} says and nobody answers, got {missing[0]!r}.")
    wordings = draw_wordings(chosen, num_wordings + num_held_out, num_synonyms)
    nothing = {"wording": jnp.zeros((), jnp.int32)}
    nothing |= {"filler": jnp.zeros(num_fillers, jnp.int32)} if num_fillers else {}
    outer = with_inner_state(with_inner_task(world, **nothing))

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        wording_key, filler_key, inner_key = jax.random.split(key, 3)
        inner = task["inner"] if world.complete is None else world.complete(inner_key, task["inner"], held_out)
        low, high = (num_wordings, len(wordings)) if held_out and num_held_out else (0, num_wordings)
        drawn = {"wording": jax.random.randint(wording_key, (), low, high)}
        if num_fillers:
            drawn["filler"] = jax.random.randint(filler_key, (num_fillers,), 0, len(FILLERS))
        return {**task, "inner": inner, **drawn}

    def tell(state: State, seat: Array) -> Text:
        worded = rename(outer.tell(state, seat), state["wording"], wordings)
        return text(pick(FILLERS, state["filler"]), worded) if num_fillers else worded

    def start(key: Array, task: Task) -> State:
        return {"inner": world.start(key, task["inner"]), **{name: task[name] for name in nothing}}

    def prompt(task: Task) -> Text | None:
        prompt_text = outer.prompt(task)
        return None if prompt_text is None else rename(prompt_text, task["wording"], wordings)

    return replace(
        outer,
        complete=complete,
        start=start,
        tell=tell,
        prompt=None if world.prompt is None else prompt,
        situation=lambda state: ([state[name] for name in nothing], outer.situation(state)),
    )


def draw_wordings(words: Sequence[str], count: int, num_synonyms: int) -> list[dict[str, str]]:
    """Draws the names of words in each of several wordings; they are the same for the same arguments."""
    drawn = np.random.default_rng(0).integers(num_synonyms, size=(count, len(words)))
    return [{word: f"{word}{k + 1}" if k else word for word, k in zip(words, row)} for row in drawn.tolist()]

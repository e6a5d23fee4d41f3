"""Text worlds in other words: synonyms, swapped names, nonsense, some of them only for held-out tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.grammar import Grammar
from jaxagents.environments.text.subgrammars import join_grammars
from jaxagents.environments.text.texts import Text, rename
from jaxagents.environments.text.tracing import world_words
from jaxagents.environments.text.words import NOTHING_HAPPENS
from jaxagents.environments.text.world import World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.types import Array, State, Task

Skin = Mapping[str, str]
"""What words of a world are called; others keep their names."""


def with_skins(world: World, *, skins: Sequence[Skin], num_held_out: int = 0) -> World:
    """Writes and reads a world in other words, drawn with the task.

    A skin is a mapping from words of the world, which may be phrases such as "go to", to other words: synonyms, other
    templates, swapped names, nonsense. `{}` is the world as it is. Everything is written in the words of the skin,
    including prompts and thoughts, and only these are understood; "nothing happens ." is unchanged.

    The task is `{"inner": task, "skin": int32, "level": int32}`, on the side of the split where the inner task is.

    Args:
        world: rules of the world.
        skins: skins, at least one.
        num_held_out: number of skins, the last ones, that are drawn only for held-out tasks, which use no others; with
            0, all skins are drawn for all tasks.

    Returns:
        The rules.

    Raises:
        ValueError: there is no skin, or none is left for one of the sides, or a skin has words that the world lacks, or
            gives two words the same name.
    """
    skins = [dict(skin) for skin in skins]
    if not 0 <= num_held_out < len(skins):
        raise ValueError(f"`num_held_out` must be below the number of skins, got {num_held_out} of {len(skins)} skins.")
    words = world_words(world)
    for skin in skins:
        _require_names(world, words, skin)
    grammar = join_grammars(*(renamed(world.grammar, skin) for skin in skins))
    num_verbs, num_entries = len(world.grammar.templates), world.grammar.num_entries
    outer = with_inner_state(with_inner_task(world, skin=jnp.zeros((), jnp.int32)))

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        skin_key, inner_key = jax.random.split(key)
        inner = task["inner"] if world.complete is None else world.complete(inner_key, task["inner"], held_out)
        low, high = 0, len(skins)
        if num_held_out:
            low, high = (high - num_held_out, high) if held_out else (0, high - num_held_out)
        return {**task, "inner": inner, "skin": jax.random.randint(skin_key, (), low, high)}

    def allowed(state: State) -> Array:
        entries = jnp.ones(num_entries, bool) if world.allowed is None else world.allowed(state["inner"])
        own = state["skin"] == np.arange(len(skins))
        return (own[:, None] & entries[..., None, :]).reshape(*entries.shape[:-1], -1)

    def expert(key: Array, state: State) -> tuple[Array, Array, Text | None]:
        verb, args, thought = world.expert(key, state["inner"])
        return (
            verb + state["skin"] * num_verbs,
            args,
            None if thought is None else rename(thought, state["skin"], skins),
        )

    def subgrammar(state: State) -> Array:
        inner = 0 if world.subgrammar is None else world.subgrammar(state["inner"])
        return state["skin"] * world.grammar.num_subgrammars + inner

    def accepts(state: State, verb: Array, args: Array) -> Array:
        return world.accepts(state["inner"], verb % num_verbs, args)

    def situation(state: State) -> tuple:
        return state["skin"], outer.situation(state)

    return replace(
        outer,
        grammar=grammar,
        complete=complete,
        start=lambda key, task: {"inner": world.start(key, task["inner"]), "skin": task["skin"]},
        play=lambda key, state, verb, args: outer.play(key, state, verb % num_verbs, args),
        tell=lambda state, seat: rename(outer.tell(state, seat), state["skin"], skins),
        look=None if world.look is None else lambda state: rename(outer.look(state), state["skin"], skins),
        prompt=None if world.prompt is None else lambda task: rename(outer.prompt(task), task["skin"], skins),
        allowed=allowed,
        expert=expert,
        subgrammar=subgrammar,
        accepts=None if world.accepts is None else accepts,
        situation=situation,
    )


def renamed(grammar: Grammar, skin: Skin) -> Grammar:
    """Returns a grammar in other words; indices of words, verbs and entries are unchanged."""
    call = {word: skin.get(word, word) for word in grammar.words}

    def phrases(rows: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(call[word] for word in row) for row in rows)

    elements = tuple(
        tuple(
            one._replace(phrases=phrases(one.phrases), source=call[one.source] if one.kind == "literal" else one.source)
            for one in row
        )
        for row in grammar.elements
    )
    return replace(grammar, words=tuple(call.values()), elements=elements)


def _require_names(world: World, words: Sequence[str], skin: Skin) -> None:
    for word in skin:
        if word not in words or word in NOTHING_HAPPENS:
            raise ValueError(f"`skins` must rename words of {world.name!r}, got {word!r}; try {words[0]!r}.")
    called: dict[str, str] = {}
    for word in words:
        other = called.setdefault(skin.get(word, word), word)
        if other != word:
            raise ValueError(f"`skins` must keep words apart, got {skin.get(word, word)!r} for {other!r} and {word!r}.")

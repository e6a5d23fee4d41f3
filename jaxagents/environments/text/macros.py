"""Macros: actions that stand for several actions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.subgrammars import join_grammars, own_action, widen
from jaxagents.environments.text.texts import Text
from jaxagents.environments.text.turns import strong
from jaxagents.environments.text.words import pad_to
from jaxagents.environments.text.world import World
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, State


def with_macros(world: World, *, macros: Mapping[str, Sequence[str]]) -> World:
    """Adds actions that perform several actions of the world, one after the other, in one turn.

    A macro stops before an action that is not allowed, and when the episode is over; it is allowed if its first action
    is. It earns the sum of what its actions earn.

    Args:
        world: rules with one subgrammar in which one seat acts at a time; skins and unions go around macros.
        macros: names of the macros, and their actions, such as "go to desk 1".

    Returns:
        The rules, without distances. The expert does not use macros.

    Raises:
        ValueError: there is no macro, a macro has no actions or actions that the world lacks, or is already an action.
    """
    if not macros or not all(macros.values()):
        raise ValueError(f"`macros` must have at least one action each, got {dict(macros)}.")
    if world.grammar.num_subgrammars > 1 or (world.num_seats > 1 and world.player is None):
        raise ValueError(f"`world` must have one subgrammar and ask one seat at a time, {world.name!r} does not.")
    grammar = join_grammars(world.grammar, make_grammar(*macros), together=True)
    verbs, args, entries = _read_macros(world, macros)
    num_verbs = len(world.grammar.templates)

    def is_allowed(state: State, verb: Array, args: Array, entry: Array) -> Array:
        allowed = jnp.bool_(True) if world.allowed is None else world.allowed(state)[entry]
        return allowed if world.accepts is None else allowed & world.accepts(state, verb, args)

    def run(key: Array, state: State, macro: Array) -> State:
        def follow(carry: tuple[State, Array], step: tuple) -> tuple[tuple[State, Array], None]:
            state, running = carry
            step_key, verb, args, entry = step
            running = running & (entry >= 0) & ~world.status(state).over
            running = running & is_allowed(state, verb, args, jnp.maximum(entry, 0))
            return (strong(select(running, world.play(step_key, state, verb, args), state)), running), None

        steps = jnp.asarray(verbs)[macro], jnp.asarray(args)[macro], jnp.asarray(entries)[macro]
        keys = jax.random.split(key, verbs.shape[1])
        return jax.lax.scan(follow, (strong(state), jnp.bool_(True)), (keys, *steps))[0][0]

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        macro = jnp.clip(verb - num_verbs, 0, len(macros) - 1)
        alone = world.play(key, state, *own_action(world.grammar, verb, args, 0))
        return select(verb < num_verbs, alone, run(key, state, macro))

    def allowed(state: State) -> Array:
        inner = jnp.ones(world.grammar.num_entries, bool) if world.allowed is None else world.allowed(state)
        first = [
            is_allowed(state, *jax.tree.map(jnp.asarray, (verbs[i, 0], args[i, 0], entries[i, 0])))
            for i in range(len(macros))
        ]
        return jnp.concatenate([inner, jnp.stack(first)])

    def accepts(state: State, verb: Array, args: Array) -> Array:
        return (verb >= num_verbs) | world.accepts(state, *own_action(world.grammar, verb, args, 0))

    def expert(key: Array, state: State) -> tuple[Array, Array, Text | None]:
        verb, args, thought = world.expert(key, state)
        return verb, widen(args, grammar), thought

    return replace(
        world,
        grammar=grammar,
        play=play,
        allowed=allowed,
        accepts=None if world.accepts is None else accepts,
        expert=expert,
        distance=None,
    )


def _read_macros(world: World, macros: Mapping[str, Sequence[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads the actions of macros: verbs `[N, S]`, args `[N, S, ...]`, entries `[N, S]`, -1 after the last."""
    grammar, longest = world.grammar, max(map(len, macros.values()))
    verbs, entries = np.zeros((len(macros), longest), np.int32), np.full((len(macros), longest), -1, np.int32)
    args = np.full((len(macros), longest, grammar.max_args, grammar.max_length), -1, np.int32)
    parse = jax.jit(grammar.parse)
    for row, (name, calls) in enumerate(macros.items()):
        for column, action in enumerate(calls):
            verb, values, entry, known = parse(_word_ids(grammar.words, action, grammar.max_words))
            if not known:
                raise ValueError(f"`macros` must be made of actions of {world.name!r}, got {action!r} in {name!r}.")
            verbs[row, column], args[row, column], entries[row, column] = verb, values, entry
    return verbs, args, entries


def _word_ids(words: Sequence[str], action: str, room: int) -> np.ndarray:
    """Reads an action, the longest phrase first; all -1 if it cannot be read."""
    found: list[int] = []
    rest = action.split()
    while rest:
        sizes = [size for size in range(len(rest), 0, -1) if " ".join(rest[:size]) in words]
        if not sizes or len(found) == room:
            return np.full(room, -1, np.int32)
        found.append(words.index(" ".join(rest[: sizes[0]])))
        rest = rest[sizes[0] :]
    return pad_to(np.asarray(found, np.int32), room)

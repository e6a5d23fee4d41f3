"""CodeAct (Wang et al., 2024): one action runs several calls, each on the result of the previous one."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text import tools_rules as rules
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.subgrammars import join_grammars, own_action, widen
from jaxagents.environments.text.world import World
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, State


def with_programs(world: World, *, max_calls: int = 4) -> World:
    """Adds actions that run several calls: `run open push with order elm day friday` beside `call open order elm`.

    The first tool is called with the first pair, every other tool with the previous result; tools that take a day also
    get the second pair. A program stops at an error, which is reported, and at an act that ends the episode. The values
    that it looked up stay known.

    Args:
        world: `tools`; skins and other wrappers go around this one.
        max_calls: maximum calls of a program.

    Returns:
        The rules, without distances. The expert runs a program whenever more than one call is left.

    Raises:
        ValueError: the world is another one, or there are fewer than two calls.

    References:
        Wang et al. (2024), "Executable Code Actions Elicit Better LLM Agents", section 2.
    """
    if world.name != "tools":
        raise ValueError(f"`world` must be tools, got {world.name!r}.")
    if max_calls < 2:
        raise ValueError(f"`max_calls` must be at least 2, got {max_calls}.")
    words = (*rules.KEYS, *rules.VALUES, *rules.DAYS)
    template = f"run {{tool:2-{max_calls}}} with {{word:2-4}}"
    grammar = join_grammars(world.grammar, make_grammar(template, tool=rules.NAMES, word=words), together=True)
    program = len(world.grammar.templates)

    def run(key: Array, state: State, names: Array, given: Array) -> State:
        running = jnp.ones((), bool)
        for number, call_key in enumerate(jax.random.split(key, max_calls)):
            name = names[number]
            dated = state.task["dated"][jnp.argmax(state.task["name"] == name)] > 0
            returned = jnp.stack([state.key, len(rules.KEYS) + state.value])
            call = jnp.concatenate([given[:2] if number == 0 else returned, jnp.where(dated, given[2:4], -1)])
            args = jnp.full((world.grammar.max_args, world.grammar.max_length), -1).at[0, 0].set(name)
            args = args.at[1, :4].set(call)
            running = running & (name >= 0) & ~state.ended
            state = select(running, world.play(call_key, state, jnp.int32(rules.CALL), args), state)
            running = running & (state.error == rules.FINE)
        return state

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        alone = world.play(key, state, *own_action(world.grammar, verb, args, 0))
        return select(verb == program, run(key, state, args[0], args[1]), alone)

    def expert(key: Array, state: State) -> tuple[Array, Array, None]:
        verb, args, _ = world.expert(key, state)
        task, numbers = state.task, jnp.arange(max_calls)
        called, last = jnp.argmax(task["name"] == args[0, 0]), rules.place_on_path(task, task["act"])
        place = rules.place_on_path(task, called)
        tool = jnp.where(place + numbers < last, place + numbers, task["act"])
        names = jnp.where(place + numbers <= last, task["name"][tool], -1)
        day = jnp.stack([rules.DAY, len(rules.KEYS) + len(rules.VALUES) + task["day"]])
        given = jnp.append(args[1, :2], jnp.where(task["dated"][task["act"]] > 0, day, -1))
        several = (verb == rules.CALL) & (place < last) & (last - place < max_calls)
        several &= task["gives"][called] >= 0  # A look-up.
        own = widen(args, grammar)
        programmed = jnp.full_like(own, -1).at[0, :max_calls].set(names).at[1, :4].set(given)
        return jnp.where(several, program, verb), jnp.where(several, programmed, own), None

    def accepts(state: State, verb: Array, args: Array) -> Array:
        return (verb == program) | world.accepts(state, *own_action(world.grammar, verb, args, 0))

    return replace(
        world,
        grammar=grammar,
        play=play,
        expert=expert,
        accepts=None if world.accepts is None else accepts,
        distance=None,
    )

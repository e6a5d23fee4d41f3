"""AgentFlow (Li et al., 2025): a planner names sub-goals from a memory, and an executor carries them out."""

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.environments.text import crafting
from jaxagents.environments.text import tools_rules as rules
from jaxagents.environments.text.grammar import Grammar, make_grammar
from jaxagents.environments.text.texts import Text, quote, text, when
from jaxagents.environments.text.turns import first_turn, read_action, strong
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.environments.timesteps import select
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.types import Array, State, Task


class Executor(NamedTuple):
    """An executor of sub-goals; it knows the dialogue so far, and nothing else of the task.

    Attributes:
        grammar: grammar of sub-goals, all of which are understood and allowed.
        act: `(state, verb, args) -> (verb, args)`, the next action of the world for a sub-goal. An action that is not
            allowed gives the sub-goal up.
        done: `(state, verb, args) -> bool []`, after an action, whether the sub-goal needs no further one.
        choose: `(key, state) -> (verb, args)`, the sub-goal that the world's expert pursues.
    """

    grammar: Grammar
    act: Callable[[State, Array, Array], tuple[Array, Array]]
    done: Callable[[State, Array, Array], Array]
    choose: Callable[[Array, State], tuple[Array, Array]]


def with_planner(
    world: World,
    *,
    executor: Callable[[World], Executor],
    max_turns: int = 3,
    num_steps: int = 1,
    false_stop_rate: float = 0.0,
) -> World:
    """Lets the policy name sub-goals that an executor carries out, and read a memory of them and their results.

    A turn is a sub-goal. The executor takes up to `num_steps` steps of the world for it, which count towards the
    world's own limit. The verifier stops the episode if the task is done, the rules end it, or no step is left for
    another sub-goal; it errs at a given rate. After the last sub-goal, the episode is truncated. The observation is the
    memory, `<sub-goal> <its result> .` for every turn, and before the first turn the observation of the world. An
    action that is not a sub-goal takes a turn, does nothing, and is remembered as `none`.

    Args:
        world: rules with one seat that the executor knows; skins and other wrappers go around this one.
        executor: `(world) -> Executor`, such as `call_tools` or `follow_recipes`.
        max_turns: number of sub-goals of an episode.
        num_steps: maximum steps of the world for a sub-goal.
        false_stop_rate: probability, per sub-goal, that the verifier stops when it should not.

    Returns:
        The rules, without distances.

    Raises:
        ValueError: the world has several seats, the executor does not know it, or a number is out of its range.

    References:
        Li et al. (2025), "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use", section 3.1.
    """
    require_positive("max_turns", max_turns)
    require_positive("num_steps", num_steps)
    require_between("false_stop_rate", false_stop_rate, 0.0, 1.0)
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat for a planner, got {world.num_seats} in {world.name!r}.")
    executes, outer = executor(world), with_inner_state(world)
    grammar = executes.grammar

    def execute(key: Array, state: State, verb: Array, args: Array) -> State:
        def follow(carry: tuple[State, Array, Array], key: Array) -> tuple[tuple[State, Array, Array], None]:
            inner, left, running = carry
            action = world.grammar.render(*executes.act(inner, verb, args))
            own_verb, own_args, legal = read_action(world, first_turn(world, None, inner, jnp.zeros(())), action)
            running = running & legal & (left > 0) & ~world.status(inner).over
            inner = strong(select(running, world.play(key, inner, own_verb, own_args), inner))
            return (inner, left - running, running & ~executes.done(inner, verb, args)), None

        begun = (strong(state["inner"]), state["left"], jnp.ones((), bool))
        inner, left, _ = jax.lax.scan(follow, begun, jax.random.split(key, num_steps))[0]
        return {**state, "inner": inner, "left": left}

    def remember(state: State, goal: Array) -> State:
        turn, past = state["turn"], (state["goals"], state["results"])
        added = jax.tree.map(lambda rows, row: rows.at[turn].set(row), past, (goal, state["inner"]))
        return {**state, "goals": added[0], "results": added[1], "turn": turn + 1}

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        key, verify_key = jax.random.split(key)
        stopped = jax.random.bernoulli(verify_key, false_stop_rate)
        return remember({**execute(key, state, verb, args), "stopped": stopped}, grammar.render(verb, args))

    def start(key: Array, task: Task) -> State:
        inner = strong(world.start(key, task))
        return {
            "inner": inner,
            "goals": jnp.full((max_turns, grammar.max_words), -1, jnp.int32),
            "results": jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (max_turns, *leaf.shape)), inner),
            "turn": jnp.int32(0),
            "left": jnp.asarray(world.max_steps if world.limit is None else world.limit(task), jnp.int32),
            "stopped": jnp.zeros((), bool),
        }

    def status(state: State) -> Status:
        inner = outer.status(state)
        out_of_steps = (state["left"] <= 0) & (state["turn"] < max_turns)  # The episode is cut after the last turn.
        return inner.replace(over=inner.over | inner.success | state["stopped"] | out_of_steps)

    def tell(state: State, seat: Array) -> Text:
        entries = []
        for turn in range(max_turns):
            goal, result = jax.tree.map(itemgetter(turn), (state["goals"], state["results"]))
            entry = text(when(goal[0] >= 0, quote(goal, grammar), "none"), world.tell(result, seat), ".")
            entries.append(when(turn < state["turn"], entry))
        return text(when(state["turn"] == 0, outer.tell(state, seat)), *entries)

    return replace(
        outer,
        grammar=grammar,
        max_steps=max_turns,
        limit=None,
        start=start,
        play=play,
        skip=lambda state: remember(state, jnp.full(grammar.max_words, -1, jnp.int32)),
        status=status,
        tell=tell,
        expert=lambda key, state: (*executes.choose(key, state["inner"]), None),
        situation=None,
        allowed=None,
        accepts=None,
        subgrammar=None,
        distance=None,
    )


def call_tools(world: World) -> Executor:
    """Makes the executor of `world=tools`: `use open` calls the tool with the known values of its keys.

    For a key without a known value, it uses the first value, with which the call fails. A busy tool is called again.
    `ask person`, `confirm` and `refuse` are the same as in the world.
    """
    _require("tools", world)
    grammar = make_grammar("use {name}", "ask {key}", "confirm", "refuse", name=rules.NAMES, key=rules.KEYS)

    def act(state: State, verb: Array, args: Array) -> tuple[Array, Array]:
        task, row = state.task, jnp.full(4, -1)
        tool = jnp.argmax(task["name"] == args[0, 0])
        keys = jnp.stack([task["takes"][tool], jnp.int32(rules.DAY)])
        first, day = jnp.argmax(state.seen[keys], axis=1)
        values = len(rules.KEYS) + first, len(rules.KEYS) + len(rules.VALUES) + day
        call = jnp.stack([keys[0], values[0], keys[1], values[1]])
        call = jnp.where((verb == rules.CALL) & (jnp.arange(4) < 2 + 2 * task["dated"][tool]), call, -1)
        return verb, jnp.stack([row.at[0].set(args[0, 0]), call]).astype(jnp.int32)

    def choose(key: Array, state: State) -> tuple[Array, Array]:
        verb, args, _ = world.expert(key, state)
        return verb, args[:1, :1]

    return Executor(grammar, act, lambda state, verb, args: state.error != rules.BUSY, choose)


def follow_recipes(world: World) -> Executor:
    """Makes the executor of `world=crafting`: `make tile` gets the missing bases of its recipe, and makes it.

    Missing goods are separate sub-goals; without them, the sub-goal is given up.
    """
    _require("crafting", world)
    task = jax.eval_shape(world.sample, jax.random.key(0), jnp.zeros((), jnp.int32))
    num_bases, goods = len(crafting.BASES), crafting.GOODS[: len(task["methods"])]
    grammar = make_grammar("make {good}", good=goods)

    def act(state: State, verb: Array, args: Array) -> tuple[Array, Array]:
        good = jnp.clip(args[0, 0], 0)
        lacks = crafting.recipe_uses(state.task)[good] & ~state.pack
        item = jnp.argmax(lacks)  # Bases come first.
        gets = jnp.any(lacks) & (item < num_bases)
        made = jnp.stack([state.task["methods"][good], good])
        own = jnp.where(gets, jnp.stack([item, jnp.int32(-1)]), made)
        return jnp.where(gets, crafting.GET, crafting.MAKE), own[:, None].astype(jnp.int32)

    def done(state: State, verb: Array, args: Array) -> Array:
        return state.pack[num_bases + jnp.clip(args[0, 0], 0)] | (state.failure > 0)

    def choose(key: Array, state: State) -> tuple[Array, Array]:
        good = jnp.argmax(crafting.missing(state.task, state.pack)[num_bases:])
        return jnp.int32(0), good.reshape(1, 1).astype(jnp.int32)

    return Executor(grammar, act, done, choose)


def _require(name: str, world: World) -> None:
    if world.name != name:
        raise ValueError(f"`world` must be {name} for this executor, got {world.name!r}.")

"""Several worlds as one, with one word table: a level is a level of one of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.splits import as_integers, leaves_without_level
from jaxagents.environments.text.subgrammars import join_grammars, own_action, widen
from jaxagents.environments.text.texts import Text, cases
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.writing import with_refusal
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, Environment, State, Task


def make_environment(worlds: Mapping[str, Callable[[], Environment]], **options: Any) -> Environment:
    """Makes one text world from several.

    Every task belongs to one of the worlds, with its prompt, its limit of turns, its split and its rewards; only its
    texts identify the world. Budgets are those of the largest world. Levels are those of the first world, then those of
    the second, and so on, so that lists of levels determine how often a world is played, and
    `language.levels.make_level_evaluator` evaluates each of them. Graded scores are `<name>_<score>`, 0 in episodes of
    other worlds, including `<name>_success`.

    The task is `{"which": int32, "inner": (a task of every world), "level": int32}`; tasks of worlds that are not
    played are always the same.

    Args:
        worlds: functions that make text worlds with one seat, by name; only their rules are used, without step
            penalties.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: there is no world, one is not a text world with one seat, or one has payouts.
    """
    made = {name: make() for name, make in worlds.items()}
    for name, one in made.items():
        if one.text is None or one.text.rules is None:
            raise ValueError(f"`worlds` must be text worlds, got {name}={one.name}.")
    return make_text_world(join_worlds({name: one.text.rules for name, one in made.items()}), **options)


def join_worlds(worlds: Mapping[str, World]) -> World:
    """Returns the rules of a union; see `make_environment`."""
    _check(worlds)
    rules = tuple(worlds.values())
    grammar = join_grammars(*(world.grammar for world in rules))
    own = np.asarray([(i, level) for i, world in enumerate(rules) for level in range(world.num_levels)], np.int32)
    verbs = np.cumsum([0, *(len(world.grammar.templates) for world in rules)])
    subgrammars = np.cumsum([0, *(world.grammar.num_subgrammars for world in rules)])

    def keys_of(key: Array, which: Array) -> list[Array]:
        """Returns a key for every world, a constant one for those that are not played: their tasks are fixed."""
        keys, fixed = jax.random.split(key, len(rules)), jax.random.key(0)
        return [jnp.where(which == i, keys[i], fixed) for i in range(len(rules))]

    def sample(key: Array, level: Array) -> Task:
        which, inner_level = jnp.asarray(own)[level]
        keys = keys_of(key, which)
        levels = [jnp.where(which == i, inner_level, 0) for i in range(len(rules))]
        tasks = tuple(world.sample(one, at) for world, one, at in zip(rules, keys, levels))
        return {"which": which, "inner": tasks, "level": level}

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        pairs = zip(rules, keys_of(key, task["which"]), task["inner"])
        tasks = (one if world.complete is None else world.complete(key, one, held_out) for world, key, one in pairs)
        return {**task, "inner": tuple(tasks)}

    def masked(which: Array, trees: Sequence[Any]) -> list[Array]:
        return [jnp.where(which == i, leaf, 0) for i, tree in enumerate(trees) for leaf in as_integers(tree)]

    def identity(task: Task) -> list[Array]:
        of_worlds = [(world.identity or leaves_without_level)(one) for world, one in zip(rules, task["inner"])]
        return [task["which"], *masked(task["which"], of_worlds)]

    def situation(state: State) -> list[Array]:
        of_worlds = [(world.situation or leaves_without_level)(one) for world, one in zip(rules, state["inner"])]
        return [state["which"], *masked(state["which"], of_worlds)]

    def start(key: Array, task: Task) -> State:
        return {"which": task["which"], "inner": tuple(w.start(key, one) for w, one in zip(rules, task["inner"]))}

    def follow(state: State, states: Sequence[State]) -> State:
        pairs = zip(states, state["inner"])
        return {**state, "inner": tuple(select(state["which"] == i, new, old) for i, (new, old) in enumerate(pairs))}

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        actions = [own_action(world.grammar, verb, args, int(first)) for world, first in zip(rules, verbs)]
        return follow(state, [w.play(key, one, *action) for w, one, action in zip(rules, state["inner"], actions)])

    def skip(state: State) -> State:
        pairs = zip(rules, state["inner"])
        return follow(state, [one if world.skip is None else world.skip(one) for world, one in pairs])

    def expert(key: Array, state: State) -> tuple[Array, Array, Text | None]:
        decisions = [world.expert(key, one) for world, one in zip(rules, state["inner"])]
        verb = jnp.stack([one[0] + first for one, first in zip(decisions, verbs)])[state["which"]]
        args = jnp.stack([widen(one[1], grammar) for one in decisions])[state["which"]]
        thinks = any(thought is not None for _, _, thought in decisions)
        return verb, args, cases(state["which"], *(thought for _, _, thought in decisions)) if thinks else None

    def allowed(state: State) -> Array:
        masks = [jnp.ones(w.grammar.num_entries, bool) if w.allowed is None else w.allowed(one)
                 for w, one in zip(rules, state["inner"])]  # fmt: skip
        return jnp.concatenate([mask & (state["which"] == i) for i, mask in enumerate(masks)])

    def accepts(state: State, verb: Array, args: Array) -> Array:
        pairs = zip(rules, state["inner"], verbs)
        return jnp.stack(
            [
                jnp.bool_(True) if w.accepts is None else w.accepts(one, *own_action(w.grammar, verb, args, int(first)))
                for w, one, first in pairs
            ]
        )[state["which"]]

    def subgrammar(state: State) -> Array:
        inner = [0 if world.subgrammar is None else world.subgrammar(one) for world, one in zip(rules, state["inner"])]
        return jnp.stack([jnp.asarray(one + first) for one, first in zip(inner, subgrammars)])[state["which"]]

    def limit(task: Task) -> Array:
        limits = [w.max_steps if w.limit is None else w.limit(one) for w, one in zip(rules, task["inner"])]
        return jnp.stack([jnp.asarray(one, jnp.int32) for one in limits])[task["which"]]

    def render(state: State) -> str:
        return rules[int(state["which"])].render(state["inner"][int(state["which"])])

    def in_all(name: str) -> bool:
        return all(getattr(world, name) is not None for world in rules)

    return World(
        name="+".join(worlds),
        grammar=grammar,
        max_steps=max(world.max_steps for world in rules),
        num_levels=len(own),
        sample=sample,
        identity=identity,
        complete=complete if any(world.complete is not None for world in rules) else None,
        start=start,
        situation=situation,
        allowed=allowed,
        accepts=accepts if any(world.accepts is not None for world in rules) else None,
        subgrammar=subgrammar,
        limit=limit,
        play=play,
        skip=skip if any(world.skip is not None for world in rules) else None,
        status=lambda state: _status(tuple(worlds), rules, state),
        tell=lambda state, seat: cases(
            state["which"], *(with_refusal(w.tell(one, seat)) for w, one in zip(rules, state["inner"]))
        ),
        prompt=lambda task: (
            cases(task["which"], *(None if w.prompt is None else w.prompt(one) for w, one in zip(rules, task["inner"])))
            if any(world.prompt is not None for world in rules)
            else None
        ),
        expert=expert,
        distance=(lambda state: jnp.stack([w.distance(one) for w, one in zip(rules, state["inner"])])[state["which"]])
        if in_all("distance")
        else None,
        render=render if in_all("render") else None,
    )


def _status(names: Sequence[str], rules: Sequence[World], state: State) -> Status:
    """Returns the status of the world that is played; if only some have payoffs, success pays 1 in the others."""
    statuses, which = [world.status(one) for world, one in zip(rules, state["inner"])], state["which"]
    parts: dict[str, Array] = {}
    for i, (name, one) in enumerate(zip(names, statuses)):
        scores = {**one.parts, "success": one.success}
        parts |= {
            f"{name}_{part}": jnp.where(which == i, score, 0).astype(jnp.float32) for part, score in scores.items()
        }
    payoff = progress = None
    if any(one.payoff is not None for one in statuses):
        paid = [(one.success & one.over)[None] if one.payoff is None else one.payoff for one in statuses]
        payoff = jnp.stack([jnp.asarray(one, jnp.float32) for one in paid])[which]
    if all(one.progress is not None for one in statuses):
        progress = jnp.stack([jnp.asarray(one.progress, jnp.float32) for one in statuses])[which]
    return Status(
        success=jnp.stack([one.success for one in statuses])[which],
        over=jnp.stack([one.over for one in statuses])[which],
        payoff=payoff,
        progress=progress,
        parts=parts,
    )


def _check(worlds: Mapping[str, World]) -> None:
    if not worlds:
        raise ValueError("`worlds` must be at least one, got none.")
    for name, world in worlds.items():
        if world.num_seats > 1:
            raise ValueError(f"`worlds` must have one seat each, got {world.num_seats} in {name!r}.")
        if world.payouts:
            raise ValueError(f"`worlds` must not have payouts of their own, got some in {name!r}; put them around all.")

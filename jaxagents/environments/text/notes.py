"""Words before observations: conditions that belong to the task, notes about the state, and names of seats."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Phrase, Text, number, pick, quote, text
from jaxagents.environments.text.world import World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, State, Task

Write = Callable[[World, State], Text]
"""Writes a note about a state; it knows the situation and nothing else, or equal situations look different."""


def with_conditions(
    world: World,
    *,
    phrases: Sequence[Phrase],
    num_phrases: int = 1,
    choose: Callable[[Array, Task], Array] | None = None,
    drop: float = 0.0,
    where: str = "observation",
) -> World:
    """Puts phrases that belong to the task before every observation, or at the end of the prompt.

    The task is `{"inner": task, "condition": int32 [num_phrases], "level": int32}`, with indices of phrases and -1 for
    none. Code that provides tasks can change the condition: with `drop=1`, only such conditions occur, for example
    notes that a model has written. The split is that of the inner task.

    Args:
        world: rules of the world.
        phrases: possible phrases.
        num_phrases: maximum number of phrases at once.
        choose: `(key, task) -> int32 [num_phrases]`; None: each is drawn uniformly.
        drop: probability that a task has no condition, in [0, 1].
        where: place of the phrases: "observation" or "prompt".

    Returns:
        The rules.

    Raises:
        ValueError: there is no phrase, a number or probability is out of its range, or the place is unknown.
    """
    phrases = tuple(one if isinstance(one, str) or one is None else tuple(one) for one in phrases)
    require_positive("num_phrases", num_phrases)
    if not phrases:
        raise ValueError("`phrases` must be at least one, got none.")
    if not 0.0 <= drop <= 1.0:
        raise ValueError(f"`drop` must be in [0, 1], got {drop}; try 0.5.")
    if where not in ("observation", "prompt"):
        raise ValueError(f"`where` must be observation or prompt, got {where!r}.")
    nothing = jnp.full(num_phrases, -1, jnp.int32)
    outer = with_inner_state(with_inner_task(world, condition=nothing))

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        inner_key, choose_key, drop_key = jax.random.split(key, 3)
        inner = task["inner"] if world.complete is None else world.complete(inner_key, task["inner"], held_out)
        if choose is None:
            chosen = jax.random.randint(choose_key, (num_phrases,), 0, len(phrases))
        else:
            chosen = choose(choose_key, inner).astype(jnp.int32)
        dropped = jax.random.bernoulli(drop_key, drop)
        return {**task, "inner": inner, "condition": jnp.where(dropped, nothing, chosen)}

    def prompt(task: Task) -> Text:
        return text(None if world.prompt is None else world.prompt(task["inner"]), pick(phrases, task["condition"]))

    conditioned = replace(
        outer,
        complete=complete,
        start=lambda key, task: {"inner": world.start(key, task["inner"]), "condition": task["condition"]},
        situation=lambda state: (state["condition"], outer.situation(state)),
    )
    if where == "prompt":
        return replace(conditioned, prompt=prompt)
    return replace(
        conditioned, tell=lambda state, seat: text(pick(phrases, state["condition"]), outer.tell(state, seat))
    )


def with_notes(world: World, *, write: Write, cue: str = "note") -> World:
    """Puts a note about the state before every observation: `note <note> .`

    Args:
        world: rules of the world.
        write: `(world, state) -> Text`, such as `expert_action`.
        cue: first word of the note.

    Returns:
        The rules.
    """
    return replace(world, tell=lambda state, seat: text(cue, write(world, state), ".", world.tell(state, seat)))


def with_names_of_seats(world: World) -> World:
    """Puts the name of the seat that sees an observation before it: `player 0 <observation>`.

    Args:
        world: rules of the world.

    Returns:
        The rules.
    """
    names = [f"player {number}" for number in range(world.num_seats)]
    return replace(world, tell=lambda state, seat: text(pick(names, seat), world.tell(state, seat)))


def expert_action(world: World, state: State) -> Text:
    """Writes the action that the expert would take, if one seat acts; the expert uses its own random key."""
    if world.num_seats > 1 and world.player is None:
        raise ValueError(f"`world` must ask one seat at a time, got all {world.num_seats} of {world.name!r} at once.")
    verb, args, _ = world.expert(jax.random.key(0), state)
    return quote(world.grammar.render(verb, args), world.grammar)


def steps_left(world: World, state: State, *, digits: int = 2) -> Text:
    """Writes the fewest actions to a success in digits; nothing if none is possible."""
    if world.distance is None:
        raise ValueError(f"`world` must know how far a success is, {world.name!r} does not; try another note.")
    distance = world.distance(state)
    return number(jnp.where(jnp.isfinite(distance), distance, -1.0).astype(jnp.int32), digits)

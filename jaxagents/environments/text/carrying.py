"""Things with weights in a household: things that are too heavy need a trolley, or a second seat that lifts, too."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import first_action
from jaxagents.environments.text.grammar import allow, make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

PLACES, THINGS = ("countertop", "shelf", "desk", "bed", "door"), ("box", "chair", "lamp", "crate", "trolley")
STRENGTH, TROLLEY = 4, 4
"""The most weight that one can carry, and the index of the trolley, which weighs nothing."""
HEAVY, COMPARE, ROLL, TOLD = (2, 3, 4, 5, 6), (1, 3, 6), (2, 3), 4
"""Levels whose thing is heavy, that ask for the heavier of two things, that have a trolley, and that tell to lift."""
GO, TAKE, LIFT, PUT, WAIT = range(5)


@struct.dataclass
class CarryingState:
    """Positions and holders.

    Positions of seats are int32 `[P]`, and of things int32 `[5]`, -1 for missing things; holders of things are int32
    `[5]`, -1: nobody, P: both seats. It also has what seats are about to lift, int32 `[P]`, -1: nothing; and the seat
    that acts.
    """

    task: Task
    at: Array
    where: Array
    holder: Array
    lifting: Array
    seat: Array


def make_environment(num_seats: int = 1, *, full: bool = False, max_turns: int = 12, **options: Any) -> Environment:
    """Makes a household of things that have weights.

    The goal names a thing and a place, `bring box to bed`, or asks for the `heavier` one of two. One seat carries a
    weight of 4, or with the trolley in its hand any weight. With two seats, who take turns, a thing that is too heavy
    is lifted by both: each says `lift box` at its place; then both move when one of them moves. `put` puts down what is
    held. A seat sees what is at its place: `bring box to bed you desk hold trolley see box 7`, followed by the position
    of the other seat. The episode ends when the thing is at its goal, which pays all seats 1.

    Levels are kinds of tasks: 0 names a light thing, 1 asks for the heavier one of two light things, 2 names one that
    needs the trolley, 3 asks for it as the heavier one. With two seats and without a trolley, 4 names a heavy thing and
    says `together`, 5 does not say it, and 6 asks for the heavier one of two.

    Args:
        num_seats: number of seats: 1, with levels 0 to 3, or 2, with all seven.
        full: whether everything is seen from every place.
        max_turns: maximum turns of each seat, at least 6.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: the number of seats is another one, or there are too few turns.

    References:
        Wang et al. (2025), OmniEAR, section 3 (the seven kinds of tasks).
    """
    if num_seats not in (1, 2) or max_turns < 6:
        raise ValueError(f"`num_seats` must be 1 or 2 and `max_turns` at least 6, got {num_seats} and {max_turns}.")
    templates = ("go to {place}", "take {thing}", "lift {heavy}", "put", "wait")
    grammar = make_grammar(*templates, place=PLACES, thing=THINGS, heavy=THINGS[:TROLLEY])

    def start(key: Array, task: Task) -> CarryingState:
        nobody = jnp.full(len(THINGS), -1, jnp.int32)
        return CarryingState(
            task=task, at=task["at"], where=task["where"], holder=nobody, lifting=nobody[:num_seats], seat=jnp.int32(0)
        )

    def status(state: CarryingState) -> Status:
        thing, held = state.task["thing"], state.holder[state.task["thing"]] >= 0
        done = (state.where[thing] == state.task["goal"]) & ~held
        payoff = None if num_seats == 1 else jnp.full(num_seats, done, jnp.float32)
        return Status(success=done, over=done, payoff=payoff, progress=jnp.where(done, 1.0, held / 2))

    world = World(
        name="carrying",
        grammar=grammar,
        max_steps=max_turns * num_seats,
        num_levels=4 if num_seats == 1 else 7,
        num_seats=num_seats,
        sample=partial(sample, num_seats),
        start=start,
        player=None if num_seats == 1 else lambda state: state.seat,
        play=play,
        allowed=lambda state: allow(grammar, *allowed(state)),
        status=status,
        tell=partial(tell, full),
        expert=lambda key, state: (*first_action(grammar, rules(state)), None),
    )
    return make_text_world(world, **options)


def sample(num_seats: int, key: Array, level: Array) -> Task:
    """Draws two things with weights, the first of which is to be brought, and the places of all and of the goal."""
    thing_key, light_key, heavy_key, goal_key, *place_keys = jax.random.split(key, 6)
    heavy, compare, roll = (jnp.any(level == jnp.asarray(levels)) for levels in (HEAVY, COMPARE, ROLL))
    thing, other = draw_distinct(thing_key, jnp.arange(len(THINGS)) < TROLLEY, 2)
    light = draw_distinct(light_key, jnp.ones(STRENGTH, bool), 2) + 1
    low, high = jnp.min(light), jnp.max(light)
    mine = jnp.where(heavy, jax.random.randint(heavy_key, (), STRENGTH + 1, 10), jnp.where(compare, high, light[0]))
    places = draw_distinct(place_keys[0], jnp.ones(len(PLACES), bool), 3)
    there = jnp.asarray([thing, other, TROLLEY])
    where = jnp.full(len(THINGS), -1, jnp.int32).at[there].set(places.at[2].set(jnp.where(roll, places[2], -1)))
    weight = jnp.zeros(len(THINGS), jnp.int32).at[there[:2]].set(jnp.stack([mine, jnp.where(compare, low, light[1])]))
    goal = (places[0] + jax.random.randint(goal_key, (), 1, len(PLACES))) % len(PLACES)
    at = jax.random.randint(place_keys[1], (num_seats,), 0, len(PLACES))
    options = {"compare": compare, "told": level == TOLD, "level": level}
    return {"thing": thing, "where": where, "weight": weight, "goal": goal, "at": at, **options}


def near(state: CarryingState, seat: Array) -> tuple[Array, Array]:
    """Returns which things are at the place of a seat, and which are in its hands, bool `[5]`."""
    held = (state.holder == seat) | (state.holder == state.at.shape[0])
    return (state.where == state.at[seat]) & (state.holder < 0), held


def play(key: Array, state: CarryingState, verb: Array, args: Array) -> CarryingState:
    """Goes, takes, lifts, puts down, or waits."""
    seats, seat = state.at.shape[0], state.seat
    _, held = near(state, seat)
    things, argument = np.arange(len(THINGS)), args[0, 0]
    moves = (np.arange(seats) == seat) | jnp.any(state.holder == seats)
    at = jnp.where(moves & (verb == GO), argument, state.at)
    together = (verb == LIFT) & (state.lifting[1 - seat] == argument) & (state.at[1 - seat] == state.at[seat])
    taken = (things == argument) & ((verb == TAKE) | together)
    holder = jnp.where(taken, jnp.where(together, seats, seat), jnp.where(held & (verb == PUT), -1, state.holder))
    intent = jnp.where((verb == LIFT) & ~together, argument, jnp.where(verb == WAIT, state.lifting[seat], -1))
    return state.replace(
        at=at,
        where=jnp.where(held & (verb == GO), argument, state.where),
        holder=holder,
        lifting=jnp.where(together, -1, state.lifting.at[seat].set(intent)).astype(jnp.int32),
        seat=(seat + 1) % seats,
    )


def allowed(state: CarryingState) -> tuple[Array, ...]:
    """Returns which actions are possible, verb by verb: nobody holds two things except the trolley and another one."""
    seat, (here, held) = state.seat, near(state, state.seat)
    pair, weight = state.at.shape[0] == 2, state.task["weight"]
    free, strong = ~jnp.any(held[:TROLLEY]), (weight <= STRENGTH) | held[TROLLEY]
    lifts = here & (weight > STRENGTH) & ~jnp.any(held) & (state.lifting[seat] != np.arange(len(THINGS)))
    take = here & jnp.where(np.arange(len(THINGS)) < TROLLEY, free & strong, True)
    return np.arange(len(PLACES)) != state.at[seat], take, (lifts & pair)[:TROLLEY], jnp.any(held), jnp.bool_(pair)


def rules(state: CarryingState) -> list[tuple]:
    """Lists the actions of an expert who knows everything; if one seat is enough, the second one waits."""
    seat, task, (_, held) = state.seat, state.task, near(state, state.seat)
    thing, at = task["thing"], state.at[seat]
    heavy, has_trolley = task["weight"][thing] > STRENGTH, state.where[TROLLEY] >= 0
    fetch = jnp.where(heavy & has_trolley & ~held[TROLLEY], TROLLEY, thing)
    verb = jnp.where(heavy & ~has_trolley, LIFT, TAKE)
    idle = (seat > 0) & ~(heavy & ~has_trolley) | (state.lifting[seat] == thing)
    return [
        (held[thing] & (at != task["goal"]), GO, task["goal"]),
        (held[thing], PUT),
        (idle, WAIT),
        (at != state.where[fetch], GO, state.where[fetch]),
        (True, verb, fetch),
    ]


def tell(full: bool, state: CarryingState, seat: Array) -> Text:
    """Describes the goal, the seat's place, what it holds and sees, and the place of the other seat."""
    task, (here, held) = state.task, near(state, seat)
    seen = (state.where >= 0) & ~held if full else here
    things = []
    for i, name in enumerate(THINGS):
        place = pick(PLACES, state.where[i]) if full else None
        things.append(when(seen[i], text(name, when(task["weight"][i] > 0, number(task["weight"][i], 1)), place)))
    named = when(task["compare"], "heavier", pick(THINGS, task["thing"]))
    goal = text("bring", named, "to", pick(PLACES, task["goal"]), when(task["told"], "together"))
    hold = text("hold", *(when(held[i], name) for i, name in enumerate(THINGS)))
    other = None
    if state.at.shape[0] == 2:
        lifts = state.lifting[1 - seat]
        other = text("they", pick(PLACES, state.at[1 - seat]), when(lifts >= 0, text("lift", pick(THINGS, lifts))))
    holds, sees = when(jnp.any(held), hold), when(jnp.any(seen), text("see", *things))
    return text(goal, "you", pick(PLACES, state.at[seat]), holds, sees, other)

"""Rules of the household world: possible actions, their effects, and when a task is done."""

import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text import household_tables as names
from jaxagents.environments.text.household_tables import Tables
from jaxagents.types import Array

ABSENT, HELD = -1, -2
"""In `places`: the object is not in this task; it is in the hand."""

ORDINARY, HOT, COOL = range(3)
"""Temperatures."""


@struct.dataclass
class HouseholdTask:
    """A goal and the initial places of things; every receptacle that can be closed is closed, and nothing is held.

    Attributes:
        level: int32.
        family: int32, index into `household_tables.GOALS`.
        object_type: int32, type of the object that the goal names.
        target_kind: int32, kind of the receptacle that it names; for the lamp, that of the desk, where the lamp is.
        places: int32 `[U]`, receptacle of each object, or `ABSENT`.
    """

    level: Array
    family: Array
    object_type: Array
    target_kind: Array
    places: Array


@struct.dataclass
class HouseholdState:
    """The state of the world.

    Attributes:
        task: the task of the episode.
        location: int32, receptacle where the agent is; R in the middle of the room.
        opened: bool `[R]`, whether receptacles are open.
        visited: bool `[R]`, whether the agent has seen their contents.
        places: int32 `[U]`, receptacle of each object, `ABSENT` or `HELD`.
        temperature: int32 `[U]`.
        clean: bool `[U]`.
        sliced: bool `[U]`.
        examined: int32, condition that answered the last action, an index into `CONDITIONS`; -1 for none.
        looked: bool, whether the last action was to use the lamp with the named object in the hand.
    """

    task: HouseholdTask
    location: Array
    opened: Array
    visited: Array
    places: Array
    temperature: Array
    clean: Array
    sliced: Array
    examined: Array
    looked: Array


def first_state(tables: Tables, task: HouseholdTask) -> HouseholdState:
    """Returns the state in which a task begins."""
    receptacles = jnp.zeros(tables.closable.shape, bool)
    objects = jnp.zeros(tables.object_type.shape, bool)
    return HouseholdState(
        task=task,
        location=jnp.asarray(tables.num_receptacles, jnp.int32),
        opened=receptacles,
        visited=receptacles,
        places=task.places,
        temperature=objects.astype(jnp.int32),
        clean=objects,
        sliced=objects,
        examined=jnp.full((), -1, jnp.int32),
        looked=jnp.zeros((), bool),
    )


def accessible(tables: Tables, state: HouseholdState) -> Array:
    """Returns whether the agent is at a receptacle that it can look into: bool `[]`."""
    return jnp.any(_here(tables, state) & (state.opened | ~jnp.asarray(tables.closable)))


def visible(tables: Tables, state: HouseholdState) -> Array:
    """Returns which objects the agent sees where it is: bool `[U]`."""
    return (state.places == state.location) & accessible(tables, state)


def is_goal_type(tables: Tables, state: HouseholdState) -> Array:
    """Returns which objects the task is about: bool `[U]`."""
    return (jnp.asarray(tables.object_type) == state.task.object_type) & (state.places != ABSENT)


def admissible(tables: Tables, state: HouseholdState) -> Array:
    """Computes which actions are possible.

    Args:
        tables: constants of the world.
        state: state of the world.

    Returns:
        Bool `[A]`, over the entries of the grammar.
    """
    here, near = _here(tables, state), accessible(tables, state)
    exists = jnp.arange(tables.num_receptacles) < level_sizes(tables, "num_receptacles")[state.task.level]
    held, seen = state.places == HELD, visible(tables, state)
    by_verb = {
        names.GO: exists & ~here,
        names.OPEN: here & jnp.asarray(tables.closable) & ~state.opened,
        names.CLOSE: here & state.opened,
        names.TAKE: seen & ~jnp.any(held),
        names.PUT: held & near,
        names.WASH: held & (state.location == tables.stations["sinkbasin"]),
        names.WARM: held & (state.location == tables.stations["microwave"]),
        names.CHILL: held & (state.location == tables.stations["fridge"]),
        names.SLICE: seen & ~state.sliced & jnp.any(held & tables.is_knife),
        names.LOOK_AT: seen | held,
        names.USE: (state.location == tables.stations["desk"])[None],
        names.LOOK: jnp.ones((1,), bool),
        names.INVENTORY: jnp.ones((1,), bool),
    }
    # Entries are sorted by verb, and every verb takes some of the indices.
    rows = [by_verb[verb][tables.argument[tables.verb == verb]] for verb in by_verb]
    return jnp.concatenate(rows)


def transition(tables: Tables, state: HouseholdState, verb: Array, argument: Array) -> HouseholdState:
    """Returns the state after an action.

    Args:
        tables: constants of the world.
        state: state of the world.
        verb: int32, verb of an admissible action.
        argument: int32, receptacle or object of the action.

    Returns:
        The next state.
    """
    receptacle = jnp.arange(tables.num_receptacles) == argument
    thing = jnp.arange(len(tables.object_type)) == argument
    places = jnp.where(thing & (verb == names.PUT), state.location, state.places)
    temperature = jnp.where(thing & (verb == names.WARM), HOT, state.temperature)
    state = state.replace(
        location=jnp.where(verb == names.GO, argument, state.location),
        opened=(state.opened | (receptacle & (verb == names.OPEN))) & ~(receptacle & (verb == names.CLOSE)),
        places=jnp.where(thing & (verb == names.TAKE), HELD, places),
        temperature=jnp.where(thing & (verb == names.CHILL), COOL, temperature),
        clean=state.clean | (thing & (verb == names.WASH)),
        sliced=state.sliced | (thing & (verb == names.SLICE)),
        examined=jnp.where(verb == names.LOOK_AT, conditions(state)[argument], -1).astype(jnp.int32),
        looked=(verb == names.USE) & jnp.any(is_goal_type(tables, state) & (state.places == HELD)),
    )
    return state.replace(visited=state.visited | (_here(tables, state) & accessible(tables, state)))


def conditions(state: HouseholdState) -> Array:
    """Returns the condition of each object, an index into `CONDITIONS`: int32 `[U]`."""
    return state.temperature + 3 * state.clean + 6 * state.sliced


def treated(state: HouseholdState) -> Array:
    """Returns which objects have the condition that the goal wants, wherever they are: bool `[U]`."""
    family = state.task.family
    return (
        ((family != names.CLEAN) | state.clean)
        & ((family != names.HEAT) | (state.temperature == HOT))
        & ((family != names.COOL) | (state.temperature == COOL))
    )


def placed(tables: Tables, state: HouseholdState) -> Array:
    """Returns which of the task's objects have the right condition and place: bool `[U]`, all False for a look."""
    target = jnp.asarray(tables.kind) == state.task.target_kind
    there = jnp.any((state.places[:, None] == jnp.arange(tables.num_receptacles)[None, :]) & target[None, :], axis=1)
    return is_goal_type(tables, state) & there & treated(state) & (state.task.family != names.EXAMINE)


def known(tables: Tables, state: HouseholdState) -> Array:
    """Returns which objects are in places that the agent has seen, or in its hand: bool `[U]`."""
    at = state.places[:, None] == jnp.arange(tables.num_receptacles)[None, :]
    return jnp.any(at & state.visited[None, :], axis=1) | (state.places == HELD)


def is_success(tables: Tables, state: HouseholdState) -> Array:
    """Returns whether a task is done: the named objects are placed, or the one is looked at; bool `[]`."""
    all_placed = jnp.all(placed(tables, state) | ~is_goal_type(tables, state))
    return jnp.where(state.task.family == names.EXAMINE, state.looked, all_placed)


def progress(tables: Tables, state: HouseholdState, success: Array) -> Array:
    """Computes the progress of a task, the potential of the dense reward.

    It is the mean over the task's objects of 1/4 for found, 1/2 for held, 3/4 for held and treated (always true without
    a treatment), and 1 for placed.

    Args:
        tables: constants of the world.
        state: state of the world.
        success: bool `[]`, whether the task is done.

    Returns:
        Float32 `[]`, from 0 to 1; 1 exactly if the task is done.
    """
    subject, held = is_goal_type(tables, state), state.places == HELD
    found = jnp.where(known(tables, state), 0.25, 0.0) + jnp.where(held, 0.25, 0.0)
    score = jnp.where(placed(tables, state), 1.0, found + jnp.where(held & treated(state), 0.25, 0.0))
    mean = jnp.sum(jnp.where(subject, score, 0.0)) / jnp.maximum(jnp.sum(subject), 1)
    return jnp.where(success, 1.0, mean).astype(jnp.float32)


def _here(tables: Tables, state: HouseholdState) -> Array:
    return jnp.arange(tables.num_receptacles) == state.location


def level_sizes(tables: Tables, field: str) -> Array:
    """Returns a numeric field of `Level` for each level, int32 `[num_levels]`."""
    return jnp.asarray([getattr(level, field) for level in tables.levels], jnp.int32)

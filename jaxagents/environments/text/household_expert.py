"""A scripted expert of the household world, similar to the handcoded one of ALFWorld (Shridhar et al., 2021)."""

import jax.numpy as jnp

from jaxagents.environments.text import household_rules as rules
from jaxagents.environments.text import household_tables as names
from jaxagents.environments.text.household_tables import Tables
from jaxagents.types import Array


def choose_action(tables: Tables, state: rules.HouseholdState, *, searching: bool) -> tuple[Array, Array]:
    """Chooses the next action; it solves the task from any state.

    The expert goes to the place of the next subtask, opens what is closed there, and does it. The next subtask is: with
    the named object in the hand, treat it, then place it (or look at it); with another object, put it down; with an
    empty hand, take a named object whose place is known; else look into the next receptacle that was not seen.

    Args:
        tables: constants of the world.
        state: state of the world.
        searching: whether the expert knows only what the agent has seen in this episode, and searches the receptacles
            in a fixed order; False: it knows the places of all things.

    Returns:
        Verb and argument, int32 `[]`.

    References:
        Shridhar, Yuan, Cote, Bisk, Trischler and Hausknecht (2021), ALFWorld, appendix on the expert.
    """
    family, near, middle = state.task.family, rules.accessible(tables, state), tables.num_receptacles
    held = state.places == rules.HELD
    subject = rules.is_goal_type(tables, state)
    in_hand = jnp.any(held & subject)
    wanted = subject & ~rules.placed(tables, state)
    wanted = wanted & rules.known(tables, state) if searching else wanted
    hand, found = jnp.argmax(held), jnp.argmax(wanted)
    exists = jnp.arange(middle) < rules.level_sizes(tables, "num_receptacles")[state.task.level]
    unseen = exists & ~state.visited
    here_unseen = jnp.any(unseen & (jnp.arange(middle) == state.location))

    station, treatment = _treatments(tables)
    # (condition, place, verb, argument, whether the place must be open); the first whose condition holds is done.
    cases = (
        (in_hand & (family == names.EXAMINE), tables.stations["desk"], names.USE, 0, False),
        (in_hand & ~jnp.any(held & rules.treated(state)), station[family], treatment[family], hand, False),
        (in_hand, jnp.argmax(jnp.asarray(tables.kind) == state.task.target_kind), names.PUT, hand, True),
        (jnp.any(held), jnp.where(state.location == middle, 0, state.location), names.PUT, hand, True),
        (jnp.any(wanted), state.places[found], names.TAKE, found, True),
        (jnp.ones((), bool), jnp.where(here_unseen, state.location, jnp.argmax(unseen)), names.LOOK, 0, True),
    )
    when, *choices = zip(*cases, strict=True)
    destination, verb, argument, must_open = (
        jnp.select(when, [jnp.asarray(choice, jnp.int32) for choice in column]) for column in choices
    )
    go, unlock = state.location != destination, (must_open == 1) & ~near
    verb = jnp.where(go, names.GO, jnp.where(unlock, names.OPEN, verb))
    return verb, jnp.where(go | unlock, destination, argument)


def _treatments(tables: Tables) -> tuple[Array, Array]:
    """Returns receptacle and verb of the treatment of each family, int32 `[6]`; 0 if it has none."""
    station, verb = [0] * len(names.GOALS), [0] * len(names.GOALS)
    for family, name, treatment in (
        (names.CLEAN, "sinkbasin", names.WASH),
        (names.HEAT, "microwave", names.WARM),
        (names.COOL, "fridge", names.CHILL),
    ):
        station[family], verb[family] = tables.stations[name], treatment
    return jnp.asarray(station, jnp.int32), jnp.asarray(verb, jnp.int32)

"""Tasks of the household world: goals, split by what they name, and rooms in which they can be reached."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text import household_rules as rules
from jaxagents.environments.text import household_tables as names
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.household_rules import HouseholdTask
from jaxagents.environments.text.household_tables import Tables
from jaxagents.environments.text.splits import hash_integers
from jaxagents.types import Array


class Goal(NamedTuple):
    """The content of a task; fields as in `HouseholdTask`."""

    level: Array
    family: Array
    object_type: Array
    target_kind: Array


SALT = 17
"""Part of the hash of goals: with it, every family of every level has tasks on both sides of a split of 0.25."""


def identify(goal: Goal | HouseholdTask) -> tuple[Array, Array]:
    """Returns what identifies a goal, independent of the level and the rooms."""
    return jnp.asarray(SALT), jnp.stack([goal.family, goal.object_type, goal.target_kind])


def require_goals(tables: Tables, held_out_fraction: float) -> None:
    """Checks that every level has goals on both sides of the split.

    Raises:
        ValueError: a level has no goals on one side.
    """
    hashes_of = jax.jit(jax.vmap(lambda goal: hash_integers(*identify(goal))))
    for level in range(len(tables.levels)):
        hashes = hashes_of(Goal(*all_goals(tables, level).T))
        share = np.mean(np.asarray(hashes) < held_out_fraction * 2**32)
        if share in (0.0, 1.0):
            raise ValueError(
                f"`held_out_fraction` must leave level {level} goals on both sides, got {held_out_fraction}; try 0.25."
            )


def all_goals(tables: Tables, level: int) -> np.ndarray:
    """Lists the goals of a level, on the host: int32 `[G, 4]`, rows in the order of `Goal`."""
    num_receptacles, num_types, _, families = tables.levels[level]
    targets = {family: np.unique(tables.kind[:num_receptacles]).tolist() for family in families}
    if names.EXAMINE in families:
        targets[names.EXAMINE] = [tables.kind[tables.stations["desk"]]]
    rows = [
        (level, family, object_type, target)
        for family in families
        for object_type in np.flatnonzero(tables.goal_types[family, :num_types])
        for target in targets[family]
    ]
    return np.asarray(rows, np.int32)


def sample_goal(tables: Tables, key: Array, level: Array) -> Goal:
    """Draws a goal, each part uniformly: the family, a suitable object, the place.

    Args:
        tables: constants of the world.
        key: PRNG key.
        level: int32 `[]`.

    Returns:
        The goal.
    """
    family_key, type_key, target_key = jax.random.split(key, 3)
    families = np.asarray([[f in level.families for f in range(len(names.GOALS))] for level in tables.levels])
    family = choose(family_key, jnp.asarray(families)[level])
    of_level = jnp.arange(len(tables.types)) < rules.level_sizes(tables, "num_types")[level]
    object_type = choose(type_key, jnp.asarray(tables.goal_types)[family] & of_level)
    present = jnp.arange(tables.num_receptacles) < rules.level_sizes(tables, "num_receptacles")[level]
    first_of_kind = np.asarray([kind not in tables.kind[:i] for i, kind in enumerate(tables.kind)])
    target = jnp.asarray(tables.kind)[choose(target_key, present & first_of_kind)]
    desk = tables.kind[tables.stations["desk"]]
    target = jnp.where(family == names.EXAMINE, desk, target).astype(jnp.int32)
    return Goal(level=level, family=family, object_type=object_type, target_kind=target)


def furnish(tables: Tables, key: Array, goal: Goal, held_out: bool) -> HouseholdTask:
    """Draws the other things and all places; the objects of the goal are not yet where they belong.

    Args:
        tables: constants of the world.
        key: PRNG key.
        goal: goal from `sample_goal`.
        held_out: not used.

    Returns:
        The task.
    """
    del held_out
    level, family, object_type, target_kind = goal
    type_key, place_key, goal_key = jax.random.split(key, 3)
    types = jnp.arange(len(tables.types))
    # The named type comes first, types of higher levels never; in a family with two objects it counts twice.
    order = jnp.where(types == object_type, -1.0, jax.random.uniform(type_key, types.shape))
    order = jnp.where(types < rules.level_sizes(tables, "num_types")[level], order, 2.0)
    rank = jnp.sum(order[None, :] < order[:, None], axis=1)
    two = family == names.TWO
    number = np.arange(len(tables.object_type)) // len(tables.types)
    chosen = (rank < rules.level_sizes(tables, "num_objects")[level] - two)[tables.object_type]
    named = jnp.asarray(tables.object_type) == object_type
    present = jnp.where(jnp.asarray(number) == 0, chosen, named & two)

    num_receptacles = rules.level_sizes(tables, "num_receptacles")[level]
    anywhere = jax.random.randint(place_key, number.shape, 0, num_receptacles)
    elsewhere = (jnp.arange(tables.num_receptacles) < num_receptacles) & (jnp.asarray(tables.kind) != target_kind)
    hidden = jnp.stack([choose(key, elsewhere) for key in jax.random.split(goal_key)])[jnp.asarray(number)]
    places = jnp.where(present, jnp.where(named, hidden, anywhere), rules.ABSENT).astype(jnp.int32)
    return HouseholdTask(level=level, family=family, object_type=object_type, target_kind=target_kind, places=places)

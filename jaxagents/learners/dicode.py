"""DiCode (Mitsides, Faldor and Cully, 2026): new levels made by edits of levels that are won."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_fractions
from jaxagents.learners.curricula import level_agent, select, with_curriculum
from jaxagents.ops.checks import check_counts
from jaxagents.ops.level_graph import (
    LevelGraph,
    activate,
    add_children,
    choose_parents,
    draw_active,
    init_graph,
    record,
)
from jaxagents.ops.rows import rows_of_all_devices
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class DreamedLevels:
    """Memory of the levels.

    Attributes:
        graph: levels that have been made so far.
        made: int32 `[k]`, places of new levels that are not active yet; -1 for none.
        place: int32 `[B]`, places of the levels of the next rollout, over all devices; C for the original world.
        levels: tasks of the next rollout, leaves `[B, ...]`.
        won: float32 `[C]`, numbers of episodes won on each level since the last window opened.
        ended: float32 `[C]`, numbers of episodes that ended since then.
        round: int32, number of rollouts so far.
    """

    graph: LevelGraph
    made: Array
    place: Array
    levels: PyTree
    won: Array
    ended: Array
    round: Array


def with_dreamed_levels(
    learner: Learner,
    sample_level: Callable[[Array, Array], PyTree],
    *,
    num_levels: int,
    sizes: Sequence[int],
    capacity: int = 128,
    num_active: int = 100,
    num_played: int = 16,
    num_children: int = 10,
    session: int = 100,
    window: int = 40,
    interval: int = 2,
    original_share: float = 0.2,
    strict: bool = True,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that trains on levels made from those it wins, and on the original world.

    A level is F whole numbers; greater numbers are harder. The greatest of all are the original world, zeros are the
    first level. A session is `session` rollouts: a share of the environments plays the original world, the others play
    `num_played` levels, which are the new ones and draws from the active ones. At the end of a session, the episodes
    won in its last `window` rollouts give levels their scores and grades, and new levels become active. After every
    `interval` sessions new levels are made, each from a parent by one edit.

    Args:
        learner: learner for rollouts, which learns from all of them.
        sample_level: `(key, number) -> task`, where the number encodes the level's fields in mixed radix.
        num_levels: B, number of levels of a rollout over all devices.
        sizes: number of values of each field.
        capacity: C, greatest number of levels that can be made.
        num_active: greatest number of active levels. Paper: 100.
        num_played: n, number of levels of a session. Paper: 16.
        num_children: k, number of levels made at once. Paper: 10.
        session: number of rollouts in a session. Paper: 100.
        window: number of rollouts at the end of a session that count. Paper: 40.
        interval: number of sessions between two generations. Paper: 2.
        original_share: share of the environments that play the original world. Paper: 0.2.
        strict: see `choose_parents`.
        axis_name: mapped device axis.

    Returns:
        The learner, see `with_curriculum`. Metrics: `levels_made`, `levels_active`, `level_success`, the mean over the
        played levels, and `hardest`, the largest fraction of the way from the first level to the original world among
        levels of grade A.

    Raises:
        ValueError: a number is out of its range, or numbers are inconsistent.

    References:
        Mitsides, Faldor and Cully (2026), Dreaming in code for curriculum learning in open-ended worlds.

    Deviation: a level is made by one edit of fields, instead of a program that a language model writes; there is no
        bonus for completing a level, and no input that identifies it. As in the official code, but not in the paper,
        new levels are trained on in the session that evaluates them.
    """
    counts = {"num_levels": num_levels, "num_active": num_active, "capacity": capacity, "session": session}
    check_counts(**counts, num_played=num_played, num_children=num_children, interval=interval)
    check_fractions(original_share=original_share)
    _check_fit(num_levels, num_played, session, window, original_share)
    sizes, slots = tuple(sizes), jnp.arange(num_levels) - round(original_share * num_levels)

    def place_of(key: Array, graph: LevelGraph, made: Array, time: Array) -> Array:
        """Returns the place of the level of each environment in a session."""
        both = jnp.concatenate([made, draw_active(graph, key, num_played, time)])
        played = both[jnp.argsort(both < 0, stable=True)[:num_played]]
        return jnp.where(slots < 0, capacity, played[slots % num_played]).astype(jnp.int32)

    def levels_of(key: Array, graph: LevelGraph, place: Array) -> PyTree:
        hardest = jnp.asarray(sizes, jnp.int32) - 1
        fields = jnp.where((place < capacity)[:, None], graph.fields[jnp.minimum(place, capacity - 1)], hardest[None])
        number = jnp.ravel_multi_index(tuple(fields.T), sizes, mode="clip")
        return jax.vmap(sample_level)(jax.random.split(key, num_levels), number)

    def init(keys: Array) -> DreamedLevels:
        graph, zero = init_graph(jnp.zeros((1, len(sizes)), jnp.int32), capacity), jnp.int32(0)
        made, nothing = jnp.full(num_children, -1, jnp.int32), jnp.zeros(capacity)
        place = place_of(keys[0], graph, made, zero)
        levels = levels_of(keys[1], graph, place)
        return DreamedLevels(graph=graph, made=made, place=place, levels=levels, won=nothing, ended=nothing, round=zero)

    def turn(memory: DreamedLevels, key: Array) -> tuple[LevelGraph, Array, Array]:
        """Returns the graph after a session, new levels, and the levels of the next session."""
        parent_key, edit_key, draw_key = jax.random.split(key, 3)
        time = memory.round // session
        graph = activate(record(memory.graph, memory.won, memory.ended, time), memory.made, capacity=num_active)
        parents = choose_parents(graph, parent_key, num_children, strict=strict)
        graph, made = add_children(graph, edit_key, jnp.where(time % interval == 0, parents, -1), sizes)
        return graph, made, place_of(draw_key, graph, made, time)

    def update(
        memory: DreamedLevels, params: Params, rollout: Rollout, keys: Array
    ) -> tuple[DreamedLevels, Literal[True], Metrics]:
        opens, closes = memory.round % session == session - window, (memory.round + 1) % session == 0
        kept = jax.tree.map(lambda one: jnp.where(opens, 0.0, one), (memory.won, memory.ended))
        seen = _count(rollout, axis_name)
        won, ended = jax.tree.map(lambda one, new: one.at[memory.place].add(new, mode="drop"), kept, seen)
        memory = memory.replace(won=won, ended=ended, round=memory.round + 1)
        graph, made, place = select(closes, turn(memory, keys[0]), (memory.graph, memory.made, memory.place))
        memory = memory.replace(graph=graph, made=made, place=place, levels=levels_of(keys[1], graph, place))
        return memory, True, _describe(memory, sizes)

    return with_curriculum(learner, init, update)


def make_agent(environment: Environment, **options: Any) -> Agent:
    """Assembles an agent that trains on levels made from those it wins.

    Args:
        environment: see `level_agent`; it reports `info["success"]` and has `prod(sizes)` levels, the last of which is
            the original world.
        **options: further arguments of `with_dreamed_levels` and of `level_agent`, except `level`.
    """
    return level_agent(with_dreamed_levels, environment, **options)


def _check_fit(num_levels: int, num_played: int, session: int, window: int, original_share: float) -> None:
    if not 1 <= window <= session:
        raise ValueError(f"`window` must be from 1 to the {session} rollouts of a session, got {window}.")
    most = num_levels - round(original_share * num_levels)
    if num_played > most:
        enough = math.ceil(num_played / max(1.0 - original_share, 0.01))
        raise ValueError(
            f"`num_played` must be at most the {most} environments off the world as it is, got {num_played}; try "
            f"collector.num_envs={enough}."
        )


def _count(rollout: Rollout, axis_name: str | None) -> tuple[Array, Array]:
    """Returns the numbers of episodes that were won, and of all that ended, in every environment, `[B]`."""
    transition = rollout.transition
    ends = transition.terminated | transition.truncated
    won = jnp.sum(jnp.where(ends, transition.extras["success"], 0.0), axis=0)
    return rows_of_all_devices((won, jnp.sum(ends, axis=0, dtype=jnp.float32)), axis_name)


def _describe(memory: DreamedLevels, sizes: Sequence[int]) -> Metrics:
    """Computes the metrics of `with_dreamed_levels`."""
    graph = memory.graph
    way = jnp.sum(graph.fields, axis=1) / (sum(sizes) - len(sizes))
    return {
        "levels_made": graph.size.astype(jnp.float32),
        "levels_active": jnp.sum(graph.active, dtype=jnp.float32),
        "level_success": jnp.sum(memory.won) / jnp.maximum(jnp.sum(memory.ended), 1.0),
        "hardest": jnp.max(jnp.where(graph.success >= 0.75, way, 0.0)),
    }

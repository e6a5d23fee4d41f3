"""Curricula of levels that are made from those that are won, towards the world as it is (DiCode)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_counts, check_fractions
from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.learners.level_replay import make_level_agent
from jaxagents.ops.level_graph import (
    LevelGraph,
    activate,
    add_children,
    choose_parents,
    draw_active,
    init_graph,
    record,
)
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class DreamedLevelsState:
    """State of the learner.

    Attributes:
        inner: of who learns from the rollouts.
        graph: levels that were made so far.
        made: int32 `[k]`, places of new ones, which are not active yet; -1 where there is none.
        place: int32 `[B]`, of the levels of the next rollout, over all devices; C for the world as it is.
        levels: tasks of the next rollout, leaves `[B, ...]`.
        won: float32 `[C]`, episodes since the last window opened that were won on each level.
        ended: float32 `[C]`, episodes since then.
        round: int32, rollouts so far.
    """

    inner: Any
    graph: LevelGraph
    made: Array
    place: Array
    levels: PyTree
    won: Array
    ended: Array
    round: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


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
    """Makes a learner that trains on levels made from those it wins, and on the world as it is.

    A level is F whole numbers, of which a greater one is harder; the greatest of all are the world as it is, the zeros
    the first level. A session is `session` rollouts: a share of the environments is on the world as it is, the others
    on `num_played` levels, which are the new ones and draws from the active ones. At its end, what was won in its last
    `window` rollouts gives levels their scores and grades, and new ones become active. After every `interval` sessions
    others are made: each from a parent, by one edit.

    Args:
        learner: of rollouts, from all of which it learns.
        sample_level: `(key, number) -> task`, of the number of the level's fields in mixed radix.
        num_levels: B, of a rollout over all devices.
        sizes: values of each field.
        capacity: C, levels that are ever made.
        num_active: most active levels. Paper: 100.
        num_played: n, levels of a session. Paper: 16.
        num_children: k, levels that are made at once. Paper: 10.
        session: rollouts. Paper: 100.
        window: rollouts at the end of a session that count. Paper: 40.
        interval: sessions between two generations. Paper: 2.
        original_share: of the environments. Paper: 0.2.
        strict: see `choose_parents`.
        axis_name: mapped device axis.

    Returns:
        The learner; collectors act with `{"params", "levels"}`, as for `with_level_replay`. Metrics: `levels_made`,
        `levels_active`, `level_success`, the mean over what was played, and `hardest`, the greatest share of its way
        from the first level to the world as it is among those of grade A.

    Raises:
        ValueError: a number is out of its range, or numbers do not fit each other.

    References:
        Mitsides, Faldor and Cully (2026), Dreaming in code for curriculum learning in open-ended worlds.

    Deviation: a level is made by one edit of fields, in place of a program that a language model writes; there is no
        bonus for completing a level, and no input that names it. As in the official code, and not in the paper, new
        levels are trained on in the session that judges them.
    """
    counts = {"num_levels": num_levels, "num_active": num_active, "capacity": capacity, "session": session}
    check_counts(**counts, num_played=num_played, num_children=num_children, interval=interval)
    check_fractions(original_share=original_share)
    _check_fit(num_levels, num_played, session, window, original_share)
    sizes, slots = tuple(sizes), jnp.arange(num_levels) - round(original_share * num_levels)

    def place_of(key: Array, graph: LevelGraph, made: Array, time: Array) -> Array:
        """Returns the levels of a session, environment by environment."""
        both = jnp.concatenate([made, draw_active(graph, key, num_played, time)])
        played = both[jnp.argsort(both < 0, stable=True)[:num_played]]
        return jnp.where(slots < 0, capacity, played[slots % num_played]).astype(jnp.int32)

    def levels_of(key: Array, graph: LevelGraph, place: Array) -> PyTree:
        hardest = jnp.asarray(sizes, jnp.int32) - 1
        fields = jnp.where((place < capacity)[:, None], graph.fields[jnp.minimum(place, capacity - 1)], hardest[None])
        number = jnp.ravel_multi_index(tuple(fields.T), sizes, mode="clip")
        return jax.vmap(sample_level)(jax.random.split(key, num_levels), number)

    def init(key: Array, start: DreamedLevelsState | Params | None = None) -> DreamedLevelsState:
        inner_key, draw_key, level_key = jax.random.split(key, 3)
        inner = learner.init(inner_key, start_of_inner(start, DreamedLevelsState))
        if isinstance(start, DreamedLevelsState):
            return start.replace(inner=inner)
        graph, zero = init_graph(jnp.zeros((1, len(sizes)), jnp.int32), capacity), jnp.int32(0)
        made, nothing = jnp.full(num_children, -1, jnp.int32), jnp.zeros(capacity)
        place = place_of(draw_key, graph, made, zero)
        levels = levels_of(level_key, graph, place)
        return DreamedLevelsState(
            inner=inner, graph=graph, made=made, place=place, levels=levels, won=nothing, ended=nothing, round=zero
        )

    def turn(state: DreamedLevelsState, key: Array) -> tuple[LevelGraph, Array, Array]:
        """Returns the graph after a session, new levels, and the levels of the next session."""
        parent_key, edit_key, draw_key = jax.random.split(key, 3)
        time = state.round // session
        graph = activate(record(state.graph, state.won, state.ended, time), state.made, capacity=num_active)
        parents = choose_parents(graph, parent_key, num_children, strict=strict)
        graph, made = add_children(graph, edit_key, jnp.where(time % interval == 0, parents, -1), sizes)
        return graph, made, place_of(draw_key, graph, made, time)

    def update(state: DreamedLevelsState, key: Array, rollout: Rollout) -> tuple[DreamedLevelsState, Metrics]:
        inner_key, turn_key, level_key = jax.random.split(key, 3)
        inner, metrics = learner.update(state.inner, inner_key, rollout)
        opens, closes = state.round % session == session - window, (state.round + 1) % session == 0
        kept = jax.tree.map(lambda one: jnp.where(opens, 0.0, one), (state.won, state.ended))
        seen = _count(rollout, axis_name)
        won, ended = jax.tree.map(lambda one, new: one.at[state.place].add(new, mode="drop"), kept, seen)
        state = state.replace(inner=inner, won=won, ended=ended, round=state.round + 1)
        turned, same = turn(state, turn_key), (state.graph, state.made, state.place)
        graph, made, place = jax.tree.map(lambda new, old: jnp.where(closes, new, old), turned, same)
        state = state.replace(graph=graph, made=made, place=place, levels=levels_of(level_key, graph, place))
        return state, {**metrics, **_describe(state, sizes)}

    return wrap(learner, init, update, acting=lambda state, own: {"params": own, "levels": state.levels})


def make_agent(
    environment: Environment, *, inner: Callable[..., Agent], axis_name: str | None = None, **options: Any
) -> Agent:
    """Assembles an agent that trains on levels made from those it wins.

    Args:
        environment: of one agent, which says `info["success"]` and has `prod(sizes)` levels, the last of them the
            world as it is.
        inner: `(environment, *, axis_name) -> Agent`, who learns.
        axis_name: see `with_dreamed_levels`.
        **options: further arguments of `with_dreamed_levels`.

    Returns:
        The agent.
    """

    def choose(learner: Learner, sample_level: Callable[[Array], PyTree], num_levels: int) -> Learner:
        del sample_level  # Of one difficulty.
        options_of = {"num_levels": num_levels, "axis_name": axis_name, **options}
        return with_dreamed_levels(learner, environment.sample_task, **options_of)

    return make_level_agent(environment, inner(environment, axis_name=axis_name), choose, None)


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
    """Returns the episodes of every environment that were won, and all that ended, `[B]`."""
    transition = rollout.transition
    ends = transition.terminated | transition.truncated
    won = jnp.sum(jnp.where(ends, transition.extras["success"], 0.0), axis=0)
    seen = won, jnp.sum(ends, axis=0, dtype=jnp.float32)
    return seen if axis_name is None else jax.lax.all_gather(seen, axis_name, tiled=True)


def _describe(state: DreamedLevelsState, sizes: Sequence[int]) -> Metrics:
    """Computes the metrics of `with_dreamed_levels`."""
    graph = state.graph
    way = jnp.sum(graph.fields, axis=1) / (sum(sizes) - len(sizes))
    return {
        "levels_made": graph.size.astype(jnp.float32),
        "levels_active": jnp.sum(graph.active, dtype=jnp.float32),
        "level_success": jnp.sum(state.won) / jnp.maximum(jnp.sum(state.ended), 1.0),
        "hardest": jnp.max(jnp.where(graph.success >= 0.75, way, 0.0)),
    }

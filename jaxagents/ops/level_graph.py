"""A graph of levels that were made from one another: which become parents, and which are trained on."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.levels import LevelArchive, level_weights
from jaxagents.types import Array


@struct.dataclass
class LevelGraph:
    """Levels of F whole numbers, in the order in which they were made, with C places.

    Attributes:
        fields: int32 `[C, F]`.
        parent: int32 `[C]`, place of the level from which it was made; -1 for none.
        success: float32 `[C]`, share of won episodes when it was last played; -1 if no episode ended.
        active: bool `[C]`, whether it is trained on.
        played: int32 `[C]`, session in which it was last played.
        size: int32, number of levels so far.
    """

    fields: Array
    parent: Array
    success: Array
    active: Array
    played: Array
    size: Array


def init_graph(seeds: Array, capacity: int) -> LevelGraph:
    """Makes a graph of levels without parents, all of them active.

    Args:
        seeds: int32 `[K, F]`.
        capacity: C, at least K.
    """
    count = seeds.shape[0]
    return LevelGraph(
        fields=jnp.zeros((capacity, seeds.shape[1]), jnp.int32).at[:count].set(seeds),
        parent=jnp.full(capacity, -1, jnp.int32),
        success=jnp.full(capacity, -1.0, jnp.float32),
        active=jnp.arange(capacity) < count,
        played=jnp.zeros(capacity, jnp.int32),
        size=jnp.int32(count),
    )


def grades(graph: LevelGraph) -> Array:
    """Computes the quarter in which the share of won episodes lies, 0 to 3, int32 `[C]`; -1 if unknown."""
    return jnp.where(graph.success < 0.0, -1, jnp.minimum(4.0 * graph.success, 3.0)).astype(jnp.int32)


def level_scores(graph: LevelGraph) -> Array:
    """Computes `p (1 - p)` for the share p of won episodes, float32 `[C]`; 0 if unknown."""
    share = jnp.maximum(graph.success, 0.0)
    return share * (1.0 - share)


def draw_active(
    graph: LevelGraph, key: Array, count: int, session: Array, *, temperature: float = 1.0, staleness: float = 0.3
) -> Array:
    """Draws different active levels, by the rank of their scores and the number of sessions since they were played.

    Args:
        graph: graph with at least one active level.
        key: PRNG key.
        count: n, number of levels.
        session: int32, current session.
        temperature: see `level_weights`. Paper: 1, the default.
        staleness: see `level_weights`. Paper: 0.3, the default.

    Returns:
        int32 `[n]`, places; repeated if fewer levels are active.
    """
    score = jnp.where(graph.active, level_scores(graph), -jnp.inf)
    archive = LevelArchive(
        levels=graph.fields, score=score, max_return=score, played=graph.played, count=jnp.asarray(session)
    )
    weights = level_weights(archive, temperature=temperature, staleness=staleness)
    # Adding Gumbel noise and taking the largest draws without replacement, one after the other.
    noisy = jnp.where(graph.active, jnp.log(weights) + jax.random.gumbel(key, weights.shape), -jnp.inf)
    # A weight of zero still ranks before inactive levels.
    order = jnp.lexsort((-noisy, ~graph.active))
    return order[jnp.arange(count) % jnp.sum(graph.active)].astype(jnp.int32)


def frontier(graph: LevelGraph, *, max_children: int = 5) -> Array:
    """Computes the levels from which the next ones are made.

    These are the levels of grade A or B with fewer than `max_children` children, none of which is of grade A, B or C;
    if there are none, all levels of grade A.

    Args:
        graph: graph of C places.
        max_children: greatest number of children of one level. Paper: 5.

    Returns:
        Bool `[C]`.

    References:
        Mitsides, Faldor and Cully (2026), Dreaming in code for curriculum learning in open-ended worlds.
    """
    grade = grades(graph)
    orphan = jnp.where(graph.parent < 0, grade.size, graph.parent)  # Dropped below.
    children = jnp.zeros_like(grade).at[orphan].add(1, mode="drop")
    good = jnp.zeros_like(grade).at[orphan].add((grade >= 1).astype(jnp.int32), mode="drop")
    found = (grade >= 2) & (children < max_children) & (good == 0)
    return jnp.where(jnp.any(found), found, grade == 3)


def choose_parents(graph: LevelGraph, key: Array, count: int, *, strict: bool = True) -> Array:
    """Chooses levels from which others are made.

    Args:
        graph: graph of C places.
        key: PRNG key that breaks ties.
        count: k, number of levels.
        strict: whether to take the levels of the `frontier` with the highest scores; False takes any level that was
            played.

    Returns:
        int32 `[k]`, places; repeated if there are fewer; -1 if there are none.
    """
    eligible = frontier(graph) if strict else graph.success >= 0.0
    value = level_scores(graph) if strict else jnp.zeros_like(graph.success)
    tie = jax.random.uniform(key, value.shape)
    order = jnp.lexsort((tie, -value, ~eligible))
    total = jnp.sum(eligible)
    chosen = order[jnp.arange(count) % jnp.maximum(total, 1)]
    return jnp.where(total > 0, chosen, -1).astype(jnp.int32)


def add_children(graph: LevelGraph, key: Array, parents: Array, sizes: Sequence[int]) -> tuple[LevelGraph, Array]:
    """Makes levels by one edit each: one field, drawn uniformly, is one more than the parent's.

    A level that exists already is not made again, and none is made if the graph is full.

    Args:
        graph: graph of C places.
        key: PRNG key.
        parents: int32 `[k]`, places of the parents, -1 for none.
        sizes: number of values of each field, F of them.

    Returns:
        The graph, with inactive children, and their places int32 `[k]`, -1 if none was made.
    """
    places = jnp.arange(graph.success.size)

    def make(graph: LevelGraph, one: tuple[Array, Array]) -> tuple[LevelGraph, Array]:
        parent, key = one
        edits = graph.fields[parent][None] + jnp.eye(len(sizes), dtype=jnp.int32)
        same = jnp.all(edits[:, None] == graph.fields[None], axis=-1) & (places < graph.size)[None]
        valid = jnp.all(edits < jnp.asarray(sizes)[None], axis=-1) & ~jnp.any(same, axis=-1)
        edit = jax.random.categorical(key, jnp.where(valid, 0.0, -jnp.inf))
        made = jnp.any(valid) & (parent >= 0) & (graph.size < places.size)
        at = jnp.where(made, graph.size, places.size)  # An index out of range writes nothing.
        graph = graph.replace(
            fields=graph.fields.at[at].set(edits[edit], mode="drop"),
            parent=graph.parent.at[at].set(parent, mode="drop"),
            size=graph.size + made,
        )
        return graph, jnp.where(made, at, -1).astype(jnp.int32)

    return jax.lax.scan(make, graph, (parents, jax.random.split(key, parents.size)))


def record(graph: LevelGraph, won: Array, ended: Array, session: Array) -> LevelGraph:
    """Sets the shares of won episodes for the levels that were played.

    Args:
        graph: graph of C places.
        won: float32 `[C]`, numbers of episodes of the session that were won.
        ended: float32 `[C]`, numbers of episodes that ended; levels without any are unchanged.
        session: int32, current session.
    """
    seen = ended > 0.0
    return graph.replace(
        success=jnp.where(seen, won / jnp.maximum(ended, 1.0), graph.success),
        played=jnp.where(seen, session, graph.played),
    )


def activate(graph: LevelGraph, places: Array, *, capacity: int) -> LevelGraph:
    """Activates new levels, one after the other: in addition while there is room, else replacing the lowest score.

    Args:
        graph: graph of C places.
        places: int32 `[k]`, -1 for none; levels without a finished episode are unchanged.
        capacity: greatest number of active levels. A new level with the same score as the worst one replaces it.
    """

    def enter(graph: LevelGraph, place: Array) -> tuple[LevelGraph, None]:
        score = level_scores(graph)
        full = jnp.sum(graph.active) >= capacity
        worst = jnp.argmin(jnp.where(graph.active, score, jnp.inf))
        enters = (place >= 0) & (graph.success[place] >= 0.0) & (~full | (score[place] >= score[worst]))
        active = graph.active.at[worst].set(graph.active[worst] & ~full).at[place].set(True)
        return graph.replace(active=jnp.where(enters, active, graph.active)), None

    return jax.lax.scan(enter, graph, places)[0]

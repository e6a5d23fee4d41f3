"""A graph of levels that were made from one another: whose turn it is to be a parent, and which are trained on."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.levels import LevelArchive, level_weights
from jaxagents.types import Array


@struct.dataclass
class LevelGraph:
    """Levels of F whole numbers, in the order in which they were made; C places.

    Attributes:
        fields: int32 `[C, F]`.
        parent: int32 `[C]`, place of the level from which it was made; -1 where there is none.
        success: float32 `[C]`, share of the episodes won when it was played last; -1 where none ended.
        active: bool `[C]`, it is trained on.
        played: int32 `[C]`, session in which it was played last.
        size: int32, levels so far.
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
    """Computes the quarter that the share of won episodes is in, 0 to 3, int32 `[C]`; -1 where nothing is known."""
    return jnp.where(graph.success < 0.0, -1, jnp.minimum(4.0 * graph.success, 3.0)).astype(jnp.int32)


def level_scores(graph: LevelGraph) -> Array:
    """Computes `p (1 - p)` of the share p of won episodes, float32 `[C]`; 0 where nothing is known."""
    share = jnp.maximum(graph.success, 0.0)
    return share * (1.0 - share)


def draw_active(
    graph: LevelGraph, key: Array, count: int, session: Array, *, temperature: float = 1.0, staleness: float = 0.3
) -> Array:
    """Draws different active levels, by rank of their scores and by the sessions since they were played.

    Args:
        graph: with one active level at least.
        key: PRNG key.
        count: n.
        session: int32.
        temperature: see `level_weights`. Paper: 1, the default.
        staleness: see `level_weights`. Paper: 0.3, the default.

    Returns:
        int32 `[n]`, places; where fewer are active, the same ones again and again.
    """
    score = jnp.where(graph.active, level_scores(graph), -jnp.inf)
    archive = LevelArchive(
        levels=graph.fields, score=score, max_return=score, played=graph.played, count=jnp.asarray(session)
    )
    weights = level_weights(archive, temperature=temperature, staleness=staleness)
    # Adding Gumbel noise and taking the greatest draws one after the other without replacement.
    noisy = jnp.where(graph.active, jnp.log(weights) + jax.random.gumbel(key, weights.shape), -jnp.inf)
    # A weight of zero is still before levels that are not active.
    order = jnp.lexsort((-noisy, ~graph.active))
    return order[jnp.arange(count) % jnp.sum(graph.active)].astype(jnp.int32)


def frontier(graph: LevelGraph, *, max_children: int = 5) -> Array:
    """Computes which levels the next ones are made from.

    Those of grade A or B with fewer than `max_children` children, none of which is of grade A, B or C; if there are
    none, all of grade A.

    Args:
        graph: of C places.
        max_children: of one level. Paper: 5.

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
    """Chooses levels to make others from.

    Args:
        graph: of C places.
        key: PRNG key, of what is equal otherwise.
        count: k.
        strict: False takes any level that was played, in place of those of the `frontier` with the highest scores.

    Returns:
        int32 `[k]`, places; where there are fewer, the same ones again and again; -1 where there are none.
    """
    eligible = frontier(graph) if strict else graph.success >= 0.0
    value = level_scores(graph) if strict else jnp.zeros_like(graph.success)
    tie = jax.random.uniform(key, value.shape)
    order = jnp.lexsort((tie, -value, ~eligible))
    total = jnp.sum(eligible)
    chosen = order[jnp.arange(count) % jnp.maximum(total, 1)]
    return jnp.where(total > 0, chosen, -1).astype(jnp.int32)


def add_children(graph: LevelGraph, key: Array, parents: Array, sizes: Sequence[int]) -> tuple[LevelGraph, Array]:
    """Makes levels by one edit each: a field, drawn uniformly, is one more than the parent's.

    A level that was made before is not made again, and none is where the graph is full.

    Args:
        graph: of C places.
        key: PRNG key.
        parents: int32 `[k]`, places, -1 for none.
        sizes: values of each field, F of them.

    Returns:
        The graph, with children that are not active, and their places int32 `[k]`, -1 where none was made.
    """
    places = jnp.arange(graph.success.size)

    def make(graph: LevelGraph, one: tuple[Array, Array]) -> tuple[LevelGraph, Array]:
        parent, key = one
        edits = graph.fields[parent][None] + jnp.eye(len(sizes), dtype=jnp.int32)
        same = jnp.all(edits[:, None] == graph.fields[None], axis=-1) & (places < graph.size)[None]
        valid = jnp.all(edits < jnp.asarray(sizes)[None], axis=-1) & ~jnp.any(same, axis=-1)
        edit = jax.random.categorical(key, jnp.where(valid, 0.0, -jnp.inf))
        made = jnp.any(valid) & (parent >= 0) & (graph.size < places.size)
        at = jnp.where(made, graph.size, places.size)  # Outside, nothing is written.
        graph = graph.replace(
            fields=graph.fields.at[at].set(edits[edit], mode="drop"),
            parent=graph.parent.at[at].set(parent, mode="drop"),
            size=graph.size + made,
        )
        return graph, jnp.where(made, at, -1).astype(jnp.int32)

    return jax.lax.scan(make, graph, (parents, jax.random.split(key, parents.size)))


def record(graph: LevelGraph, won: Array, ended: Array, session: Array) -> LevelGraph:
    """Sets the shares of won episodes of the levels that were played.

    Args:
        graph: of C places.
        won: float32 `[C]`, episodes of the session that were won.
        ended: float32 `[C]`, episodes of the session; of levels without any, nothing changes.
        session: int32.
    """
    seen = ended > 0.0
    return graph.replace(
        success=jnp.where(seen, won / jnp.maximum(ended, 1.0), graph.success),
        played=jnp.where(seen, session, graph.played),
    )


def activate(graph: LevelGraph, places: Array, *, capacity: int) -> LevelGraph:
    """Makes new levels active, one after the other: while few are, or in place of the one of the lowest score.

    Args:
        graph: of C places.
        places: int32 `[k]`, -1 for none; levels without a finished episode stay as they are.
        capacity: most active levels. A new one whose score is that of the worst takes its place.
    """

    def enter(graph: LevelGraph, place: Array) -> tuple[LevelGraph, None]:
        score = level_scores(graph)
        full = jnp.sum(graph.active) >= capacity
        worst = jnp.argmin(jnp.where(graph.active, score, jnp.inf))
        enters = (place >= 0) & (graph.success[place] >= 0.0) & (~full | (score[place] >= score[worst]))
        active = graph.active.at[worst].set(graph.active[worst] & ~full).at[place].set(True)
        return graph.replace(active=jnp.where(enters, active, graph.active)), None

    return jax.lax.scan(enter, graph, places)[0]

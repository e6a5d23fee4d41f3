"""The graph of levels: grades, frontier, parents, edits, draws and who is active, against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.level_graph import (
    activate,
    add_children,
    choose_parents,
    draw_active,
    frontier,
    grades,
    init_graph,
    level_scores,
    record,
)

KEY = jax.random.key(0)
SIZES = (2, 3)


def graph_of(success, parent=None, active=None, played=None, capacity=None):
    """Makes a graph of one level per success; capacity more places are free."""
    count = len(success)
    graph = init_graph(jnp.zeros((count, 2), jnp.int32), capacity or count)
    success = jnp.asarray(success, jnp.float32)
    graph = graph.replace(success=graph.success.at[:count].set(success))
    if parent is not None:
        graph = graph.replace(parent=graph.parent.at[:count].set(jnp.asarray(parent)))
    if active is not None:
        graph = graph.replace(active=graph.active.at[:count].set(jnp.asarray(active, bool)))
    if played is not None:
        graph = graph.replace(played=graph.played.at[:count].set(jnp.asarray(played)))
    return graph


def test_grades_are_quarters_of_success():
    graph = graph_of([-1.0, 0.0, 0.24, 0.25, 0.49, 0.5, 0.74, 0.75, 1.0])
    np.testing.assert_array_equal(grades(graph), [-1, 0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_allclose(level_scores(graph)[jnp.array([0, 1, 3, 5, 8])], [0.0, 0.0, 0.1875, 0.25, 0.0])


def eligible(success, parent, most):
    """Says the rule in plain Python, of the official selection.py."""
    found = []
    for level, own in enumerate(success):
        children = [child for child, one in enumerate(parent) if one == level]
        if own >= 0.5 and len(children) < most and not any(success[child] >= 0.25 for child in children):
            found.append(level)
    return found or [level for level, own in enumerate(success) if own >= 0.75]


def test_the_frontier_is_that_of_the_rule():
    generator, best, sizes = np.random.default_rng(0), jax.jit(frontier, static_argnames="max_children"), set()
    for _ in range(200):
        success = generator.choice([-1.0, 0.1, 0.3, 0.6, 0.9], 8, p=[0.2, 0.4, 0.1, 0.1, 0.2])
        parent = [-1, *(int(generator.integers(index)) for index in range(1, 8))]
        found = np.flatnonzero(best(graph_of(success, parent), max_children=2)).tolist()
        assert found == eligible(success, parent, 2)
        sizes.add(len(found))
    assert {0, 1, 2} <= sizes


def test_parents_are_those_of_the_frontier_with_the_highest_scores():
    # Level 1 has a good child, level 5 is not good enough itself: 3, 2 and 4 are left, in the order of p (1 - p).
    graph = graph_of([-1.0, 0.6, 0.8, 0.5, 0.9, 0.3], parent=[-1, -1, -1, -1, -1, 1])
    assert choose_parents(graph, KEY, 2).tolist() == [3, 2]
    assert choose_parents(graph, KEY, 5).tolist() == [3, 2, 4, 3, 2]
    free = choose_parents(graph, KEY, 5, strict=False)
    assert sorted(free.tolist()) == [1, 2, 3, 4, 5]
    assert any(choose_parents(graph, jax.random.key(s), 5, strict=False).tolist() != free.tolist() for s in range(1, 4))
    nothing = graph_of([-1.0, 0.2])
    assert choose_parents(nothing, KEY, 2).tolist() == [-1, -1]


def test_children_are_harder_by_one_edit_and_never_made_twice():
    graph = init_graph(jnp.zeros((1, 2), jnp.int32), 6)
    add = jax.jit(add_children, static_argnames="sizes")
    graph, made = add(graph, KEY, jnp.array([0, 0, 0, -1]), SIZES)
    # Two edits of the first level are all there are.
    assert made.tolist() == [1, 2, -1, -1] and int(graph.size) == 3
    assert sorted(graph.fields[:3].tolist()) == [[0, 0], [0, 1], [1, 0]] and graph.parent.tolist()[:3] == [-1, 0, 0]
    assert graph.active.tolist() == [True] + [False] * 5
    for key in jax.random.split(KEY, 3):
        graph, _ = add(graph, key, jnp.array([1, 2, 3, 4]), SIZES)
    # All levels of two times three values were made, each next to its parent.
    assert sorted(graph.fields.tolist()) == [[a, b] for a in range(2) for b in range(3)] and int(graph.size) == 6
    fields, parent = np.asarray(graph.fields), np.asarray(graph.parent)
    assert all((fields[level] - fields[parent[level]]).sum() == 1 for level in range(1, 6))
    full, made = add(init_graph(jnp.zeros((1, 2), jnp.int32), 2), KEY, jnp.array([0, 0]), SIZES)
    assert made.tolist() == [1, -1] and int(full.size) == 2


def test_only_what_was_played_is_recorded():
    graph = record(graph_of([-1.0, 0.5, 0.5]), jnp.array([3.0, 0.0, 0.0]), jnp.array([4.0, 2.0, 0.0]), jnp.int32(7))
    assert graph.success.tolist() == [0.75, 0.0, 0.5] and graph.played.tolist() == [7, 7, 0]


def test_new_levels_enter_while_few_are_active_and_then_for_the_worst():
    # Scores are 0.09, 0.25, 0.24 and 0.
    graph = graph_of([0.1, 0.5, 0.6, 0.0, -1.0], active=[True, True, False, False, False])
    assert activate(graph, jnp.array([2, -1]), capacity=3).active.tolist() == [True, True, True, False, False]
    assert activate(graph, jnp.array([2, 3]), capacity=2).active.tolist() == [False, True, True, False, False]
    assert activate(graph, jnp.array([3, 4]), capacity=2).active.tolist() == [True, True, False, False, False]
    assert activate(graph, jnp.array([3, 4]), capacity=4).active.tolist() == [True, True, False, True, False]
    # A score that is the same enters.
    same = graph_of([0.25, 0.75, 0.5], active=[True, False, True])
    assert activate(same, jnp.array([1]), capacity=2).active.tolist() == [False, True, True]


def test_draws_are_by_rank_and_staleness_without_replacement():
    graph = graph_of([0.5, 0.9, 0.7, 0.5, 0.0], active=[True, True, True, False, True], played=[3, 2, 3, 0, 0])
    # Ranks 1, 3, 2 and 4 of the active ones; ages 1, 2, 1 and 4 in session 4.
    rank, age = np.array([1.0, 3.0, 2.0, 4.0]), np.array([1.0, 2.0, 1.0, 4.0])
    expected = 0.7 * (1 / rank) / (1 / rank).sum() + 0.3 * age / age.sum()
    draw = jax.jit(
        jax.vmap(lambda key: draw_active(graph, key, 6, jnp.int32(4), temperature=1.0, staleness=0.3)),
    )
    places = np.asarray(draw(jax.random.split(KEY, 20000)))
    first = np.bincount(places[:, 0], minlength=5) / len(places)
    np.testing.assert_allclose(first, [*expected[:3], 0.0, expected[3]], atol=0.015)
    # The second of two draws without replacement.
    active = [0, 1, 2, 4]
    second = sum(expected[i] * np.where(np.arange(4) == i, 0.0, expected / (1 - expected[i])) for i in range(4))
    np.testing.assert_allclose(np.bincount(places[:, 1], minlength=5)[active] / len(places), second, atol=0.015)
    np.testing.assert_array_equal(np.sort(places[:, :4]), np.tile(active, (len(places), 1)))
    np.testing.assert_array_equal(places[:, 4:], places[:, :2])


@pytest.mark.parametrize("staleness", [0.0, 1.0])
def test_levels_of_no_weight_are_drawn_before_those_that_are_not_active(staleness):
    graph = graph_of([0.5, 0.0, 0.5], active=[True, True, False], played=[2, 4, 0])
    places = draw_active(graph, KEY, 2, jnp.int32(4), temperature=1.0, staleness=staleness)
    assert sorted(places.tolist()) == [0, 1]

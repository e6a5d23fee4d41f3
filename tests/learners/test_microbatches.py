"""Microbatches: every row that took place counts once, empty ones are not looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.learners.microbatches import make_microbatches
from jaxagents.types import Layout

HISTORY = Layout(prompt=1, observation=2, thought=0, action=1, num_turns=8, context_turns=8)
MARKOV = HISTORY._replace(prompt=0, context_turns=1)
NUM_TURNS = jnp.array([8, 0, 3, 1, 5, 0, 2])


def tokens(num_turns):
    """Returns rows `[N, T, S]` of ones where a turn took place and elsewhere NaN, which must not be read."""
    took_place = jnp.arange(8)[None] < num_turns[:, None]
    return jnp.broadcast_to(jnp.where(took_place, 1.0, jnp.nan)[:, :, None], (7, 8, HISTORY.turn))


@pytest.mark.parametrize("size", [1, 40, 1000])
def test_the_sum_is_that_of_all_rows(size):
    microbatches = make_microbatches(HISTORY, microbatch_tokens=size)
    rows = jnp.nan_to_num(tokens(NUM_TURNS)) * jnp.arange(1.0, 8.0)[:, None, None]
    total = microbatches.total(lambda rows, turns: {"sum": jnp.sum(rows[:, :turns])}, rows, NUM_TURNS)
    np.testing.assert_allclose(total["sum"], np.sum(3 * np.asarray(NUM_TURNS) * np.arange(1.0, 8.0)))


def test_rows_are_cut_to_a_quarter_of_the_turns_where_they_fit():
    seen = []
    microbatches = make_microbatches(HISTORY, microbatch_tokens=1)

    def function(rows, turns):
        seen.append(turns)
        return jnp.full((), turns, jnp.float32)

    total = microbatches.total(function, jnp.ones((7, 8, HISTORY.turn)), NUM_TURNS)
    assert set(seen) == {2, 4, 6, 8}
    assert float(total) == 8 + 4 + 2 + 6 + 2  # for 8, 3, 1, 5 and 2 turns


@pytest.mark.parametrize("layout", [HISTORY, MARKOV])
@pytest.mark.parametrize("size", [1, 1000])
def test_each_gives_every_row_its_own_result(layout, size):
    microbatches = make_microbatches(layout, microbatch_tokens=size)
    num_turns = NUM_TURNS if layout is HISTORY else jnp.minimum(NUM_TURNS, 1)
    rows = jnp.broadcast_to(jnp.arange(7.0)[:, None, None], (7, 8 if layout is HISTORY else 1, layout.turn))
    each = jax.jit(lambda: microbatches.each(lambda rows, turns: rows[:, :turns] * 2.0, rows, num_turns))
    for row, turns in enumerate(np.asarray(num_turns)):
        result = np.asarray(each())[row]
        np.testing.assert_array_equal(result[:turns], 2.0 * row)
        assert turns or not result.any()


def test_nothing_at_all_is_zero():
    microbatches = make_microbatches(HISTORY)
    assert float(microbatches.total(lambda rows, _: jnp.sum(rows), jnp.ones((3, 8, 3)), jnp.zeros(3, jnp.int32))) == 0.0


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="`microbatch_tokens` must be at least 1, got 0"):
        make_microbatches(HISTORY, microbatch_tokens=0)


def test_side_by_side_all_look_at_the_turns_of_the_longest():
    """Seeds that train side by side compute one of the four lengths, not all of them."""
    count = []
    microbatches = make_microbatches(HISTORY, microbatch_tokens=1000)

    def function(rows, turns):
        jax.debug.callback(lambda rows: count.append(turns), rows)
        return jnp.sum(rows[:, :turns])

    num_turns = jnp.stack([jnp.minimum(NUM_TURNS, 1), jnp.minimum(NUM_TURNS, 3), 0 * NUM_TURNS])
    rows = jnp.nan_to_num(jax.vmap(tokens)(num_turns))
    totals = jax.jit(jax.vmap(lambda *given: microbatches.total(function, *given)))(rows, num_turns)
    jax.effects_barrier()
    np.testing.assert_array_equal(totals, 3 * jnp.sum(num_turns, axis=1))
    assert set(count) == {4}  # Of 2, 4, 6 and 8 turns.

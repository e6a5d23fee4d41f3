"""Choices in batches: the results of `jax.lax.cond`, without what no row of the batch asks for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.conditions import cond, max_of_batch


def double(x, key):
    return {"sum": jnp.sum(x), "x": 2.0 * x + jax.random.uniform(key)}


def leave(x, key):
    del key
    return {"sum": jnp.zeros(()), "x": x}


ROWS = jnp.arange(6.0).reshape(3, 2)
KEYS = jax.random.split(jax.random.key(0), 3)


@pytest.mark.parametrize("predicate", [[True, False, True], [False] * 3, [True] * 3])
@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, 0), (0, None, None), (None, 0, None)])
def test_results_are_those_of_cond(predicate, axes):
    given = (jnp.asarray(predicate), ROWS, KEYS)
    operands = tuple(leaf[0] if axis is None else leaf for leaf, axis in zip(given, axes, strict=True))
    expected = jax.vmap(lambda p, *rest: jax.lax.cond(p, double, leave, *rest), axes)(*operands)
    actual = jax.jit(jax.vmap(lambda p, *rest: cond(p, double, leave, *rest), axes))(*operands)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_sides_may_close_over_what_is_mapped_and_average_over_a_named_axis():
    def mean_if(choice):
        def of_row(predicate, x, y):
            due = jax.lax.pmin(predicate.astype(jnp.int32), "device") > 0
            return choice(due, lambda: jax.lax.pmean(x * y, "device"), lambda: x)

        return jax.vmap(of_row, axis_name="device")

    for holds in (True, False):
        given = jnp.full(3, holds), ROWS, ROWS + 1.0
        np.testing.assert_array_equal(mean_if(cond)(*given), mean_if(jax.lax.cond)(*given))
    assert not np.array_equal(mean_if(cond)(jnp.ones(3, bool), ROWS, ROWS + 1.0), ROWS * (ROWS + 1.0))


def test_gradients_are_those_of_cond():
    def loss(choice, x):
        return choice(x > 0.0, lambda x: x * x, lambda x: 3.0 * x, x)

    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: loss(cond, x)))(jnp.array([2.0, -1.0])), [4.0, 3.0])
    np.testing.assert_array_equal(
        jax.grad(lambda x: jnp.sum(jax.vmap(lambda x: loss(cond, x))(x)))(jnp.array([2.0, -1.0])), [4.0, 3.0]
    )


def test_batches_of_batches_are_those_of_cond():
    predicate = jnp.asarray([[True, False, True], [False, False, False]])
    rows = jnp.arange(12.0).reshape(2, 3, 2)

    def over(choice):
        inner = jax.vmap(lambda p, x, key: choice(p, double, leave, x, key))
        return jax.vmap(inner, in_axes=(0, 0, None))(predicate, rows, KEYS)

    jax.tree.map(np.testing.assert_array_equal, over(cond), over(jax.lax.cond))


@pytest.mark.parametrize(("predicate", "calls"), [([False, False], 0), ([False, True], 2)])
def test_a_side_that_no_row_takes_is_not_computed(predicate, calls):
    count = []

    def computed(x):
        jax.debug.callback(lambda x: count.append(float(x)), x)
        return x + 1.0

    program = jax.jit(jax.vmap(lambda p, x: cond(p, computed, lambda x: x, x)))
    result = program(jnp.asarray(predicate), jnp.arange(2.0))
    jax.effects_barrier()
    assert len(count) == calls
    np.testing.assert_array_equal(result, jnp.where(jnp.asarray(predicate), jnp.arange(2.0) + 1.0, jnp.arange(2.0)))


def test_the_greatest_number_of_a_batch_chooses_for_all_of_it():
    numbers = jnp.asarray([[0, 2], [1, 0]])
    assert int(max_of_batch(numbers[0, 1])) == 2
    np.testing.assert_array_equal(jax.vmap(max_of_batch)(numbers[0]), [2, 2])
    np.testing.assert_array_equal(jax.vmap(jax.vmap(max_of_batch))(numbers), jnp.full((2, 2), 2))
    program = jax.make_jaxpr(jax.vmap(lambda n: jax.lax.switch(max_of_batch(n), [lambda: 0, lambda: 1, lambda: 2])))
    assert "select_n" not in str(program(numbers[0])) and "cond" in str(program(numbers[0]))

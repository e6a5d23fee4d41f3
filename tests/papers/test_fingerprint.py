"""The hash of a traced function: what counts, and what does not."""

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.conditions import cond
from jaxagents.papers.fingerprint import fingerprint

X = jax.ShapeDtypeStruct((3,), jnp.float32)
TABLE = np.arange(3.0, dtype=np.float32)


def loss(x, y):
    swing = jnp.sin(x)
    total, _ = jax.lax.scan(lambda carry, one: (carry * one + 1.0, None), jnp.float32(2.0), swing)
    return {"loss": total + jnp.sum(jnp.where(y > 0, y, TABLE))}


def other_words(first, second):
    """Computes the same: other names, another order, something nobody uses, and a function compiled within."""
    jnp.exp(first)
    chosen = jax.jit(lambda values: jnp.where(values > 0, values, TABLE))(second)

    def step(before, factor):
        return 1.0 + factor * before, None

    result, _ = jax.lax.scan(step, jnp.float32(2.0), jnp.sin(first))
    return {"loss": jnp.sum(chosen) + result}


def in_another_order(first, second):
    chosen = jnp.where(second > 0, second, TABLE)
    result, _ = jax.lax.scan(lambda carry, one: (carry * one + 1.0, None), jnp.float32(2.0), jnp.sin(first))
    return {"loss": jnp.sum(chosen) + result}


def test_the_same_in_other_words_has_the_same_hash():
    assert fingerprint(loss, X, X) == fingerprint(other_words, X, X)
    gradients = [jax.grad(lambda x, y, f=f: f(x, y)["loss"]) for f in (loss, in_another_order)]
    assert fingerprint(gradients[0], X, X) == fingerprint(gradients[1], X, X)
    assert fingerprint(jax.jit(loss), X, X) == fingerprint(loss, X, X)


@pytest.mark.parametrize("loop", ["while", "scan", "cond"])
def test_what_a_loop_or_a_choice_is_given_counts_by_what_it_is_not_by_how(loop):
    def run(choose, x, table):
        if loop == "while":
            return jax.lax.while_loop(lambda carry: carry[0] < x[0], lambda carry: choose(carry, table), x)
        if loop == "scan":
            return jax.lax.scan(lambda carry, _: (choose(carry, table), None), x, length=3)[0]
        return jax.lax.cond(x[0] > 0, lambda: choose(x, table), lambda: x)

    def choose(values, table):
        return jnp.where(values > 0, values, table)

    direct, within, other, given = (
        fingerprint(functools.partial(run, choose, table=TABLE), X),
        fingerprint(functools.partial(run, jax.jit(choose), table=TABLE), X),
        fingerprint(functools.partial(run, choose, table=TABLE + np.float32(1.0)), X),
        fingerprint(lambda x: run(choose, x, x * 2.0), X),
    )
    assert direct == within and len({direct, other, given}) == 3
    assert given != fingerprint(lambda x: run(choose, x, x * 3.0), X)


def test_a_choice_that_stays_one_in_a_batch_is_a_choice():
    def chosen(choose):
        return lambda x, y: choose(jnp.any(y > 0), lambda x: jnp.sin(x), lambda x: x, x)

    def twice(x, y):
        def again(x):
            return jax.lax.cond(jnp.all(y > 0), lambda x: jnp.sin(x), lambda x: x, x)

        return jax.lax.cond(jnp.any(y > 0), again, lambda x: x, x)

    assert fingerprint(chosen(cond), X, X) == fingerprint(chosen(jax.lax.cond), X, X) != fingerprint(twice, X, X)
    batch = [jax.ShapeDtypeStruct((2, 3), jnp.float32)] * 2
    assert fingerprint(jax.vmap(chosen(cond)), *batch) != fingerprint(jax.vmap(chosen(jax.lax.cond)), *batch)


def test_rounds_of_a_loop_are_not_those_of_the_loop_around_it():
    def within(choose):
        def around(i, x):
            return jax.lax.fori_loop(0, 2, lambda j, y: y * choose(i, j, x, y), x)

        return fingerprint(lambda x: jax.lax.fori_loop(0, 2, around, x), X)

    choices = (lambda i, j, x, y: i, lambda i, j, x, y: j, lambda i, j, x, y: x, lambda i, j, x, y: y)
    assert len({within(choose) for choose in choices}) == 4


def renamed(x, y):
    return {"cost": loss(x, y)["loss"]}


def swapped(x, y):
    return loss(y, x)


def another_constant(x, y):
    total, _ = jax.lax.scan(lambda carry, one: (carry * one + 1.5, None), jnp.float32(2.0), jnp.sin(x))
    return {"loss": total + jnp.sum(jnp.where(y > 0, y, TABLE))}


def another_table(x, y):
    total, _ = jax.lax.scan(lambda carry, one: (carry * one + 1.0, None), jnp.float32(2.0), jnp.sin(x))
    return {"loss": total + jnp.sum(jnp.where(y > 0, y, TABLE + np.float32(1.0)))}


def backwards(x, y):
    total, _ = jax.lax.scan(lambda carry, one: (carry * one + 1.0, None), jnp.float32(2.0), jnp.sin(x), reverse=True)
    return {"loss": total + jnp.sum(jnp.where(y > 0, y, TABLE))}


def printing(x, y):
    jax.debug.print("{}", x)
    return loss(x, y)


@pytest.mark.parametrize("other", [renamed, swapped, another_constant, another_table, backwards, printing])
def test_what_computes_something_else_has_another_hash(other):
    assert fingerprint(loss, X, X) != fingerprint(other, X, X)


def test_shapes_types_and_keys_count():
    wide = jax.ShapeDtypeStruct((4,), jnp.float32)
    assert fingerprint(jnp.sin, X) != fingerprint(jnp.sin, wide)
    assert fingerprint(jnp.abs, X) != fingerprint(jnp.abs, jax.ShapeDtypeStruct((3,), jnp.int32))
    draws = [functools.partial(lambda seed, x: x + jax.random.normal(jax.random.key(seed), (3,)), s) for s in (0, 0, 1)]
    first, same, other = (fingerprint(draw, X) for draw in draws)
    assert first == same != other
    subtract = fingerprint(lambda x, y: x - y, X, X)
    assert subtract != fingerprint(lambda x, y: y - x, X, X)  # Only sums and products have no order.


def test_another_process_finds_the_same_hash():
    code = "import test_fingerprint as t; print(t.fingerprint(t.loss, t.X, t.X))"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == fingerprint(loss, X, X)

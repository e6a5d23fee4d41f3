"""Grades of calls by hand, of the formulas of qiancheng0/ToolRL@8cee13e rlla.py:131-198 and TL-Training@77c875a."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.call_grades import Call, errors, match, toolrl

RIGHT = (0, 4, [1, 20, 6, 30])  # Name 4, with 1: 20 and 6: 30.
# (verb, name, pairs): name, keys, values, missing, invented; ToolRL fine, intermediate, coarse; error.
CASES = {
    # match = 1 + 1 + 2 of 1 + 1 + 2: 1 + 6 - 3.
    "exact": (RIGHT, (1, 1, 2, 0, 0), (4.0, 4.0, 4.0), 1.0),
    "in another order": ((0, 4, [6, 30, 1, 20]), (1, 1, 2, 0, 0), (4.0, 4.0, 4.0), 1.0),
    "a wrong value": ((0, 4, [1, 21, 6, 30]), (1, 1, 1, 0, 0), (1 + 6 * 3 / 4 - 3, 1 + 6 / 2 - 3, -2.0), -0.25),
    "a key is missing": ((0, 4, [1, 20, -1, -1]), (1, 1 / 2, 1, 1, 0), (1 + 6 * 2.5 / 4 - 3, 1.0, -2.0), -0.5),
    "a wrong key": ((0, 4, [1, 20, 2, 30]), (1, 1 / 3, 1, 1, 1), (1 + 6 * (2 + 1 / 3) / 4 - 3, 1.0, -2.0), -1.3),
    "a key twice": ((0, 4, [1, 20, 1, 20]), (1, 1 / 2, 1, 1, 0), (1 + 6 * 2.5 / 4 - 3, 1.0, -2.0), -0.5),
    "two values of a key": ((0, 4, [1, 20, 1, 21]), (1, 1 / 2, 0, 1, 0), (1 + 6 * 1.5 / 4 - 3, 1.0, -2.0), -0.5),
    "the last value is right": ((0, 4, [1, 21, 1, 20]), (1, 1 / 2, 1, 1, 0), (1 + 6 * 2.5 / 4 - 3, 1.0, -2.0), -0.5),
    "no key is right": ((0, 4, [2, 20, 3, 30]), (1, 0, 0, 2, 2), (1 + 6 * 1 / 4 - 3, 1.0, -2.0), -1.3),
    # Another tool: nothing else is looked at.
    "another name": ((0, 5, [1, 20, 6, 30]), (0, 1, 2, 0, 0), (-2.0, -2.0, -2.0), -1.5),
    "another verb": ((1, 4, [1, 20, 6, 30]), (0, 1, 2, 0, 0), (-2.0, -2.0, -2.0), -1.5),
}


def call(verb, name, pairs):
    return Call(jnp.int32(verb), jnp.asarray([[name, -1, -1, -1], pairs], jnp.int32))


@pytest.mark.parametrize("case", CASES)
def test_calls_are_graded_as_written(case):
    predicted, parts, (fine, intermediate, coarse), error = CASES[case]
    found = match(call(*predicted), call(*RIGHT))
    actual = (found.name, found.keys, found.values, found.missing, found.invented)
    np.testing.assert_allclose(actual, parts, rtol=1e-6)
    read = jnp.bool_(True)
    details = {"fine": fine, "intermediate": intermediate, "coarse": coarse}
    for detail, expected in details.items():
        np.testing.assert_allclose(toolrl(call(*predicted), call(*RIGHT), read, detail=detail), expected, rtol=1e-5)
        smaller = toolrl(call(*predicted), call(*RIGHT), read, detail=detail, scale=1.0)
        np.testing.assert_allclose(smaller, 1 + (expected - 1) / 3, rtol=1e-5)  # The form keeps its weight.
    np.testing.assert_allclose(errors(call(*predicted), call(*RIGHT), read), error)
    # What cannot be read: no point for the form, and the least for the rest.
    np.testing.assert_allclose(toolrl(call(*predicted), call(*RIGHT), ~read), -3.0)
    np.testing.assert_allclose(errors(call(*predicted), call(*RIGHT), ~read), -2.0)


def test_an_invented_key_beside_the_right_ones_is_less_bad_than_one_in_their_place():
    right = call(0, 4, [1, 20, -1, -1])
    np.testing.assert_allclose(errors(call(0, 4, [1, 20, 6, 30]), right, jnp.bool_(True)), -0.8)


def test_fields_of_one_word_are_values_of_their_place_and_calls_need_none():
    right = Call(jnp.int32(1), jnp.asarray([[3], [7], [-1]], jnp.int32))
    wrong = Call(jnp.int32(1), jnp.asarray([[3], [8], [-1]], jnp.int32))
    assert match(right, right).exact and float(match(right, right).num_keys) == 1
    np.testing.assert_allclose(toolrl(wrong, right, jnp.bool_(True)), 1 + 6 * 2 / 3 - 3)  # Name and key, not the value.
    bare = Call(jnp.int32(0), jnp.asarray([[2]], jnp.int32))
    np.testing.assert_allclose(toolrl(bare, bare, jnp.bool_(True)), 4.0)
    np.testing.assert_allclose(errors(bare, bare, jnp.bool_(True)), 1.0)


def test_the_same_under_jit_and_vmap():
    predicted = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[call(*CASES[name][0]) for name in CASES])
    read = jnp.ones(len(CASES), bool)
    actual = jax.jit(jax.vmap(toolrl, in_axes=(0, None, 0)))(predicted, call(*RIGHT), read)
    np.testing.assert_allclose(actual, [CASES[name][2][0] for name in CASES], rtol=1e-5)


def test_another_detail_is_refused():
    with pytest.raises(ValueError, match="`detail` must be one of fine, intermediate, coarse, got 'rough'"):
        toolrl(call(*RIGHT), call(*RIGHT), jnp.bool_(True), detail="rough")


def test_of_a_key_that_comes_twice_the_last_value_counts():
    right = call(0, 4, [1, 20, -1, -1])
    assert not match(call(0, 4, [1, 20, 1, 21]), right).exact and match(call(0, 4, [1, 21, 1, 20]), right).exact
    np.testing.assert_allclose(errors(call(0, 4, [1, 20, 1, 21]), right, jnp.bool_(True)), -0.25)

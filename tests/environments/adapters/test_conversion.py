"""Conversions between what suites say and our types."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters.conversion import (
    cast_like,
    convert_actions,
    convert_space,
    permissive,
    sample_key_task,
    strong_types,
    task_key,
    unbounded_space,
)
from jaxagents.types import Box, Discrete


def test_permissive_lets_foreign_code_promote_ranks():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
    add = permissive(lambda a, b: a + b)
    assert add(jnp.ones((2, 3)), jnp.ones(3)).shape == (2, 3)


def test_key_task_is_plain_data_and_gives_the_key_back():
    key = jax.random.key(7)
    task = sample_key_task(key, level=3)
    assert task["key"].dtype == jnp.uint32
    assert jax.random.key_data(task_key(task)).tolist() == jax.random.key_data(key).tolist()


def test_strong_types_and_cast_like():
    tree = {"time": 0, "weak": jnp.asarray(1.0) * 1, "flag": False}
    strong = strong_types(tree)
    assert {name: leaf.dtype.name for name, leaf in strong.items()} == {
        "time": "int32",
        "weak": "float32",
        "flag": "bool",
    }
    assert not any(leaf.weak_type for leaf in strong.values())
    cast = cast_like({"time": jax.ShapeDtypeStruct((), jnp.float32)}, {"time": 3})
    assert cast["time"].dtype == jnp.float32 and not cast["time"].weak_type


def test_convert_space():
    assert convert_space(SimpleNamespace(n=4)) == Discrete(4)
    largest = np.finfo(np.float32).max
    space = SimpleNamespace(low=np.asarray([-1, -largest], np.float32), high=2.0, shape=(2,), dtype=np.float32)
    assert convert_space(space) == Box((2,), -np.inf, 2.0, np.float32)


@pytest.mark.parametrize(
    ("low", "high", "bounds", "given", "played"),
    [
        ([-1.0, 0.0], [1.0, 4.0], (-1.0, 1.0), [0.5, -0.5], [0.5, 1.0]),
        (-2.0, [2.0, 2.0], (-2.0, 2.0), [0.5, -2.0], [0.5, -2.0]),
        ([-1.0, -np.inf], [1.0, np.finfo(np.float32).max], (-np.inf, np.inf), [3.0, 5.0], [1.0, 5.0]),
    ],
    ids=["unequal", "equal", "unbounded"],
)
def test_actions_stay_within_the_bounds_of_every_number(low, high, bounds, given, played):
    space, to_suite = convert_actions(SimpleNamespace(low=low, high=high, shape=(2,), dtype=np.float32))
    assert space == Box((2,), *bounds, np.float32)
    np.testing.assert_allclose(jax.jit(to_suite)(jnp.array(given)), played)


def test_unbounded_space_knows_the_bounds_of_bool():
    assert unbounded_space((3,), jnp.bool_) == Box((3,), 0.0, 1.0, np.bool_)
    assert unbounded_space((3,), jnp.int8) == Box((3,), dtype=np.int8)

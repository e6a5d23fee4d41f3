"""Splits of tasks: what the hash promises, that no task is on both sides, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.splits import hash_integers, split_tasks

NUM_TASKS = 256


def sample(key, level):
    number = jax.random.randint(key, (2,), 0, 8 * (level + 1))
    return {"number": number, "level": level}


def identify(task):
    return hash_integers(task["number"])


def draw(sampler, level=None):
    keys = jax.random.split(jax.random.key(0), NUM_TASKS)
    return jax.device_get(jax.jit(jax.vmap(lambda key: sampler(key, level)))(keys))


def rows(task):
    return {tuple(row) for row in task["number"].tolist()}


def python_hash(values):
    """The definition of the docstring in the integers of Python."""

    def mix(x):
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            x = ((x ^ (x >> shift)) * factor) % 2**32
        return x ^ (x >> 16)

    salts = [(i * 0x9E3779B9) % 2**32 for i in range(1, len(values) + 1)]
    return mix((sum(mix((value % 2**32) ^ salt) for value, salt in zip(values, salts)) + len(values)) % 2**32)


@pytest.mark.parametrize("values", [[0], [1, 2, 3], [-1, 2**31 - 1, 0, 0]])
def test_hash_is_that_of_the_definition(values):
    array = jnp.asarray(values, jnp.int32)
    assert int(hash_integers(array)) == python_hash(values)
    assert int(jax.jit(hash_integers)(array)) == python_hash(values)
    assert hash_integers(array).dtype == jnp.uint32


def test_hash_depends_on_order_and_length_and_not_on_shape():
    one = hash_integers(jnp.asarray([1, 2, 0]))
    assert int(one) != int(hash_integers(jnp.asarray([2, 1, 0])))
    assert int(one) != int(hash_integers(jnp.asarray([1, 2])))
    assert int(one) == int(hash_integers(jnp.asarray([[1]]), jnp.asarray([2, 0])))
    assert int(hash_integers(jnp.asarray([True]))) == int(hash_integers(jnp.asarray([1])))


def test_hash_mixes_well():
    grid = jnp.stack(jnp.meshgrid(jnp.arange(64), jnp.arange(64)), axis=-1).reshape(-1, 2)
    hashes = np.asarray(jax.vmap(hash_integers)(grid))
    assert len(set(hashes.tolist())) == len(hashes)
    bits = (hashes[:, None] >> np.arange(32, dtype=np.uint32)[None, :]) & 1
    # Five standard deviations of the mean of 4096 fair coins.
    np.testing.assert_allclose(bits.mean(axis=0), 0.5, atol=5 * 0.5 / 64)


def test_hash_refuses_floats():
    with pytest.raises(ValueError, match="`arrays` must be of integers or bools, got int32, float32"):
        hash_integers(jnp.zeros(2, jnp.int32), jnp.zeros(2))


@pytest.mark.parametrize("level", [None, 0, 1])
def test_no_task_is_on_both_sides(level):
    train, held_out = split_tasks(sample, identify, num_levels=2, held_out_fraction=0.25)
    ours, theirs = rows(draw(train, level)), rows(draw(held_out, level))
    assert ours and theirs and not ours & theirs


def test_a_task_is_on_one_side_whatever_its_level():
    train, held_out = split_tasks(sample, identify, num_levels=2)
    easy, hard = draw(train, 0), draw(held_out, 1)
    assert any(max(row) < 8 for row in rows(hard))
    assert not rows(easy) & rows(hard)


def test_fraction_is_that_of_the_tasks():
    every = jnp.stack(jnp.meshgrid(jnp.arange(8), jnp.arange(8)), axis=-1).reshape(-1, 2)
    expected = float(jnp.mean(jax.vmap(hash_integers)(every) < np.uint32(2**31)))
    _, held_out = split_tasks(sample, identify, held_out_fraction=0.5)
    assert 0.3 < expected < 0.7
    assert len(rows(draw(held_out))) <= expected * 64


def test_levels_are_drawn_asked_for_and_clipped():
    train, _ = split_tasks(sample, identify, num_levels=2)
    np.testing.assert_allclose(draw(train)["level"].mean(), 0.5, atol=5 * 0.5 / 16)
    assert (draw(train, 1)["level"] == 1).all() and (draw(train, 7)["level"] == 1).all()
    assert draw(train, -1)["level"].max() == 0
    assert draw(train)["level"].dtype == np.int32


def test_a_sampler_gives_what_its_key_says():
    train, _ = split_tasks(sample, identify)
    one, batch = train(jax.random.split(jax.random.key(0), NUM_TASKS)[3]), draw(train)
    np.testing.assert_array_equal(one["number"], batch["number"][3])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_fractions_that_leave_a_side_empty_are_refused(fraction):
    with pytest.raises(ValueError, match="`held_out_fraction` must be above 0 and below 1"):
        split_tasks(sample, identify, held_out_fraction=fraction)

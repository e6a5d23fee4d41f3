import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.goals import any_goals, known_goals, lowest_success


def test_the_lowest_are_chosen_the_lowest_first():
    success = jnp.array([0.5, 0.1, 0.9, 0.0, 0.3])
    assert lowest_success(jax.random.key(0), success, count=3).tolist() == [3, 1, 4]


def test_of_equal_ones_any_is_chosen():
    success = jnp.array([0.2, 0.0, 0.0, 0.0])
    keys = jax.random.split(jax.random.key(0), 300)
    chosen = jax.jit(jax.vmap(lambda key: lowest_success(key, success, count=2)))(keys)
    assert chosen.dtype == jnp.int32 and 0 not in np.asarray(chosen)
    assert np.bincount(np.ravel(chosen), minlength=4)[1:].min() > 150


def test_any_goals_are_different_and_every_one_is_drawn():
    keys = jax.random.split(jax.random.key(1), 300)
    chosen = np.asarray(jax.jit(jax.vmap(lambda key: any_goals(key, jnp.zeros(4), count=2)))(keys))
    assert np.all(chosen[:, 0] != chosen[:, 1]) and np.bincount(chosen.ravel()).min() > 100


@pytest.mark.parametrize("choose", [lowest_success, any_goals])
def test_more_than_there_are_is_refused(choose):
    with pytest.raises(ValueError, match="`count` must be from 1 to the 4 goals, got 5"):
        choose(jax.random.key(0), jnp.zeros(4), count=5)


def test_known_goals_are_always_the_same():
    chosen = jax.jit(lambda key, success: known_goals(key, success, indices=[2, 0]))
    assert chosen(jax.random.key(0), jnp.zeros(3)).tolist() == chosen(jax.random.key(1), jnp.ones(3)).tolist() == [2, 0]
    for wrong in ([], [3], [-1]):
        with pytest.raises(ValueError, match="`indices` must be from 0 to 2, got"):
            known_goals(jax.random.key(0), jnp.zeros(3), indices=wrong)

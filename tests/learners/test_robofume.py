"""Judges of success: what is a positive, and that a rule is learned from few of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.learners.robofume import label_frames, make_success_judge
from tests.fakes import make_transition


def steps(seen, terminated, truncated):
    """Makes steps `[T, E]` of which only what followed and how matters."""
    return make_transition(
        observation=jnp.full_like(seen, 9.0),
        terminated=terminated,
        truncated=truncated,
        next_observation=seen,
        first=terminated,
    )


def near(radius=0.3, count=4096):
    """Makes frames in a square, of which those near its middle are successes."""
    seen = jax.random.uniform(jax.random.key(1), (count // 8, 8, 2), minval=-1.0)
    done = jnp.linalg.norm(seen, axis=-1) < radius
    return lambda: steps(seen, done, jnp.zeros_like(done))


def test_positives_are_the_last_frames_of_successes():
    seen = jnp.arange(8.0).reshape(4, 2, 1)
    terminated = jnp.asarray([[0, 0], [1, 0], [0, 0], [0, 1]], bool)
    truncated = jnp.asarray([[0, 0], [0, 1], [0, 0], [0, 0]], bool)  # An end without success is none.
    observation, success = label_frames(steps(seen, terminated, truncated))
    np.testing.assert_array_equal(observation[:, 0], range(8))
    np.testing.assert_array_equal(success, [0, 0, 1, 0, 0, 0, 0, 1])


def test_a_judge_learns_what_successes_have_in_common():
    judge = make_success_judge(near(), num_updates=200)
    places = jnp.asarray([[0.0, 0.0], [0.15, 0.1], [0.5, 0.0], [-0.3, 0.4], [0.9, -0.9]])
    np.testing.assert_array_equal(judge(places), [1, 1, 0, 0, 0])
    assert not make_success_judge(near(), num_updates=200, threshold=0.99999999)(places[0])  # It wants to be surer.


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="`threshold` must be in"):
        make_success_judge(near(), threshold=1.0)
    with pytest.raises(ValueError, match="`num_updates` must be"):
        make_success_judge(near(), num_updates=0)
    with pytest.raises(ValueError, match="episodes that succeed"):
        make_success_judge(near(radius=0.0))

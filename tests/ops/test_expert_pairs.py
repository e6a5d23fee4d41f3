"""Pairs of an expert's episodes and own failures, against choices made by hand."""

import jax.numpy as jnp
import numpy as np

from jaxagents.ops.expert_pairs import expert_against_failures
from jaxagents.types import Demonstrated


def test_demonstrations_are_preferred_to_own_failures_alone(make_episode):
    """Two tasks of three own episodes; the expert failed at the second one."""
    shown = make_episode(np.ones((2, 1)), np.ones((2, 1)), group=[0, 1], success=jnp.array([True, False]))
    won = jnp.array([True, False, False, False, True, False])
    own = make_episode(np.arange(6.0)[:, None], np.ones((6, 1)), group=[0, 0, 0, 1, 1, 1], success=won)
    pairs = expert_against_failures(Demonstrated(own=own, demonstration=shown))
    np.testing.assert_array_equal(pairs.pair, [-1, -1, -1, 0, 0, -1, -1, -1])
    np.testing.assert_array_equal(pairs.desirable, [True, False, *won])

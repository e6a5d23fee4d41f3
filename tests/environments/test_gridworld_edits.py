"""Edited mazes: few cells differ, and every goal can still be reached."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.contextual_gridworld import is_connected, sample_layout
from jaxagents.environments.gridworld_edits import edit_layout


def test_edits_change_a_few_cells_and_leave_a_way():
    def play(key):
        old = sample_layout(key, 4, jnp.int32(3))
        new = edit_layout(key, old, num_edits=3)
        return old, new, is_connected(new["walls"], new["start"], new["goal"])

    old, new, connected = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 100))
    changed = np.sum(np.asarray(old["walls"]) != np.asarray(new["walls"]), axis=(1, 2))
    assert np.all(connected) and changed.max() <= 3 and changed.mean() > 1.0
    ends = np.asarray(
        [[one["walls"][(i, *one[name][i])] for i in range(100)] for one in (new,) for name in ("start", "goal")]
    )
    assert not ends.any()
    np.testing.assert_array_equal(new["goal"], old["goal"])
    with pytest.raises(ValueError, match="`num_edits` must be at least 1, got 0"):
        edit_layout(jax.random.key(0), {}, num_edits=0)

"""Encoders of observations with several entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.teams import Entry, Joined
from jaxagents.networks.torsos import MLP

KEY = jax.random.key(0)
OBSERVATION = {"own": jnp.array([[1.0, 2.0]]), "team": jnp.array([[3.0]])}


def test_entries_and_all_of_them():
    # An MLP without layers returns what it is shown.
    own, joined = Entry("own", MLP(())), Joined(MLP(()))
    np.testing.assert_array_equal(own.apply(own.init(KEY, OBSERVATION), OBSERVATION), [[1.0, 2.0]])
    np.testing.assert_array_equal(joined.apply(joined.init(KEY, OBSERVATION), OBSERVATION), [[1.0, 2.0, 3.0]])


def test_missing_entries_are_refused():
    with pytest.raises(ValueError, match=r"`entry` must be .* got 'world' and \['own', 'team'\]; try `team_view`"):
        Entry("world", MLP(())).init(KEY, OBSERVATION)
    with pytest.raises(ValueError, match="`entry` must be .* got 'own' and"):
        Entry("own", MLP(())).init(KEY, jnp.ones((1, 2)))

"""Success by kind of task, by hand, and worlds without the kinds."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import carrying
from jaxagents.studies.omniear import KINDS, by_kind, run


def test_kinds_are_counted_in_turn():
    success = jnp.array([[1, 1, 1, 0, 1, 0, 0], [1, 0, 1, 0, 1, 1, 0]], jnp.float32)
    rates = by_kind(success.reshape(-1))
    np.testing.assert_allclose([rates[f"success_{kind}"] for kind in KINDS], [1.0, 0.5, 1.0, 0.0, 1.0, 0.5, 0.0])
    assert float(rates["success"]) == pytest.approx(4.0 / 7.0) and float(rates["success_single"]) == 0.625
    assert float(rates["gap_pair"]) == 0.375 and float(rates["gap_implied"]) == 0.75


def test_a_world_of_other_levels_is_refused():
    with pytest.raises(ValueError, match="must have the 7 kinds of tasks as levels, got 4 in 'carrying'"):
        run(0, environment=carrying.make_environment(1), policy=None, params=None)

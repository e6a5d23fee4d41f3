"""Units of the coefficients of regularisers."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.losses.regularizer_units import make_of_advantage
from jaxagents.types import Mean


def mean_of(total, count):
    return Mean(total=jnp.float32(total), count=jnp.float32(count))


def test_the_unit_is_a_running_mean_that_batches_without_advantages_leave_alone():
    slot = make_of_advantage(decay=0.5)
    memory, units = slot.init(10), []
    for total, count in ((0.0, 8.0), (8.0, 4.0), (0.0, 4.0), (4.0, 4.0), (0.0, 0.0)):
        unit, summary = slot.apply(memory, mean_of(total, count))
        memory = slot.update(memory, summary)
        units.append(float(unit))
    # Nothing known; 2 alone; still 2; (0.25 x 2 + 0.5 x 1) / 0.75; the same.
    np.testing.assert_allclose(units, [0.0, 2.0, 2.0, 4.0 / 3.0, 4.0 / 3.0], rtol=1e-6)


def test_devices_share_one_unit():
    slot = make_of_advantage()
    shares = Mean(total=jnp.array([6.0, 0.0]), count=jnp.array([2.0, 1.0]))
    unit, summary = jax.vmap(lambda share: slot.apply(slot.init(1), share, axis_name="d"), axis_name="d")(shares)
    np.testing.assert_allclose(unit, [2.0, 2.0], rtol=1e-6)
    memory = slot.update(slot.init(1), jax.tree.map(jnp.sum, summary))
    np.testing.assert_allclose(memory.value, 2.0, rtol=1e-6)

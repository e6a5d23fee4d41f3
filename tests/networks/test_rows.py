"""Leading axes joined to rows and given back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.heads import CategoricalHead, ValueHead
from jaxagents.networks.torsos import MLP, as_rows

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 4, 3, 5), (12, 5)), ((1, 4, 5), (4, 5)), ((2, 4, 5), (2, 4, 5)), ((4, 5), (4, 5))]
)
def test_only_a_time_axis_of_one_element_is_joined(shape, rows):
    values = jnp.arange(float(np.prod(shape))).reshape(shape)
    joined, restore = as_rows(values)
    assert joined.shape == rows
    np.testing.assert_array_equal(restore(joined), values)
    # Results may have lost the last axis.
    np.testing.assert_array_equal(restore(joined.sum(-1)), values.sum(-1))


@pytest.mark.parametrize("module", [MLP((4,)), CategoricalHead(2), ValueHead()])
def test_modules_compute_the_same_for_one_step_as_for_several(module):
    steps = jax.random.normal(KEY, (2, 3, 4, 5))
    params = module.init(KEY, steps)
    each = jnp.concatenate([module.apply(params, steps[t : t + 1]) for t in range(2)])
    np.testing.assert_allclose(each, module.apply(params, steps), rtol=1e-5, atol=1e-6)

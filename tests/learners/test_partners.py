"""Learners with a frozen partner: the pair that acts, and when the copy is renewed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.learners.partners import with_frozen_partner
from jaxagents.types import Learner


@struct.dataclass
class Counter:
    params: jax.Array


COUNTING = Learner(
    init=lambda key, params=None: Counter(params=jnp.zeros(()) if params is None else params),
    update=lambda state, key, batch: (Counter(params=state.params + batch), {"loss": batch}),
)


@pytest.mark.parametrize(("renew_every", "partners"), [(None, [10, 10, 10, 10]), (2, [10, 12, 12, 14])])
def test_the_partner_is_frozen_until_it_is_renewed(renew_every, partners):
    learner = with_frozen_partner(COUNTING, renew_every=renew_every)
    state, key = learner.init(jax.random.key(0), jnp.float32(10)), jax.random.key(1)
    np.testing.assert_array_equal(learner.acting(state), (10, 10))
    for number, partner in enumerate(partners, start=1):
        state, metrics = jax.jit(learner.update)(state, key, jnp.float32(1))
        np.testing.assert_array_equal(learner.acting(state), (10 + number, partner))
        np.testing.assert_array_equal(state.params, 10 + number)
        assert float(metrics["loss"]) == 1.0


def test_renewal_must_happen_sometime():
    with pytest.raises(ValueError, match="`renew_every` must be at least 1, got 0; try null for never"):
        with_frozen_partner(COUNTING, renew_every=0)

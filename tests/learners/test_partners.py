"""Learners with a frozen partner: the pair that acts, and when the copy is renewed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.learners.adapted import with_adapter
from jaxagents.learners.partners import with_frozen_partner
from jaxagents.networks.adapters import Adapter
from tests.fakes import COUNTING


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


def test_an_adapter_acts_beside_that_of_its_partner():
    adapter = Adapter(init=lambda key, base: jnp.float32(10), merge=lambda base, own: base + own)
    learner = with_adapter(
        lambda base: with_frozen_partner(COUNTING), adapter, init_base=lambda key: {"weights": jnp.float32(5)}
    )
    state = learner.init(jax.random.key(0))
    state, _ = jax.jit(learner.update)(state, jax.random.key(1), jnp.float32(1))
    own, partner = learner.acting(state)
    assert own == {"base": {"weights": 5.0}, "adapter": 11.0} and partner == {"base": {"weights": 5.0}, "adapter": 10.0}

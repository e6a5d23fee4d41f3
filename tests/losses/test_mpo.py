"""MPO's losses against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxagents.losses.mpo import ImprovementView, mpo
from jaxagents.ops.distributions import TanhNormal

EPSILONS = {"epsilon": 0.1, "epsilon_loc": 0.02, "epsilon_scale": 0.01}
TEMPERATURE = {"temperature": jnp.float32(0.7), "loc": jnp.float32(1.5), "scale": jnp.float32(3.0)}


def made(loc, scale):
    """Returns a view of 5 actions at 4 states, of one critic."""
    generator = np.random.default_rng(0)
    normal = generator.normal(size=(4, 2)), np.exp(0.3 * generator.normal(size=(4, 2)))
    former = TanhNormal(*(jnp.asarray(x, jnp.float32) for x in normal))
    action = former.loc[None] + former.scale[None] * jnp.asarray(generator.normal(size=(5, 4, 2)), jnp.float32)
    q = jnp.asarray(generator.normal(size=(1, 5, 4)), jnp.float32)
    return ImprovementView(policy=TanhNormal(loc=loc, scale=scale), target_policy=former, action=action, q=q)


def ours(loc, scale, temperature):
    policy_loss, dual_loss = mpo(made(loc, scale), temperature, **EPSILONS)
    return jnp.mean(policy_loss) + jnp.mean(dual_loss)


def theirs(loc, scale, temperature):
    view = made(loc, scale)
    former = view.target_policy
    located, scaled = former.replace(loc=loc), former.replace(scale=scale)
    constraints = [
        (former.kl_divergence(policy), rlax.LagrangePenalty(temperature[name], EPSILONS[f"epsilon_{name}"]))
        for name, policy in (("loc", located), ("scale", scaled))
    ]
    loss, _ = rlax.mpo_loss(
        sample_log_probs=jnp.stack([located.log_prob(a) + scaled.log_prob(a) for a in view.action]),
        sample_q_values=view.q[0],
        temperature_constraint=rlax.LagrangePenalty(temperature["temperature"], EPSILONS["epsilon"]),
        kl_constraints=constraints,
    )
    return jnp.mean(loss)


def test_losses_and_gradients_are_those_of_rlax():
    generator = np.random.default_rng(1)
    loc, scale = (jnp.asarray(x, jnp.float32) for x in (generator.normal(size=(4, 2)), np.ones((4, 2))))
    arguments = loc, scale, TEMPERATURE
    actual, expected = (jax.value_and_grad(loss, (0, 1, 2))(*arguments) for loss in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), actual, expected)


def test_the_policy_does_not_train_the_temperatures_nor_they_the_policy():
    arguments = jnp.zeros((4, 2)), jnp.ones((4, 2)), TEMPERATURE

    def one(index, *arguments):
        loc, scale, temperature = arguments
        return jnp.sum(mpo(made(loc, scale), temperature, **EPSILONS)[index])

    to_temperature = jax.grad(lambda *a: one(0, *a), 2)(*arguments)
    to_policy = jax.grad(lambda *a: one(1, *a), (0, 1))(*arguments)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves((to_temperature, to_policy)))


def test_temperatures_have_names():
    with pytest.raises(ValueError, match="`initial_temperature` must have `temperature`, `loc` and `scale` for MPO"):
        mpo(made(jnp.zeros((4, 2)), jnp.ones((4, 2))), {"temperature": jnp.float32(1.0)})

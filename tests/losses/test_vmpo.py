"""V-MPO's loss against rlax, and its temperature and price by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxagents.learners.settings import make_settings
from jaxagents.losses.vmpo import better_half, vmpo

ADVANTAGE = jnp.array([[1.0, -2.0, 0.5], [3.0, 0.0, -0.5]])
OLD = jnp.log(jnp.array([[0.5, 0.2, 0.3], [0.25, 0.4, 0.6]]))


def loss_of(slot, log_prob, behavior_log_prob=OLD, advantage=ADVANTAGE):
    losses, _ = slot.apply(slot.init(1), log_prob, behavior_log_prob, advantage)
    return jnp.mean(losses)


def test_loss_and_gradient_are_those_of_rlax():
    """The divergence is given to rlax as the same estimate; its constraints alone add to the value, not the slope."""
    slot = vmpo(epsilon=0.1, epsilon_kl=0.02, initial_temperature=0.7, initial_price=3.0)

    def theirs(log_prob):
        kl = jnp.exp(log_prob - OLD) - 1.0 - (log_prob - OLD)
        loss, outputs = rlax.vmpo_loss(
            sample_log_probs=log_prob,
            advantages=ADVANTAGE,
            temperature_constraint=rlax.LagrangePenalty(jnp.float32(0.7), jnp.float32(0.1)),
            kl_constraints=[(kl, rlax.LagrangePenalty(jnp.float32(3.0), jnp.float32(0.02)))],
        )
        return jnp.mean(loss - outputs.temperature_loss - outputs.alpha_loss)

    log_prob = OLD + 0.3 * jnp.array([[1.0, -1.0, 0.5], [0.0, 2.0, -0.7]])
    actual, expected = (jax.value_and_grad(f)(log_prob) for f in (lambda x: loss_of(slot, x), theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), actual, expected)


def test_the_better_half_has_the_weight():
    weights, divergence = better_half(ADVANTAGE, jnp.float32(2.0))
    exponentials = np.exp(np.array([1.0, 0.5, 3.0]) / 2.0)
    shares = exponentials / exponentials.sum()
    np.testing.assert_allclose(weights, [[shares[0], 0.0, shares[1]], [shares[2], 0.0, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(divergence, np.sum(shares * np.log(3.0 * shares)), rtol=1e-4)


def test_the_temperature_rises_where_weights_are_too_uneven():
    """Weights of the better half are as exp(3), exp(1), exp(0.5), which is 0.51 nats from equal ones."""
    moves = []
    for epsilon in (1e-3, 10.0):
        settings = make_settings(slots={"loss": vmpo(epsilon=epsilon, epsilon_kl=0.01, rate=0.5)})
        state = settings.init(1)
        _, summary = settings.open(state)[1]["loss"](OLD, OLD, ADVANTAGE)
        after = settings.close(state, summary).memory["loss"]
        moves.append(float(after.log_temperature))
        # Nothing has changed yet, so that the price falls as fast as it may.
        np.testing.assert_allclose(after.log_price, np.log(5.0) - 0.5, rtol=1e-5)
    shares = np.exp([3.0, 1.0, 0.5]) / np.sum(np.exp([3.0, 1.0, 0.5]))
    divergence = np.sum(shares * np.log(3.0 * shares))
    np.testing.assert_allclose(moves, [0.5, 0.5 * (divergence / 10.0 - 1.0)], rtol=1e-4)


def test_numbers_are_positive():
    with pytest.raises(ValueError, match="`epsilon_kl` of V-MPO must be positive, got 0"):
        vmpo(epsilon_kl=0.0)

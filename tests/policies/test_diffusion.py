"""Chains of a diffusion policy whose noise is known, and the loss that teaches to predict it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.torsos import MLP
from jaxagents.policies.diffusion import cosine_signal, denoising_objective, make_diffusion_policy, posterior
from jaxagents.types import Box, PolicyInput
from tests.fakes import make_sample

KEY = jax.random.key(0)
POLICY = make_diffusion_policy(Box((2,)), Box((1,), -2.0, 2.0), encoder=MLP((8,)), num_diffusion_steps=10)


def test_the_signal_falls_from_one_to_nothing():
    signal = cosine_signal(10)
    assert np.all(np.diff(signal) < 0.0) and signal[0] > 0.9 and 0.0 < signal[-1] < 1e-3
    # The square of the cosine, in the middle of the schedule.
    middle = np.cos((0.5 + 0.008) / 1.008 * np.pi / 2) ** 2 / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(signal[4], middle, rtol=1e-5)


def test_the_posterior_is_that_of_the_forward_chain():
    """Of jointly normal x_{k-1} and x_k given the action, computed by conditioning."""
    signal, k, action = cosine_signal(10), 6, 0.3
    before, now = signal[k - 1], signal[k]
    ratio = now / before
    noisy = 0.7
    predicted = (noisy - np.sqrt(now) * action) / np.sqrt(1 - now)
    mean, scale = posterior(jnp.array([noisy]), jnp.array([predicted]), jnp.int32(k), signal)
    covariance = np.sqrt(ratio) * (1 - before)
    expected = np.sqrt(before) * action + covariance / (1 - now) * (noisy - np.sqrt(now) * action)
    np.testing.assert_allclose(mean, [expected], rtol=1e-4)
    np.testing.assert_allclose(scale, np.sqrt((1 - before) - covariance**2 / (1 - now)), rtol=1e-4)
    # The last step gives the action itself.
    mean, scale = posterior(jnp.array([noisy]), jnp.array([0.1]), jnp.int32(0), signal)
    np.testing.assert_allclose(mean, (noisy - np.sqrt(1 - signal[0]) * 0.1) / np.sqrt(signal[0]), rtol=1e-4)
    assert float(scale) == 0.0


def perfect(policy, action):
    """Returns the policy that knows the action, and what its noise is."""

    def predict(params, observation, noisy, step):
        signal = jnp.asarray(policy.signal)[step][..., None]
        return (noisy - jnp.sqrt(signal) * action) / jnp.sqrt(1.0 - signal)

    return policy._replace(predict_noise=predict)


def sample(action):
    return make_sample((2, 3), observation=jnp.zeros((2, 3, 2)), action=jnp.full((2, 3, 1), jnp.arctanh(action)))


def test_who_knows_the_action_predicts_the_noise():
    assert np.max(denoising_objective(perfect(POLICY, 0.5), None, KEY, sample(0.5))) < 1e-4
    wrong = np.asarray(denoising_objective(perfect(POLICY, 0.0), None, KEY, sample(0.5)))
    assert wrong.shape == (2, 3) and np.all(wrong > 0.0) and len(np.unique(wrong)) > 3


def test_actions_follow_the_noise_that_is_drawn_and_are_the_same_without():
    params, given = POLICY.init(KEY), PolicyInput(observation=jnp.ones((4, 1, 2)), first=jnp.ones((4, 1), bool))
    noise = POLICY.draw_noise(KEY, 4)[:, None]
    apply = jax.jit(POLICY.apply)
    _, drawn = apply(params, (), given.replace(noise=noise))
    _, still = apply(params, (), given)
    assert len(np.unique(drawn.loc)) == 4 and len(np.unique(still.loc)) == 1
    assert np.all(np.isfinite(drawn.log_prob(drawn.mode()))) and np.all(np.abs(drawn.loc) < 4.0)


class TwoModes(nn.Module):
    """Predicts the noise of actions that are -0.6 or 0.6, both as often."""

    @nn.compact
    def __call__(self, inputs):
        noisy, signal = inputs[..., 2:3], inputs[..., 3:] @ jnp.asarray(POLICY.signal)[:, None]
        action = 0.6 * jnp.tanh(0.6 * jnp.sqrt(signal) * noisy / (1.0 - signal))
        return (noisy - jnp.sqrt(signal) * action) / jnp.sqrt(1.0 - signal)


def test_a_chain_ends_in_one_of_the_modes_without_noise_of_its_own():
    policy = make_diffusion_policy(Box((2,)), Box((1,), -2.0, 2.0), encoder=TwoModes(), num_diffusion_steps=10)
    params = {"encoder": {}, "head": {"params": {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)}}}
    given = PolicyInput(observation=jax.random.normal(KEY, (1, 200, 2)), first=jnp.ones((1, 200), bool))
    action = jnp.tanh(jax.jit(policy.apply)(params, (), given)[1].mode())[..., 0]
    # Ten steps leave a few between the modes.
    assert float(jnp.mean(jnp.abs(jnp.abs(action) - 0.6) < 0.05)) > 0.95
    assert 0.35 < float(jnp.mean(action > 0.0)) < 0.65


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_diffusion_steps` must be at least 1, got 0; try 20"):
        make_diffusion_policy(Box((2,)), Box((1,), -1.0, 1.0), encoder=MLP((8,)), num_diffusion_steps=0)
    with pytest.raises(ValueError, match="`action_space` must be bounded"):
        make_diffusion_policy(Box((2,)), Box((1,)), encoder=MLP((8,)))

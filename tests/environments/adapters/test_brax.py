"""The brax adapter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters import brax

KEY = jax.random.key(0)


def test_fast_goes_fast_and_is_truncated():
    environment = brax.make_environment("fast", max_steps=3)
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    rewards, truncated = [], []
    for _ in range(3):
        state, timestep = environment.step(KEY, state, jnp.ones(1))
        rewards.append(float(timestep.reward))
        truncated.append(bool(timestep.truncated))
    # Velocity grows by 0.02 a step and position by 0.02 times it: 0.0004 * (1, 3, 6).
    np.testing.assert_allclose(rewards, [0.0004, 0.0012, 0.0024], rtol=1e-5)
    assert truncated == [False, False, True] and not bool(timestep.terminated)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["positional", "mjx"])
def test_backends_run(backend):
    environment = brax.make_environment("reacher", backend=backend, max_steps=2)
    state, _ = jax.jit(environment.reset)(KEY, environment.sample_task(KEY))
    _, timestep = jax.jit(environment.step)(KEY, state, jnp.ones(2))
    assert np.isfinite(timestep.observation).all() and float(timestep.reward) < 0


def test_bodies_are_drawn():
    environment = brax.make_environment("inverted_pendulum")
    frame = environment.render(environment.reset(KEY, environment.sample_task(KEY))[0])
    assert {*"01"} <= {*frame} and frame.splitlines()[-1].startswith("x ")
    assert brax.make_environment("fast").render is None


@pytest.mark.exhaustive
def test_falling_over_terminates():
    environment = brax.make_environment("inverted_pendulum", max_steps=100)
    state, _ = jax.jit(environment.reset)(KEY, environment.sample_task(KEY))
    step = jax.jit(environment.step)
    for _ in range(100):
        state, timestep = step(KEY, state, jnp.ones(1))
    assert bool(timestep.terminated) and not bool(timestep.truncated)


def test_refuses_unknown_backends():
    with pytest.raises(ValueError, match="`backend` must be one of generalized, mjx, positional, spring, got 'bullet'"):
        brax.make_environment("fast", backend="bullet")

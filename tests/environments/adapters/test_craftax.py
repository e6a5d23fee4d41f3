"""The Craftax adapter."""

import jax
import jax.numpy as jnp
import pytest

from jaxagents.environments.adapters import craftax

KEY = jax.random.key(0)


@pytest.mark.slow
def test_the_limit_truncates_and_death_terminates():
    environment = craftax.make_environment("Craftax-Classic-Symbolic-v1", max_steps=2)
    assert environment.max_steps == 2
    state, _ = jax.jit(environment.reset)(KEY, environment.sample_task(KEY))
    step = jax.jit(environment.step)
    following, timestep = step(KEY, state, jnp.asarray(0))
    assert not bool(timestep.truncated) and not bool(timestep.terminated)
    _, timestep = step(KEY, following, jnp.asarray(0))
    assert bool(timestep.truncated) and not bool(timestep.terminated)
    world = state.inner.inner.replace(player_health=jnp.zeros_like(state.inner.inner.player_health))
    _, timestep = step(KEY, state.replace(inner=state.inner.replace(inner=world)), jnp.asarray(0))
    assert bool(timestep.terminated) and not bool(timestep.truncated)

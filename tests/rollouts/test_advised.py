"""Advice beside rollouts and rewards that are made of it, against the world's own and numbers by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.tmaze import make_environment
from jaxagents.ops.advice_rewards import advice_bonus, potential_difference
from jaxagents.ops.distributions import Categorical
from jaxagents.rollouts.advised import make_advised_collector
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.types import Box, Environment, Policy
from tests.fakes import make_transition

KEY = jax.random.key(0)
WORLD = make_environment((1, 2))
A = WORLD.action_space.num_values
RANDOM = Policy(
    init=lambda key: (),
    initial_carry=lambda batch_shape: (),
    apply=lambda params, carry, inputs: (carry, Categorical(logits=jnp.zeros((*inputs.first.shape, A)))),
)


def advice(observation):
    """Of action a, a more than the sum of what is seen."""
    seen = jnp.sum(observation, axis=-1, keepdims=True)
    return seen + jnp.arange(A, dtype=jnp.float32).reshape((1,) * (seen.ndim - 1) + (A,))


def collect(make, **options):
    collector = make(WORLD, RANDOM, num_envs=2, num_steps=12, **options)
    return jax.jit(lambda key: collector.collect(collector.init(key, ()), (), key)[1:])(KEY)


def test_the_script_is_asked_about_every_state_and_rewards_are_added():
    plain, metrics = collect(make_rollout_collector)
    shaped, result = collect(make_advised_collector, advice=advice, shaping=partial(advice_bonus, scale=0.5))
    before, after = plain.transition, shaped.transition
    np.testing.assert_array_equal(before.action, after.action)
    wanted = np.asarray(before.observation).sum(-1)[..., None] + np.arange(A)
    np.testing.assert_allclose(after.extras["heuristic_values"], wanted, rtol=1e-6)
    chosen = np.take_along_axis(wanted, np.asarray(before.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(after.reward, before.reward + 0.5 * chosen, rtol=1e-6)
    assert len(np.unique(chosen)) > 2
    jax.tree.map(np.testing.assert_array_equal, metrics, result)


def test_differences_of_potentials_by_hand_and_summed_over_an_episode():
    """Of 3 steps that terminate, they sum to minus the potential of the first state, discounted."""
    no = jnp.zeros((3, 1), bool)
    transition = make_transition(
        observation=jnp.array([1.0, 4.0, 2.0]).reshape(3, 1, 1),
        action=jnp.zeros((3, 1), jnp.int32),
        terminated=no.at[2].set(True),
        next_observation=jnp.array([4.0, 2.0, 9.0]).reshape(3, 1, 1),
    )
    added = potential_difference(transition, potential=lambda observation: 10.0 * observation[..., 0], discount=0.5)
    np.testing.assert_allclose(added[:, 0], [10.0, -30.0, -20.0])
    assert float(added[0, 0] + 0.5 * added[1, 0] + 0.25 * added[2, 0]) == -10.0
    # An episode that is cut goes on in its successor.
    cut = potential_difference(
        transition.replace(terminated=no, truncated=~no), potential=lambda seen: seen[..., 0], discount=1.0
    )
    np.testing.assert_allclose(cut[:, 0], [3.0, -2.0, 7.0])


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=f"`advice` must be one number per action, {A}, got the shape .1,."):
        collect(make_advised_collector, advice=lambda observation: observation[..., :1])
    continuous = Environment("reach", None, None, None, Box((1,)), Box((2,), -1.0, 1.0), max_steps=3)
    with pytest.raises(ValueError, match="`environment` must have one agent and Discrete actions for advice, got Box"):
        make_advised_collector(continuous, RANDOM, num_envs=1, num_steps=1)

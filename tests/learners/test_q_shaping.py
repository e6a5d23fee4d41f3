"""Q-learning with terms against DQN and a step by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.q_shaping import make_agent, make_q_with_terms
from jaxagents.losses.q_shaping import heuristic_values, temporal_difference
from jaxagents.types import Box, Environment
from jaxagents.values.q_function import QFunction
from tests.fakes import make_sample, require_agreement

KEY = jax.random.key(0)
TABLE = QFunction(
    init=lambda key: jnp.array([1.0, 2.0, 4.0]),
    apply=lambda params, carry, inputs: (carry, jnp.broadcast_to(params, (*inputs.first.shape, 3))),
)
TD = {"td": temporal_difference}


def sample(num_steps=1):
    zeros = jnp.zeros((num_steps, 2))
    return make_sample(
        weight=jnp.array([1.0, 3.0]),
        observation=zeros[..., None],
        action=jnp.tile(jnp.array([0, 1]), (num_steps, 1)),
        reward=jnp.tile(jnp.array([1.5, 2.5]), (num_steps, 1)),
        terminated=jnp.tile(jnp.array([True, False]), (num_steps, 1)),
        first=zeros == 0,
        extras={"heuristic_values": jnp.tile(jnp.array([[0.0, 0.0, 1.0], [0.0, 2.0, 1.0]]), (num_steps, 1, 1))},
    )


def test_temporal_differences_alone_are_dqn():
    options = {"discount": 0.9, "huber_delta": 0.5, "target_update_rate": 0.1}
    states = []
    for learner in (
        make_q_with_terms(TABLE, optax.sgd(0.1), terms=TD, **options),
        make_dqn(TABLE, optax.sgd(0.1), **options),
    ):
        state, update = learner.init(KEY), jax.jit(learner.update)
        for _ in range(3):
            state, metrics = update(state, KEY, sample(num_steps=2))
        assert update._cache_size() == 1
        states.append((state.network, state.target_network, metrics["priority"], metrics["loss"]))
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_a_heuristic_moves_values_in_the_first_update_and_td_follows():
    """Gradients of the squared distances, weighted 1 and 3, then of the Huber loss in its square part."""
    terms = {
        "td": partial(temporal_difference, after=1),
        "heuristic": partial(heuristic_values, coefficient=0.5, until=1),
    }
    learner = make_q_with_terms(TABLE, optax.sgd(0.3), terms=terms, discount=0.0, target_update_rate=1.0)
    update = jax.jit(learner.update)
    first, metrics = update(learner.init(KEY), KEY, sample())
    # 0.5 * 2 / 3 * (q - wanted) for each, of [1, 2, 3] and [1, 0, 3]; half of (first + 3 second).
    gradient = (np.array([1.0, 2.0, 3.0]) + 3.0 * np.array([1.0, 0.0, 3.0])) / 3.0 / 2.0
    np.testing.assert_allclose(first.network, np.array([1.0, 2.0, 4.0]) - 0.3 * gradient, rtol=1e-6)
    np.testing.assert_allclose(metrics["heuristic"], 0.5 * (14.0 + 3.0 * 10.0) / 3.0 / 2.0, rtol=1e-6)
    assert float(metrics["td"]) == 0.0
    second, metrics = update(first, KEY, sample())
    errors = np.array(first.network)[:2] - np.array([1.5, 2.5])
    np.testing.assert_allclose(second.network[:2], first.network[:2] - 0.3 * errors * np.array([0.5, 1.5]), rtol=1e-6)
    assert float(second.network[2]) == float(first.network[2]) and float(metrics["heuristic"]) == 0.0


def test_two_devices_share_what_one_learns():
    terms = {"td": temporal_difference, "heuristic": partial(heuristic_values, until=9)}
    alone, shared = (
        make_q_with_terms(TABLE, optax.sgd(0.1), terms=terms, discount=0.9, axis_name=axis) for axis in (None, "device")
    )
    compared = ("loss", *terms)
    require_agreement(
        alone,
        shared,
        alone.init(KEY),
        sample(num_steps=2),
        lambda state, metrics: (state.network, [metrics[name] for name in compared]),
        rtol=1e-6,
    )


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`terms` must name at least one term, got none"):
        make_q_with_terms(TABLE, optax.sgd(0.1), terms={})
    with pytest.raises(ValueError, match="`value` must be without noise and memory for terms"):
        make_q_with_terms(TABLE._replace(draw_noise=lambda key, num_steps: None), optax.sgd(0.1), terms=TD)
    with pytest.raises(ValueError, match="`value` must be without noise and memory for terms"):
        make_q_with_terms(TABLE._replace(initial_carry=jnp.zeros), optax.sgd(0.1), terms=TD)
    continuous = Environment("reach", None, None, None, Box((1,)), Box((2,), -1.0, 1.0), max_steps=3)
    with pytest.raises(ValueError, match="`environment` must have one agent and Discrete actions for Q-learning with"):
        make_agent(continuous, value=None, optimizer=None, buffer=None)

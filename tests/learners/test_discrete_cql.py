"""Conservative Q-learning against a step by hand, and what it does to actions that the data lack."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import softmax

from jaxagents.learners.discrete_cql import make_agent
from jaxagents.types import Box, Collector, Discrete
from jaxagents.values.q_function import QFunction
from tests.fakes import make_sample, make_world

KEY = jax.random.key(0)
TABLE = QFunction(
    init=lambda key: jnp.array([1.0, 2.0, 4.0]),
    apply=lambda params, carry, inputs: (carry, jnp.broadcast_to(params, (*inputs.first.shape, 3))),
)


def sample():
    zeros = jnp.zeros((1, 2))
    return make_sample(
        weight=jnp.array([1.0, 3.0]),
        observation=zeros[..., None],
        action=jnp.array([[0, 1]]),
        reward=jnp.array([[1.5, 2.5]]),
        terminated=zeros == 0,
        first=zeros == 0,
    )


def make(coefficient, value=TABLE):
    """Makes the learner of the sample."""
    world = make_world(None, None, Box((1,)), Discrete(3), 1)
    options = {"value": lambda *spaces: value, "optimizer": lambda num_steps: optax.sgd(0.1)}
    collector = Collector(lambda key, params: (), lambda state, *_: (state, sample(), {}), steps_per_collect=2)
    return make_agent(world, coefficient=coefficient, **options).make_learner(collector, 1)


def test_one_step_by_hand():
    """Errors of half a unit are in the square part of the Huber loss; both steps end their episodes."""
    learner = make(2.0)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, sample())
    q, weight = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0])
    chosen = np.eye(3)[[0, 1]]
    gradient = (weight[:, None] * (-0.5 * chosen + 2.0 * (softmax(q)[None] - chosen))).mean(0)
    np.testing.assert_allclose(state.network, q - 0.1 * gradient, rtol=1e-5)
    terms = weight * 2.0 * (np.log(np.exp(q).sum()) - q[:2])
    np.testing.assert_allclose(metrics["conservative_term"], terms.mean(), rtol=1e-5)


def test_the_coefficient_decides_between_what_is_valued_and_what_is_in_the_data():
    def after(coefficient):
        learner = make(coefficient)
        state = learner.init(KEY)
        return np.asarray(learner.update(state, KEY, sample())[0].network - state.network)

    assert after(0.0)[2] == 0.0 > after(1.0)[2] > after(2.0)[2]
    assert after(2.0)[0] > after(0.0)[0] > 0.0


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="`coefficient` must not be below 0, got -1.0; try 1"):
        make(-1.0)
    with pytest.raises(ValueError, match="`value` must be without noise and memory for terms"):
        make(1.0, TABLE._replace(draw_noise=lambda key, num_steps: None))

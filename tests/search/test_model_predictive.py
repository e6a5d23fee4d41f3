"""Plans in models of worlds that are known by hand: returns, the regulator of Riccati, and what is remembered."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

from jaxagents.ops.distributions import unsquash
from jaxagents.search.model_predictive import expected_return, make_model_predictive_policy
from jaxagents.search.planning import cross_entropy, path_integral, shoot
from jaxagents.types import Box, Discrete, PolicyInput
from jaxagents.values.dynamics import Dynamics, Prediction

KEY = jax.random.key(0)
SEEN, MOVES = Box((2,)), Box((1,), -2.0, 2.0)
UPDATES = {
    "cem": (partial(cross_entropy, num_elites=32, min_scale=0.01), {"num_iterations": 12, "scale": 0.5}),
    "mppi": (partial(path_integral, temperature=0.02), {"num_iterations": 40, "scale": 0.1}),
}


def sure(change, reward, end_logit):
    """Returns a prediction without chance, of one step in every member."""
    mean = jnp.concatenate([change, reward[..., None]], axis=-1)
    return Prediction(mean, jnp.full_like(mean, -30.0), end_logit)


def count(params, observation, action):
    """Every member adds a number of its own to the first one, which is the reward, beyond 5 for the last time."""
    change = jnp.zeros((len(params), 2)).at[:, 0].set(params)
    reward = jnp.full(len(params), observation[0]) + 0.0 * jnp.tanh(action[0])
    return sure(change, reward, jnp.full(len(params), jnp.where(observation[0] > 5.0, 99.0, -99.0)))


def test_particles_stay_in_a_member_and_end_there():
    """With 1 added: 1, 2, 3 and 4. With 10 added: 1 and 11, which is the end."""
    dynamics, actions = Dynamics(init=None, apply=count), jnp.zeros((4, 1))
    estimate = partial(expected_return, dynamics, jnp.array([1.0, 10.0]), KEY, jnp.array([1.0, 0.0]), actions)
    np.testing.assert_allclose(jax.jit(partial(estimate, num_particles=3))(), (10.0 + 12.0) / 2.0, rtol=1e-5)
    by_hand = (1.0 + 2.0 / 2.0 + 3.0 / 4.0 + 4.0 / 8.0 + 1.0 + 11.0 / 2.0) / 2.0
    np.testing.assert_allclose(estimate(discount=0.5), by_hand, rtol=1e-5)


A, B = np.array([[1.0, 0.2], [0.0, 1.0]]), np.array([[0.0], [0.2]])
Q, R = np.diag([1.0, 0.1]), np.array([[0.1]])


def regulate(params, observation, action):
    """A mass that is pushed, at quadratic costs of where it is, how fast, and the push."""
    push = jnp.tanh(action)
    cost = observation @ jnp.asarray(Q, jnp.float32) @ observation + jnp.sum(R[0, 0] * push**2)
    change = jnp.asarray(A - np.eye(2), jnp.float32) @ observation + jnp.asarray(B, jnp.float32) @ push
    return sure(change[None] + params, -cost[None], jnp.full(1, -99.0))


@pytest.mark.parametrize("name", UPDATES)
def test_plans_approach_the_linear_quadratic_regulator(name):
    """Of a finite horizon, by the recursion of Riccati; a long one is nearly the infinite one of scipy."""
    horizon, state, value = 10, np.array([0.16, 0.12]), np.zeros((2, 2))
    gains = []
    for _ in range(horizon):
        gains.append(np.linalg.solve(R + B.T @ value @ B, B.T @ value @ A))
        value = Q + A.T @ value @ (A - B @ gains[-1])
    for _ in range(200):
        gain = np.linalg.solve(R + B.T @ value @ B, B.T @ value @ A)
        value = Q + A.T @ value @ (A - B @ gain)
    np.testing.assert_allclose(value, solve_discrete_are(A, B, Q, R), rtol=1e-6)
    seen, expected = state, []
    for gain in reversed(gains):
        expected.append(-gain @ seen)
        seen = A @ seen + B @ expected[-1]
    update, options = UPDATES[name]
    dynamics, params = Dynamics(init=None, apply=regulate), jnp.zeros((1, 1))

    def score(key, tried):
        actions = unsquash(tried, low=-1.0, high=1.0)
        return expected_return(dynamics, params, key, jnp.asarray(state, jnp.float32), actions)

    plan = jax.jit(lambda key: shoot(score, key, jnp.zeros((horizon, 1)), update=update, num_candidates=512, **options))
    np.testing.assert_allclose(plan(KEY), np.stack(expected), atol=0.06)
    assert max(np.abs(expected)) > 0.5


def see(*observations, first):
    return PolicyInput(observation=jnp.array([[each] for each in observations]), first=jnp.array(first)[:, None])


def test_a_plan_is_where_the_next_begins_unless_an_episode_does():
    """An update that adds 0.1 to all that was planned tells how often it was."""
    update = lambda sequences, scores, mean, scale: (mean + 0.1, scale)  # noqa: E731
    dynamics = Dynamics(init=None, apply=count)
    policy = make_model_predictive_policy(
        SEEN, MOVES, dynamics=dynamics, update=update, horizon=3, num_candidates=2, exploration_scale=0.2
    )
    inputs = see([0.0, 0.0], [0.0, 0.0], [1.0, 0.0], first=[True, False, True])
    carry, distribution = policy.apply(jnp.ones(1), policy.initial_carry((1,)), inputs)
    np.testing.assert_allclose(np.tanh(distribution.mode()[:, 0, 0]), [0.1, 0.2, 0.1], rtol=1e-5)
    np.testing.assert_allclose(carry[0, :, 0], [0.1, 0.1, 0.0], rtol=1e-5)
    np.testing.assert_allclose(distribution.scale, np.full((3, 1, 1), 0.2))
    assert (distribution.low, distribution.high) == (-2.0, 2.0)
    first, _ = policy.apply(jnp.ones(1), policy.initial_carry((1,)), see([0.0, 0.0], first=[True]))
    np.testing.assert_allclose(first[0, :, 0], [0.1, 0.1, 0.0], rtol=1e-5)


def test_chance_is_that_of_the_noise_and_of_nothing_else():
    policy = make_model_predictive_policy(
        SEEN, MOVES, dynamics=Dynamics(None, count), update=UPDATES["mppi"][0], horizon=2, num_candidates=4
    )
    inputs = see([0.0, 0.0], first=[True])
    act = jax.jit(lambda inputs: policy.apply(jnp.ones(2), policy.initial_carry((1,)), inputs)[1].mode())
    drawn = [inputs.replace(noise=policy.draw_noise(jax.random.key(seed), 1)[:, None]) for seed in (1, 2, 1)]
    one, two, again = (act(each) for each in drawn)
    np.testing.assert_array_equal(one, again)
    assert float(one[0, 0, 0]) != float(two[0, 0, 0])
    np.testing.assert_array_equal(act(inputs), act(inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "`horizon` must be at least 1, got 0"),
        ({"num_candidates": 0}, "`num_candidates` must be at least 1, got 0"),
        ({"num_iterations": 0}, "`num_iterations` must be at least 1, got 0"),
        ({"num_particles": 0}, "`num_particles` must be at least 1, got 0"),
        ({"scale": 0.0}, "`scale` must be positive, got 0.0; try 0.5"),
        ({"exploration_scale": 0.0}, "`exploration_scale` must be positive, got 0.0; try 0.1"),
    ],
)
def test_budgets_of_nothing_are_refused(options, message):
    good = {"update": UPDATES["cem"][0], "horizon": 2, "num_candidates": 4, "dynamics": Dynamics(None, count)}
    with pytest.raises(ValueError, match=message):
        make_model_predictive_policy(SEEN, MOVES, **good | options)
    with pytest.raises(ValueError, match="`action_space` must be a bounded Box for shooting, got Discrete"):
        make_model_predictive_policy(SEEN, Discrete(2), **good)

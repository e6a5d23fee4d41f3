"""Shooting in a world whose best actions are known, updates by hand, and searches against a perfect player."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from jaxagents.search.evaluate import make_planning_evaluator
from jaxagents.search.planning import cross_entropy, make_shooting_planner, path_integral, shoot
from jaxagents.types import Box, Discrete, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)


def make_point(action_space=None):
    """A point that moves by half of its action, for four steps; every step costs its distance from 2."""

    def view(state, reward):
        over = state["steps"] >= 4
        return state, TimeStep(
            observation=state["place"], reward=reward, terminated=over, truncated=jnp.zeros((), bool)
        )

    def step(key, state, action):
        over = state["steps"] >= 4
        place = jnp.where(over, state["place"], state["place"] + 0.5 * action)
        following = {"place": place, "steps": jnp.where(over, state["steps"], state["steps"] + 1)}
        return view(following, jnp.where(over, 0.0, -jnp.abs(place[0] - 2.0)))

    return make_world(
        lambda key, task: view({"place": jnp.zeros(1), "steps": jnp.int32(0)}, jnp.float32(0.0)),
        step,
        Box((1,)),
        Box((1,), 0.0, 2.0) if action_space is None else action_space,
        4,
    )


CEM = partial(cross_entropy, num_elites=8)
MPPI = partial(path_integral, temperature=0.02)


def test_updates_by_hand():
    sequences = jnp.array([[[0.0]], [[1.0]], [[4.0]], [[9.0]]])
    scores = jnp.array([1.0, 3.0, 2.0, jnp.nan])
    mean, scale = cross_entropy(sequences, scores, None, None, num_elites=2, min_scale=2.0)
    np.testing.assert_allclose([mean[0, 0], scale[0, 0]], [2.5, 2.0])
    mean, scale = path_integral(sequences, scores, None, jnp.array([[0.7]]), temperature=0.5)
    np.testing.assert_allclose(mean[0, 0], softmax([2.0, 6.0, 4.0]) @ [0.0, 1.0, 4.0], rtol=1e-5)
    np.testing.assert_allclose(scale, [[0.7]])


def test_the_cross_entropy_method_finds_the_best_of_a_quadratic_and_of_a_bound():
    """The third number is best beyond its bound."""
    best, slopes = jnp.array([[0.5, -0.25, 1.7], [0.0, 0.75, 0.1]]), jnp.array([[1.0, 4.0, 1.0], [2.0, 1.0, 9.0]])
    update = partial(cross_entropy, num_elites=64, min_scale=0.01)
    find = partial(
        shoot,
        lambda key, tried: -jnp.sum(slopes * (tried - best) ** 2),
        update=update,
        num_candidates=512,
        num_iterations=20,
        scale=0.5,
    )
    found = jax.jit(find)(KEY, jnp.zeros((2, 3)))
    np.testing.assert_allclose(found, jnp.clip(best, -1.0, 1.0), atol=0.01)


@pytest.mark.parametrize("update", [CEM, MPPI], ids=["cem", "mppi"])
def test_they_plan_the_shortest_way(update):
    """Two steps at full speed and then none: it costs 1, 0, 0 and 0; the best without a plan beyond a step, too."""
    planner = partial(make_shooting_planner, update=update, horizon=4, num_candidates=64, num_iterations=4)
    results = jax.jit(make_planning_evaluator(make_point(), None, planner=planner, num_episodes=4))((), KEY)
    np.testing.assert_allclose(results["episode_return"], -1.0, atol=0.25)
    np.testing.assert_array_equal(results["finished"], np.ones(4))


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_elites` must be at least 1 and at most `num_candidates`, got 0 of 4"):
        cross_entropy(jnp.zeros((4, 1, 1)), jnp.zeros(4), None, None, num_elites=0)
    with pytest.raises(ValueError, match="`temperature` must be positive, got 0.0; try 1.0"):
        path_integral(jnp.zeros((4, 1, 1)), jnp.zeros(4), None, None, temperature=0.0)
    with pytest.raises(ValueError, match="`action_space` must be a bounded Box for shooting, got Discrete"):
        make_shooting_planner(make_point(Discrete(2)), update=CEM, horizon=2, num_candidates=8)

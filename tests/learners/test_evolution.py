"""Evolution strategies of evosax as learners: their fitness, one program, the same members on two devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.evolution import make_evolution
from jaxagents.types import Policy
from tests.fakes import make_rollout

algorithms = pytest.importorskip("evosax.algorithms", reason="needs the extra `evolution`")
KEY = jax.random.key(0)
STRATEGIES = {"open_es": algorithms.Open_ES, "pgpe": algorithms.PGPE, "cma_es": algorithms.CMA_ES}
# A policy of one number; who has more of it gets more.
NUMBER = Policy(init=lambda key: {"x": jnp.zeros(2)}, initial_carry=lambda shape: (), apply=None)


def experience(reward, ended):
    """Returns rollouts of members, `[P, T, B]`."""
    reward, ended = jnp.asarray(reward, jnp.float32), jnp.asarray(ended, bool)
    return make_rollout(reward=reward, terminated=ended)


def test_fitness_is_the_reward_per_piece_of_an_episode():
    learner = make_evolution(NUMBER, algorithms.Open_ES, 2)
    # The first member ends one episode, in one of two environments: three pieces; the second none: two.
    batch = experience([[[1.0, 2.0], [3.0, 6.0]], [[1.0, 1.0], [1.0, 2.0]]], [[[0, 0], [1, 0]], [[0, 0], [0, 0]]])
    _, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, batch)
    assert float(metrics["best_fitness"].value) == 4.0 and float(metrics["fitness"].value) == 0.5 * (4.0 + 2.5)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_mean_moves_to_where_members_return_more(name):
    """Rewards fall with the square of the distance from (1, -1)."""
    options = {} if name == "open_es" else {"settings": {"std_init": 0.3}}
    make = STRATEGIES[name]
    if name == "open_es":
        make = partial(make, optimizer=optax.adam(0.1), std_schedule=optax.constant_schedule(0.3))
    learner = make_evolution(NUMBER, make, 16, **options)
    update, state = jax.jit(learner.update), learner.init(KEY)
    for index in range(60):
        reward = -jnp.sum(jnp.square(state.members["x"] - jnp.array([[1.0, -1.0]])), axis=-1)
        batch = experience(reward[:, None, None], jnp.ones((16, 1, 1)))
        state, _ = update(state, jax.random.fold_in(KEY, index), batch)
    assert update._cache_size() == 1
    np.testing.assert_allclose(state.params["x"], [1.0, -1.0], atol=0.3)


@pytest.mark.exhaustive
def test_devices_agree_with_one_device():
    generator = np.random.default_rng(0)
    batch = experience(generator.normal(size=(4, 3, 2)), generator.random((4, 3, 2)) < 0.3)
    alone, learner = (make_evolution(NUMBER, algorithms.CMA_ES, 4, axis_name=name) for name in (None, "device"))
    state = alone.init(KEY)
    expected, _ = jax.jit(alone.update)(state, KEY, batch)
    parts = jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=2)), batch)
    actual, _ = jax.jit(jax.vmap(learner.update, (None, None, 0), axis_name="device"))(state, KEY, parts)
    for device in range(2):
        np.testing.assert_allclose(actual.members["x"][device], expected.members["x"], rtol=1e-5)


@pytest.mark.parametrize(
    ("num_members", "settings", "message"),
    [
        (3, None, "`num_members` must be even and at least 2, got 3; try 32"),
        (4, {"sigma": 1.0}, "`settings` must be parameters of the strategy, got sigma; it has .*std_init"),
    ],
)
def test_refuses(num_members, settings, message):
    with pytest.raises(ValueError, match=message):
        make_evolution(NUMBER, algorithms.CMA_ES, num_members, settings=settings)

"""Populations: members learn apart, are copied with changed numbers, and the fittest is shown."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.learners.checks import FRACTIONS
from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.muzero import make_muzero
from jaxagents.learners.population import population
from jaxagents.learners.ppo import make_ppo
from jaxagents.learners.pqn import make_pqn
from jaxagents.learners.xland import with_filtered_levels
from jaxagents.rollouts.population import make_population_collector
from jaxagents.types import Array, Collector, Learner, Mean
from tests.fakes import make_rollout

NUM_MEMBERS = 4


@struct.dataclass
class Climbing:
    """Climbs by `step_size` per update."""

    params: Array
    hyperparameters: dict[str, Array]


CLIMBING = Learner(
    init=lambda key, params=None: Climbing(
        params=jnp.zeros(()) if params is None else params, hyperparameters={"step_size": jnp.ones(())}
    ),
    update=lambda state, key, batch: (
        state.replace(params=state.params + state.hyperparameters["step_size"]),
        {"loss": -state.params, "kept": Mean(total=2.0 * state.params, count=state.params)},
    ),
)


def batch(reward, terminated=True):
    """Two episodes of one step per member, both with its reward."""
    reward = jnp.broadcast_to(jnp.asarray(reward, jnp.float32)[:, None, None], (NUM_MEMBERS, 1, 2))
    zeros = jnp.zeros_like(reward)
    return make_rollout(
        observation=zeros,
        action=zeros,
        behavior_log_prob=zeros,
        reward=reward,
        terminated=jnp.full(reward.shape, terminated),
    )


def make(**changes):
    settings = {"explore": {"step_size": (0.5, 2.0)}, "evolve_every": 2, "fraction": 0.25, "memory": 0.5}
    return population(CLIMBING, NUM_MEMBERS, **settings | changes)


@pytest.mark.slow
def test_the_fittest_is_copied_and_shown():
    learner = make()
    state = learner.init(jax.random.key(0))
    first = np.asarray(state.inner.hyperparameters["step_size"])
    assert len(set(first.tolist())) == NUM_MEMBERS and first.min() >= 0.5 and first.max() <= 2.0
    update = jax.jit(learner.update)
    state, metrics = update(state, jax.random.key(1), batch([1.0, 4.0, 2.0, 3.0]))
    np.testing.assert_allclose(state.fitness, [1, 4, 2, 3])
    np.testing.assert_allclose(state.inner.params, first, rtol=1e-6)
    np.testing.assert_allclose(state.params, first[1], rtol=1e-6)
    assert float(metrics["best_fitness"].value) == 4.0 and float(metrics["fitness"].value) == 2.5
    assert np.isnan(metrics["kept"].value)  # Nothing was counted: all began at zero.
    state, metrics = update(state, jax.random.key(2), batch([1.0, 8.0, 2.0, 3.0]))
    # The first member goes on from the second one, with a step times 0.8 or 1.2; the others keep theirs.
    np.testing.assert_allclose(state.fitness, [6, 6, 2, 3])
    second = np.asarray(state.inner.hyperparameters["step_size"])
    np.testing.assert_allclose(second[1:], first[1:], rtol=1e-6)
    assert round(float(second[0] / first[1]), 4) in (0.8, 1.2)
    np.testing.assert_allclose(state.inner.params, [2 * first[1], 2 * first[1], 2 * first[2], 2 * first[3]], rtol=1e-6)
    # Means of members count as often as their members did: sum of 2 p over sum of p.
    np.testing.assert_allclose(metrics["kept"].total, 2.0 * first.sum(), rtol=1e-6)
    np.testing.assert_allclose(metrics["kept"].value, 2.0, rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], -first.mean(), rtol=1e-6)
    np.testing.assert_array_equal(learner.acting(state), state.inner.params)
    assert update._cache_size() == 1


def test_fractions_stay_fractions():
    """A member that goes on from one with a discount of 1 has 0.8 or 1, never 1.2."""
    inner = CLIMBING._replace(
        init=lambda key, params=None: Climbing(params=jnp.zeros(()), hyperparameters={"discount": jnp.ones(())}),
        update=lambda state, key, batch: (state, {}),
    )
    learner = population(inner, NUM_MEMBERS, explore={"discount": (1.0, 1.0)}, evolve_every=1, fraction=0.5)
    update, state, seen = jax.jit(learner.update), learner.init(jax.random.key(0)), []
    for index in range(6):
        state, _ = update(state, jax.random.key(index), batch([1.0, 2.0, 3.0, 4.0]))
        seen.append(state.inner.hyperparameters["discount"])
    seen = np.asarray(seen)
    assert seen.max() == 1.0 and seen.min() < 1.0


@pytest.mark.parametrize(
    "make", [make_ppo, make_dqn, make_pqn, make_muzero, partial(with_filtered_levels, num_levels=2)]
)
def test_what_learners_check_for_fractions_is_known_as_such(make):
    parameters = inspect.signature(make).parameters.values()
    refused = set()
    for name in [parameter.name for parameter in parameters if isinstance(parameter.default, float)]:
        try:
            make(None, None, **{name: 1.5})
        except ValueError as error:
            refused |= {name} if "must be in [0, 1], got 1.5" in str(error) else set()
    assert refused and refused <= FRACTIONS


def test_without_ended_episodes_nothing_is_known():
    learner = make(evolve_every=100)
    update = jax.jit(learner.update)
    state, metrics = update(learner.init(jax.random.key(0)), jax.random.key(1), batch([1.0] * 4, False))
    assert np.isnan(state.fitness).all() and np.isnan(metrics["best_fitness"].value)


def test_members_collect_apart():
    inner = Collector(
        init=lambda key, params: jnp.zeros(3),
        collect=lambda state, params, key: (
            state + params,
            jnp.full((2, 3), params),
            {"episode_return": Mean(total=params, count=jnp.ones(()))},
        ),
        steps_per_collect=6,
    )
    collector = make_population_collector(None, None, inner=lambda environment, policy: inner, num_members=2)
    state = collector.init(jax.random.key(0), jnp.zeros(()))
    assert state.shape == (3, 2) and collector.steps_per_collect == 12
    state, rollout, metrics = collector.collect(state, jnp.array([1.0, 2.0]), jax.random.key(0))
    np.testing.assert_array_equal(state, [[1, 2]] * 3)
    np.testing.assert_array_equal(rollout[:, 0, 0], [1, 2])
    assert float(metrics["episode_return"].value) == 1.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evolve_every": 0}, "`evolve_every` at least 1, got 4 and 0."),
        ({"memory": 1.0}, r"`memory` must be in \[0, 1\), got 1.0; try 0.8."),
        ({"explore": {"discount": (0.9, 1.1)}}, r"`explore.discount` must be a range in \(0, 1\], got \(0.9, 1.1\)."),
        ({"explore": {"step_size": (0.0, 1.0)}}, r"`explore.step_size` must be a positive range, got \(0.0, 1.0\)."),
        ({"fraction": 0.9}, "`fraction` must be above 0 and at most 0.5"),
        (
            {"explore": {"width": (1.0, 2.0)}},
            "`explore` must name numbers in the state .* got width; it has .*step_size",
        ),
    ],
)
def test_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes).init(jax.random.key(0))

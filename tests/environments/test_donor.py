"""The donor game: the schedule, wealth and traces by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import donor

KEY = jax.random.key(0)
TASK = {"order": jnp.arange(4), "swapped": jnp.zeros((), bool)}


def test_nobody_meets_the_same_partner_twice_and_roles_alternate():
    schedule = donor.round_robin(12, 12)
    assert schedule.shape == (12, 2, 6)
    for pairs in schedule:
        assert sorted(pairs.ravel()) == list(range(12))
    met = {frozenset(pair) for pairs in schedule[:11] for pair in pairs.T.tolist()}
    assert len(met) == 66
    gives = np.zeros((12, 12), int)
    for index, pairs in enumerate(schedule):
        gives[index, pairs[0]] = 1
    assert (np.abs(np.diff(gives[:11], axis=0)).sum(axis=0) >= 9).all()
    # The twelfth round is the first one with roles exchanged.
    np.testing.assert_array_equal(schedule[11], schedule[0][::-1])


def test_four_agents_by_hand():
    # Rounds of (donor, recipient): 0 -> 3 and 1 -> 2; 3 -> 1 and 2 -> 0; 2 -> 3 and 0 -> 1.
    np.testing.assert_array_equal(donor.round_robin(4, 3), [[[0, 1], [3, 2]], [[3, 2], [1, 0]], [[2, 0], [3, 1]]])
    environment = donor.make_environment(4, num_rounds=3, trace_length=2)
    state, timestep = environment.reset(KEY, TASK)
    np.testing.assert_array_equal(timestep.observation["donor"], [1, 1, 0, 0])
    assert not timestep.observation["known"].any()
    # 0 gives a half, 1 a tenth; what recipients say is ignored.
    state, timestep = environment.step(KEY, state, jnp.array([0.5, 0.1, 1.0, 1.0]))
    np.testing.assert_allclose(timestep.reward, [-5, -1, 2, 10], rtol=1e-6)
    np.testing.assert_allclose(timestep.observation["wealth"], [5, 9, 12, 20], rtol=1e-6)
    # 3 sees what 1 gave, 2 what 0 gave; their recipients had given nothing yet.
    np.testing.assert_allclose(timestep.observation["recipient"], [0, 0, 5, 9])
    np.testing.assert_allclose(timestep.observation["trace"], [[0, 0], [0, 0], [0.5, 0], [0.1, 0]])
    np.testing.assert_array_equal(timestep.observation["known"], [[0, 0], [0, 0], [1, 0], [1, 0]])
    # 2 gives all, 3 nothing: more than everything is everything, less than nothing nothing.
    state, timestep = environment.step(KEY, state, jnp.array([0.0, 0.0, 7.0, -1.0]))
    np.testing.assert_allclose(timestep.observation["wealth"], [29, 9, 0, 20], rtol=1e-6)
    # 2 sees that 3 gave 0 to one who had given 0.1; 0 sees what 1 gave to 2.
    np.testing.assert_allclose(timestep.observation["trace"], [[0.1, 0], [0, 0], [0, 0.1], [0, 0]])
    np.testing.assert_array_equal(timestep.observation["known"], [[1, 0], [0, 0], [1, 1], [0, 0]])
    assert not timestep.terminated
    _, timestep = environment.step(KEY, state, jnp.zeros(4))
    assert timestep.terminated and not timestep.truncated


def test_roles_are_swapped_and_places_taken_by_the_task():
    environment = donor.make_environment(4)
    _, timestep = environment.reset(KEY, TASK | {"swapped": jnp.ones((), bool)})
    np.testing.assert_array_equal(timestep.observation["donor"], [0, 0, 1, 1])
    # Agent 2 has place 0, agent 0 place 1.
    _, timestep = environment.reset(KEY, TASK | {"order": jnp.array([2, 0, 1, 3])})
    np.testing.assert_array_equal(timestep.observation["donor"], [1, 0, 1, 0])


def test_punishment_takes_twice_what_it_costs_and_no_more_than_there_is():
    environment = donor.make_environment(4, punishment=True)
    state, _ = environment.reset(KEY, TASK)
    _, timestep = environment.step(KEY, state, jnp.array([-0.25, -1.0, 0.0, 0.0]))
    np.testing.assert_allclose(timestep.observation["wealth"], [7.5, 0.0, 0.0, 5.0])
    np.testing.assert_allclose(timestep.observation["trace"][2:, 0], [-0.25, -1.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_agents": 5}, "`num_agents` must be even and at least 2, got 5; try 12."),
        ({"num_rounds": 0}, "`num_rounds` must be at least 1, got 0."),
        ({"trace_length": 0}, "`trace_length` must be at least 1, got 0."),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        donor.make_environment(**settings)

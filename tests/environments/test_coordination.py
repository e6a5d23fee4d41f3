"""The two-step game, entry by entry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.coordination import OVER, RISKY, RISKY_PAYOFF, SAFE, SAFE_PAYOFF, START, make_two_step_game

KEY = jax.random.key(0)


@pytest.mark.parametrize("first_choice", [0, 1])
@pytest.mark.parametrize("action", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_every_way_through_the_game(first_choice, action):
    environment = make_two_step_game()
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    np.testing.assert_array_equal(timestep.observation, [[1, 0, 0, 0]] * 2)
    # The second agent's choice at the start changes nothing.
    for other in (0, 1):
        second, timestep = environment.step(KEY, state, jnp.array([first_choice, other]))
        np.testing.assert_array_equal(timestep.observation, [np.eye(4)[1 + first_choice]] * 2)
        assert not timestep.terminated and not np.any(timestep.reward) and not timestep.info["success"]
    _, timestep = environment.step(KEY, second, jnp.array(action))
    expected = 7.0 if first_choice == 0 else {(0, 0): 0.0, (1, 1): 8.0}.get(action, 1.0)
    np.testing.assert_array_equal(timestep.reward, [expected] * 2)
    assert bool(timestep.terminated) and bool(timestep.info["success"]) == (expected == 8.0)


def walk(environment, actions):
    """Returns the places, the rewards and the last time step."""
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    places, rewards = [int(timestep.observation[0].argmax())], []
    for action in actions:
        assert not timestep.terminated
        state, timestep = environment.step(KEY, state, jnp.array(action))
        places.append(int(timestep.observation[1].argmax()))
        rewards.append(float(timestep.reward[0]))
    return places, rewards, timestep


def test_chores_pay_each_agent_that_does_them_and_lead_to_the_game():
    environment = make_two_step_game(num_chores=2)
    places, rewards, timestep = walk(environment, [(0, 1), (1, 1), (1, 0), (1, 1)])
    assert places == [4, 5, START, RISKY, OVER] and rewards == [0.25, 0.5, 0.0, 8.0]
    assert timestep.terminated and timestep.info["success"] and environment.max_steps == 4


@pytest.mark.parametrize(
    ("actions", "places", "reward"),
    [
        ([(0, 1), (0, 0)], [START, SAFE, OVER], 7.0),
        ([(1, 0), (1, 0), (1, 1)], [START, 5, SAFE, OVER], 7.0),
        ([(1, 0), (0, 1), (0, 0), (0, 0)], [START, 5, 6, SAFE, OVER], 7.0),
        ([(1, 0), (0, 1), (1, 0), (1, 1)], [START, 5, 6, RISKY, OVER], 8.0),
    ],
)
def test_agents_choose_in_turn(actions, places, reward):
    # The one chore is place 4.
    environment = make_two_step_game(num_chores=1, num_choices=3)
    walked, rewards, timestep = walk(environment, [(0, 0), *actions])
    assert walked == [4, *places] and rewards == [0.5, *[0.0] * (len(actions) - 1), reward]
    assert timestep.terminated and environment.max_steps == 5 and environment.observation_space.shape == (7,)


def test_refused_numbers():
    with pytest.raises(ValueError, match="`num_chores` must not be negative, got -1"):
        make_two_step_game(num_chores=-1)
    with pytest.raises(ValueError, match="`num_choices` must be at least 1, got 0"):
        make_two_step_game(num_choices=0)


def test_what_is_said_about_sums_and_lone_agents():
    # The additive fit to a table of equally frequent entries: row means plus column means minus the mean.
    additive = RISKY_PAYOFF.mean(1, keepdims=True) + RISKY_PAYOFF.mean(0, keepdims=True) - RISKY_PAYOFF.mean()
    assert additive.max() == 6.5 < SAFE_PAYOFF.max()
    assert RISKY_PAYOFF.mean(axis=1).max() == 4.5

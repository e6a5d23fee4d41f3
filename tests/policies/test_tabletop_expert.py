"""The scripted pusher: it arrives, waits as told, goes round on either side, and sways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tabletop
from jaxagents.policies.actor_critic import act
from jaxagents.policies.tabletop_expert import make_tabletop_expert
from jaxagents.rollouts.demonstrations import make_demonstrations
from jaxagents.types import PolicyInput

NUM_ROWS, NUM_STEPS = 32, 160


def action_of(expert, observation, noise=None):
    inputs = PolicyInput(observation=jnp.asarray([observation]), first=jnp.ones(1, bool), action_mask=None)
    carry = expert.policy.initial_carry((1,))
    _, distribution = act(expert.policy, (), carry, inputs.replace(noise=noise))
    return np.tanh(np.asarray(distribution.mode())[0])


def noise_of(side, pause):
    return jnp.asarray([float(side)]), jnp.asarray([pause], jnp.int32), jnp.zeros((1, 2))


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        ([0.37, 0.5, 0.5, 0.5, 0.9, 0.5], (1.0, 0.0)),  # Behind the disc: it pushes.
        ([0.37, 0.5, 0.5, 0.5, 0.54, 0.5], (0.5, 0.0)),  # Only so far as there is to go.
        ([0.05, 0.5, 0.5, 0.5, 0.9, 0.5], (1.0, 0.0)),  # On the line, far behind: it comes nearer.
        (
            [0.5, 0.67, 0.5, 0.5, 0.5, 0.9],
            (-1.0, -0.365),
        ),  # Before it: an arc of 0.7 radians to the left, and no further.
    ],
)
def test_actions_by_hand(observation, action):
    expert = make_tabletop_expert(either_side=True)
    np.testing.assert_allclose(action_of(expert, observation, noise_of(1, 0)), action, atol=2e-3)


def test_the_drawn_side_and_the_wait_decide():
    before, behind = [0.5, 0.67, 0.5, 0.5, 0.5, 0.9], [0.37, 0.5, 0.5, 0.5, 0.9, 0.5]
    expert = make_tabletop_expert()
    left, right = (action_of(expert, before, noise_of(side, 0)) for side in (1, -1))
    np.testing.assert_allclose(left, right * (-1, 1), atol=1e-6)
    assert left[0] < -0.9
    np.testing.assert_allclose(action_of(expert, behind, noise_of(1, 2)), (0, 0), atol=1e-6)
    # Nothing to wait for while it is not behind the disc.
    assert np.abs(action_of(expert, before, noise_of(1, 2))).max() > 0.9


def test_the_asked_disc_and_goal_are_read():
    expert = make_tabletop_expert(num_pushers=2, num_discs=2, num_goals=2)
    pushers, discs = [0.37, 0.5, 0.9, 0.9], [0.2, 0.2, 0.5, 0.5]
    goals = [0.9, 0.5, 0.1, 0.5]
    action = action_of(expert, [*pushers, *discs, *goals, 0, 1, 1, 0])
    np.testing.assert_allclose(action, (1, 0, 0, 0), atol=2e-3)
    reach = make_tabletop_expert(num_discs=0)
    np.testing.assert_allclose(action_of(reach, [0.5, 0.5, 0.54, 0.42]), (0.5, -1.0), atol=2e-3)


@pytest.mark.exhaustive
def test_its_demonstrations_solve_their_tasks_and_wait():
    world = tabletop.make_environment(friction=0.5)
    expert = make_tabletop_expert(pauses=(2, 6), sway=0.1)
    made = make_demonstrations(world, expert, num_rows=NUM_ROWS, num_steps=NUM_STEPS, noise=[0.0, 1.0])
    transition = jax.device_get(jax.jit(made)())
    assert transition.action.shape == (NUM_STEPS, NUM_ROWS, 2) and transition.noise is None
    ended = transition.terminated | transition.truncated
    rates = [transition.terminated[:, i::2].sum() / ended[:, i::2].sum() for i in (0, 1)]
    assert rates[0] > 0.95 and rates[1] < 0.5  # Of the expert, and of random actions.
    stays = np.abs(np.tanh(transition.action)).max(axis=-1) < 0.1
    waits = []
    for row in range(0, NUM_ROWS, 2):
        ends = np.flatnonzero(ended[:, row])
        waits += [stays[start + 1 : end + 1, row].sum() for start, end in zip(ends, ends[1:])]
    assert len(waits) > 60 and set(range(2, 7)) <= set(waits) and np.mean([2 <= wait <= 6 for wait in waits]) > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pauses": (6, 2)}, "`pauses` must be least and most, .*, got 6 and 2; try 2 and 6"),
        ({"sway": -1.0}, "`sway` must not be negative, got -1.0; try 0.1"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_tabletop_expert(**arguments)

"""An overseer against takeovers and releases by hand, in a corridor whose costs are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.distributions import Categorical
from jaxagents.rollouts.overseen import make_overseen_collector
from jaxagents.types import Box, Discrete, Environment, Policy, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)
RIGHT, LEFT, STAY = range(3)


def make_line(length=9):
    """A walk from 0 to `length`; the observation is the place and the number of steps."""

    def view(state, reward):
        place, steps = state
        return state, TimeStep(
            observation=jnp.stack([place, steps]).astype(jnp.float32),
            reward=jnp.float32(reward),
            terminated=place >= length,
            truncated=jnp.zeros((), bool),
        )

    def reset(key, task):
        return view((jnp.int32(0), jnp.int32(0)), 0.0)

    def step(key, state, action):
        place = jnp.maximum(state[0] + jnp.array([1, -1, 0])[action], 0)
        return view((place, state[1] + 1), place >= length)

    space = Box((2,))
    return make_world(reset, step, space, Discrete(3), 50)


def script(proposals):
    """A policy that proposes so in the steps of an episode, and right later."""
    table = jnp.asarray([*proposals, *[RIGHT] * 60])

    def apply(params, carry, inputs):
        logits = jax.nn.one_hot(table[inputs.observation[..., 1].astype(jnp.int32)], 3)
        return carry, Categorical(logits=logits)

    return Policy(init=lambda key: (), initial_carry=lambda batch_shape: (), apply=apply)


def cost_to_go(observation):
    """Steps to the end at 9 after each action."""
    place = observation[..., :1]
    return 9.0 - jnp.maximum(place + jnp.array([1.0, -1.0, 0.0]).reshape((1,) * (place.ndim - 1) + (3,)), 0.0)


def collect(proposals, num_steps=9, **options):
    options = {"cost_to_go": cost_to_go, "num_envs": 1, "num_steps": num_steps} | options
    collector = make_overseen_collector(make_line(), script(proposals), **options)
    return jax.jit(lambda key: collector.collect(collector.init(key, ()), (), key)[1:])(KEY)


def rows(rollout):
    transition = rollout.transition
    names = ("novice_action", "intervened", "td_mask")
    marks = [np.asarray(transition.extras[name])[:, 0].astype(int).tolist() for name in names]
    return [np.asarray(transition.action)[:, 0].tolist(), *marks]


def test_it_takes_over_where_the_policy_errs_and_gives_back_after_good_proposals():
    proposals = [RIGHT, LEFT, RIGHT, STAY, RIGHT, RIGHT, RIGHT, LEFT, RIGHT]
    rollout, metrics = collect(proposals, release=2)
    # From the second step on; a good proposal, then a bad one, then two good ones; again at the eighth step.
    assert rows(rollout) == [
        [RIGHT] * 9,
        proposals,
        [0, 1, 1, 1, 1, 1, 0, 1, 1],
        [1, 0, 1, 1, 1, 1, 1, 0, 1],
    ]
    np.testing.assert_allclose(metrics["overseer_rate"].value, 7 / 9, rtol=1e-6)
    assert rollout.carry == () and not rollout.transition.reward.any()
    assert float(metrics["episode_return"].value) == 1.0
    kept, _ = collect(proposals, release=2, keep_rewards=True)
    np.testing.assert_array_equal(kept.transition.reward[:, 0], [0.0] * 8 + [1.0])


def test_small_errors_are_tolerated_and_an_end_ends_control():
    """Staying costs a step and going back two; the episode ends under control, which the next one begins without."""
    rollout, _ = collect([LEFT, *[RIGHT] * 7, STAY, LEFT], num_steps=12, tolerance=1.5, release=1)
    actions, novice, intervened, _ = rows(rollout)
    assert actions == [LEFT, *[RIGHT] * 7, STAY, RIGHT, RIGHT, LEFT]
    assert novice[9] == LEFT and intervened == [0] * 9 + [1, 1, 0]
    # At the wall going back costs as much as staying.
    assert bool(rollout.transition.terminated[10, 0]) and not rollout.transition.terminated[:10].any()


def test_below_zero_it_always_acts():
    rollout, metrics = collect([RIGHT, LEFT], tolerance=-1.0)
    assert rows(rollout)[0] == [RIGHT] * 9 and rows(rollout)[2] == [1] * 9
    assert rows(rollout)[3] == [0] + [1] * 8 and float(metrics["overseer_rate"].value) == 1.0


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`release` must be at least 1, got 0; try 3"):
        collect([], release=0)
    with pytest.raises(ValueError, match="`cost_to_go` must be one number per action, 3, got the shape .2,."):
        collect([], cost_to_go=lambda observation: observation)
    continuous = Environment("reach", None, None, None, Box((1,)), Box((2,), -1.0, 1.0), max_steps=3)
    with pytest.raises(ValueError, match="`environment` must have one agent and Discrete actions for an overseer, got"):
        make_overseen_collector(continuous, script([]), cost_to_go=cost_to_go, num_envs=1, num_steps=1)

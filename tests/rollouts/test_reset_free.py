"""Practice without resets: a line of places, on which the way there and the way back are walked in turn."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tabletop
from jaxagents.environments.reset_free import reset_free
from jaxagents.environments.timesteps import first_timestep
from jaxagents.ops.distributions import TanhNormal
from jaxagents.rollouts.reset_free import make_reset_free_collector
from jaxagents.types import Box, Policy, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)


def make_line(max_steps=4):
    """Makes a line on which a walker, sent by numbers, shall come to 2; it sees where it is, and the goal."""

    def see(state):
        return jnp.stack([state["place"], state["goal"]])

    def sample_task(key, level=None):
        return {"place": jnp.float32(0.0), "goal": jnp.float32(2.0)}

    def reset(key, task):
        return task | {"steps": jnp.int32(0)}, first_timestep(see(task))

    def step(key, state, action):
        state = state | {"place": state["place"] + action[0], "steps": state["steps"] + 1}
        there = state["place"] == state["goal"]
        cut = (state["steps"] >= max_steps) & ~there
        return state, TimeStep(see(state), there.astype(jnp.float32), there, cut)

    space = Box((2,), -9.0, 9.0)
    return make_world(reset, step, space, Box((1,), -jnp.inf, jnp.inf), max_steps, sample_task=sample_task)


def onward(task, state):
    return task | {"place": state["place"]}


def back(task, state):
    return {"place": state["place"], "goal": task["place"]}


def walk(moves, **options):
    environment = reset_free(make_line(), onward, back, **options)
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    seen = []
    for move in moves:
        state, timestep = environment.step(KEY, state, jnp.asarray([move], jnp.float32))
        shown = timestep.observation
        flags = int(shown.terminated), int(shown.truncated), int(shown.success)
        seen.append((*map(float, shown.observation), *map(float, shown.successor), float(timestep.reward), *flags))
        assert not timestep.terminated
    return seen, state, timestep


def test_the_tasks_take_turns_from_where_things_lie():
    seen, state, timestep = walk([1, 1, -1, -1, 1])
    assert seen == [
        (1, 2, 1, 2, 0, 0, 0, 0),
        (2, 0, 2, 2, 1, 1, 0, 1),  # There: from 2 it is sent back to 0, and what followed the step is told as it was.
        (1, 0, 1, 0, 0, 0, 0, 0),
        (0, 2, 0, 0, 1, 1, 0, 1),
        (1, 2, 1, 2, 0, 0, 0, 0),
    ]
    assert not timestep.truncated and int(state.num_steps) == 1


def test_an_attempt_that_takes_too_long_is_given_up_where_it_is():
    seen, state, _ = walk([1, 0, 0, 0, -1])
    assert seen[3] == (1, 0, 1, 2, 0, 0, 1, 0)  # After four steps, in the middle.
    assert seen[4] == (0, 2, 0, 0, 1, 1, 0, 1)
    assert int(state.num_steps) == 0


def test_a_judge_ends_attempts_and_pays_them_right_or_wrong():
    seen, state, _ = walk([1, 1, 1, -1], judge=lambda observation: observation[0] == 3.0)
    assert seen[:3] == [
        (1, 2, 1, 2, 0, 0, 0, 0),
        (2, 2, 2, 2, 0, 0, 0, 1),  # It does not see this success: nothing is paid, and the attempt goes on.
        (3, 0, 3, 2, 1, 1, 0, 0),  # A false one.
    ]
    assert seen[3][:2] == (2, 0)  # What followed goes on from there, although the world had held it for ended.
    assert int(state.num_steps) == 1


def test_nothing_is_reset_unless_told():
    _, _, timestep = walk([1, 1, -1], reset_every=3)
    assert timestep.truncated
    assert reset_free(make_line(), onward, back, reset_every=3).max_steps == 3
    with pytest.raises(ValueError, match="`reset_every` must be"):
        reset_free(make_line(), onward, back, reset_every=0)


@pytest.mark.slow
def test_rollouts_hold_attempts_as_episodes():
    """Always one step to the right: there after two steps, then away from 0 until that is given up after four."""

    def apply(params, carry, inputs):
        shape = inputs.observation.shape[:-1]
        return carry, TanhNormal(loc=jnp.ones((*shape, 1)), scale=jnp.full((*shape, 1), 1e-9), low=-1.0, high=1.0)

    policy = Policy(init=lambda key: (), initial_carry=lambda shape: (), apply=apply)
    make = partial(make_reset_free_collector, make_line(), policy, first=onward, second=back, num_envs=1, num_steps=7)
    collector = make(discount=0.5)
    state, rollout, metrics = collector.collect(collector.init(KEY, ()), (), KEY)
    steps = jax.tree.map(lambda leaf: leaf[:, 0], rollout.transition)
    # After 2 it goes away from 0; from 6 on, which was given up, the goal is 2 again.
    np.testing.assert_allclose(steps.observation, [[0, 2], [1, 2], [2, 0], [3, 0], [4, 0], [5, 0], [6, 2]], atol=1e-5)
    np.testing.assert_allclose(
        steps.next_observation, [[1, 2], [2, 2], [3, 0], [4, 0], [5, 0], [6, 0], [7, 2]], atol=1e-5
    )
    np.testing.assert_array_equal(steps.terminated, [0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(steps.truncated, [0, 0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(steps.first, [1, 0, 1, 0, 0, 0, 1])
    np.testing.assert_allclose(steps.extras["return_to_go"], [0.5, 1, 0, 0, 0, 0, 0])
    assert float(metrics["success_rate"].total) == 1.0 and float(metrics["success_rate"].count) == 2.0
    assert float(metrics["false_positives"].total) == 0.0 and float(metrics["false_positives"].count) == 1.0
    assert int(metrics["env_steps"].total) == 7 and int(metrics["episodes"].total) == 2


def test_a_disc_goes_back_to_where_it_started_and_off_the_wall():
    world = tabletop.make_environment()
    task = world.sample_task(KEY)
    state, _ = world.reset(KEY, task)
    table = state.inner.replace(discs=jnp.asarray([[0.08, 0.5]]), pushers=jnp.asarray([[0.9, 0.3]]))
    state = state.replace(inner=table)
    there, again = tabletop.resume(task, state), tabletop.undo(task, state)
    for made in (there, again):  # A disc that touches the wall comes to 0.08 + 2 * 0.05 from it.
        np.testing.assert_allclose(made["discs"], [[0.18, 0.5]], rtol=1e-6)
        np.testing.assert_allclose(made["pushers"], [[0.9, 0.3]], rtol=1e-6)
    np.testing.assert_allclose(there["goals"], task["goals"])
    np.testing.assert_allclose(again["goals"], task["discs"])

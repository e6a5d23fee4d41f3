"""Generations: a stage begins anew, comes near to its teacher, and is let go after its lessons."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

from jaxagents.environments import contextual_gridworld
from jaxagents.learners import ppo
from jaxagents.learners.generations import make_agent, with_teaching_generation
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates

KEY = jax.random.key(0)
WORLD = contextual_gridworld.make_environment(3, max_steps=6)
POLICY = partial(make_actor_critic, encoder=MLP((32,), observation_ndim=3))


def make(learning_rate=0.0, num_taught=20, lessons=3e-3):
    """Returns the program of a PPO of this learning rate, with lessons of another one, and the policy's network."""
    inner = partial(ppo.make_agent, policy=POLICY, optimizer=lambda steps: optax.adam(learning_rate))
    options = {"num_taught": num_taught, "num_epochs": 2, "num_minibatches": 2}
    agent = make_agent(WORLD, inner=inner, policy=POLICY, optimizer=lambda steps: optax.adam(lessons), **options)
    collector = make_rollout_collector(WORLD, agent.policy, num_envs=8, num_steps=12)
    return make_program(collector, agent.make_learner(collector, 40)), agent.policy


def teacher_of(policy):
    """Returns parameters of a policy that is far from uniform."""
    return jax.tree.map(lambda leaf: 10.0 * leaf, policy.init(jax.random.key(7)))


@pytest.mark.exhaustive
def test_it_begins_anew_and_comes_near_to_its_teacher():
    program, policy = make()
    teacher = teacher_of(policy)
    state, alone = program.init(KEY, teacher), program.init(KEY)
    jax.tree.map(np.testing.assert_array_equal, state.learner.params, alone.learner.params)
    play = jax.jit(partial(run_updates, program))
    state, before = play(state, 1)
    state, _ = play(state, 17)
    state, after = play(state, 1)
    assert float(after["train/teacher_kl"].value) < 0.5 * float(before["train/teacher_kl"].value)
    # The teacher itself does not move, and after the last lesson nothing does, since PPO's own rate is 0.
    jax.tree.map(np.testing.assert_array_equal, state.learner.teacher, teacher)
    state, _ = play(state, 1)
    free, metrics = play(state, 3)
    jax.tree.map(np.testing.assert_array_equal, free.learner.params, state.learner.params)
    assert float(metrics["train/teacher_kl"].count) == 0.0


def test_nothing_is_taught_without_a_stage_before():
    program, _ = make()
    start = program.init(KEY)
    state, metrics = jax.jit(partial(run_updates, program))(start, 2)
    jax.tree.map(np.testing.assert_array_equal, state.learner.params, start.learner.params)
    assert float(metrics["train/teacher_kl"].count) == 0.0


def test_without_lessons_it_is_the_inner_agent():
    program, policy = make(num_taught=0)
    teacher = teacher_of(policy)
    jax.tree.map(np.testing.assert_array_equal, program.init(KEY, teacher).learner.params, teacher)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_taught` must be at least 1, got 0"):
        with_teaching_generation(None, None, optax.sgd(0.1), num_taught=0)

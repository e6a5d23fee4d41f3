"""Skills: the world that names them, rewards by hand, and two ways that a learner tells apart by itself."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax

from jaxagents.environments.skills import make_skills
from jaxagents.learners import ppo
from jaxagents.learners.bonuses import make_agent
from jaxagents.learners.diayn import make_skill_bonus
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Discrete, TimeStep
from tests.fakes import make_transition, make_world

KEY = jax.random.key(0)


def make_line(num_steps=6):
    """A place that every step moves by one, to the left or to the right; nothing is paid."""

    def view(state):
        place, moves = state
        return state, TimeStep(
            observation=place[None],
            reward=jnp.zeros(()),
            terminated=moves >= num_steps,
            truncated=jnp.zeros((), bool),
        )

    return make_world(
        lambda key, task: view((jnp.float32(0.0), jnp.int32(0))),
        lambda key, state, action: view((state[0] + 2.0 * action - 1.0, state[1] + 1)),
        Box((1,)),
        Discrete(2),
        num_steps,
    )


def test_the_skill_of_the_task_is_named_until_the_end():
    world = make_skills(make_line(), num_skills=3)
    task = world.sample_task(KEY)
    assert {int(world.sample_task(jax.random.key(seed))[1]) for seed in range(20)} == {0, 1, 2}
    state, timestep = world.reset(KEY, ((), jnp.int32(2)))
    np.testing.assert_array_equal(timestep.observation, [0.0, 0.0, 0.0, 1.0])
    _, timestep = world.step(KEY, state, jnp.int32(0))
    np.testing.assert_array_equal(timestep.observation, [-1.0, 0.0, 0.0, 1.0])
    assert world.observation_space == Box((4,)) and task[1].dtype == jnp.int32
    with pytest.raises(ValueError, match="`num_skills` must be at least 2, got 1; try 4"):
        make_skills(make_line(), num_skills=1)


def transition(places, skills):
    """Steps that lead to places, float `[T, B]`, by skills of two, int `[T, B]`."""
    reached = jnp.concatenate([jnp.asarray(places)[..., None], jax.nn.one_hot(jnp.asarray(skills), 2)], axis=-1)
    nothing = jnp.zeros(reached.shape[:2])
    return make_transition(reached.shape[:2], observation=reached, action=nothing.astype(jnp.int32))


def test_skills_are_paid_what_a_classifier_knows_of_them():
    """Of a linear classifier of one number, by numpy; then of one that learned, where skills part and where not."""
    places = np.array([[1.0, -1.0, 3.0], [-3.0, 2.0, -2.0]], np.float32)
    parted = transition(places, (places > 0.0).astype(int))
    bonus = make_skill_bonus(Box((3,)), None, num_skills=2, encoder=lambda x: x, learning_rate=0.1, num_steps=20)
    apply, state = jax.jit(bonus.apply), bonus.init(KEY, parted)
    paid, after, metrics = apply(state, parted)
    kernel, bias = (np.asarray(state.params["params"]["layers_1"][name]) for name in ("kernel", "bias"))
    logits = (places / places.std())[..., None] * kernel[0] + bias  # Places are 0 on average.
    log_probs = np.take_along_axis(log_softmax(logits, axis=-1), (places > 0.0)[..., None].astype(int), -1)[..., 0]
    np.testing.assert_allclose(paid, log_probs + np.log(2.0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(metrics["skill_loss"], -log_probs.mean(), rtol=1e-3)
    for _ in range(4):
        paid, after, metrics = apply(after, parted)
    assert np.all(np.asarray(paid) > 0.5) and np.all(np.asarray(paid) < np.log(2.0))
    assert float(metrics["skill_accuracy"]) == 1.0
    alike = transition([[1.0, 1.0], [-1.0, -1.0]], [[0, 1], [0, 1]])
    for _ in range(4):
        paid, after, _ = apply(after, alike)
    assert float(jnp.mean(paid)) < 0.01
    with pytest.raises(ValueError, match="`observation_space` must be a vector that ends with 4 numbers of a skill"):
        make_skill_bonus(Box((4,)), None, num_skills=4, encoder=MLP((8,)))


@pytest.mark.exhaustive
def test_two_skills_part_ways():
    """A random player is told apart at chance; who learned goes left for one skill and right for the other."""
    world = make_skills(make_line(), num_skills=2)
    policy, adam = partial(make_actor_critic, encoder=MLP((16,))), lambda num_steps: optax.adam(1e-2)
    agent = make_agent(
        world,
        inner=partial(ppo.make_agent, policy=policy, optimizer=adam, num_epochs=4, num_minibatches=2),
        bonus=partial(make_skill_bonus, num_skills=2, encoder=MLP((16,)), learning_rate=1e-2, num_steps=4),
        only=True,
    )
    collector = make_rollout_collector(world, agent.policy, num_envs=16, num_steps=24)
    program = make_program(collector, agent.make_learner(collector, 60))
    run = jax.jit(partial(run_updates, program))
    state, metrics = run(program.init(KEY), 1)
    assert float(metrics["train/bonus"].value) < 0.1
    state, _ = run(state, 50)
    _, metrics = run(state, 1)
    assert float(metrics["train/bonus"].value) > 0.5 * np.log(2.0)

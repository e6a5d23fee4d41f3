"""Agents of PPO in environments that they must solve."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.tmaze import make_environment
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.ppo import make_agent
from jaxagents.losses.policy_gradient import policy_gradient_loss
from jaxagents.networks.gated_transformer import GTrXL
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.advantages import vtrace
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Box, Discrete, PolicyInput, TimeStep
from tests.fakes import make_world

KEY = jax.random.key(0)


def train(agent, environment, *, num_envs, num_steps):
    """Returns the compiled `init(key)` and `run(state, num_updates)`."""
    collector = make_rollout_collector(environment, agent.policy, num_envs=num_envs, num_steps=num_steps)
    program = make_program(collector, agent.make_learner(collector, 40))
    return jax.jit(program.init), jax.jit(partial(run_updates, program))


def make_bandit(rewards):
    """Two arms; every pull is an episode."""

    def step(key, state, action):
        yes, no = jnp.ones((), bool), jnp.zeros((), bool)
        return state, TimeStep(
            observation=jnp.ones(1), reward=jnp.asarray(rewards)[action], terminated=yes, truncated=no
        )

    return make_world(lambda key, task: (jnp.zeros(()), first_timestep(jnp.ones(1))), step, Box((1,)), Discrete(2), 1)


def test_learns_a_bandit():
    policy = partial(make_actor_critic, encoder=MLP(()), shared=True)
    agent = make_agent(
        make_bandit([0.2, 1.0]),
        policy=policy,
        optimizer=partial(make_adam, learning_rate=0.1),
    )
    init, run = train(agent, make_bandit([0.2, 1.0]), num_envs=8, num_steps=4)
    state, metrics = run(init(KEY), 40)
    steps = jnp.ones((1, 1, 1)), jnp.ones((1, 1), bool)
    made = policy(Box((1,)), Discrete(2))
    _, distribution, value = made.apply(
        state.learner.params, made.initial_carry((1,)), PolicyInput(observation=steps[0], first=steps[1])
    )
    assert float(jax.nn.softmax(distribution.logits)[0, 0, 1]) > 0.9
    np.testing.assert_allclose(value, [[1.0]], atol=0.15)
    assert float(metrics["rollout/episode_return"].value) > 0.8


@pytest.mark.exhaustive
def test_learns_to_remember_from_normalised_observations():
    maze = make_environment(1)
    agent = make_agent(
        maze,
        policy=partial(make_actor_critic, encoder=MLP((16,)), memory=GRU(hidden_size=16), shared=True),
        optimizer=partial(make_adam, learning_rate=1e-2, max_gradient_norm=0.5),
        normalize_observations=True,
    )
    init, run = train(agent, maze, num_envs=16, num_steps=16)
    state, _ = run(init(KEY), 40)
    # Without memory half of the turns are right.
    state, metrics = run(state, 5)
    assert float(metrics["rollout/success_rate"].value) > 0.9
    params = state.learner.params
    assert set(params) == {"params", "statistics"} and float(params["statistics"].count) == 45 * 16 * 16


# Each is of lagging actors, so that their renewal is resumed as well.
GRADIENTS = {
    "a2c": {"num_epochs": 1, "num_minibatches": 1, "loss": policy_gradient_loss},
    "impala": {"num_epochs": 1, "num_minibatches": 1, "loss": policy_gradient_loss, "advantage": vtrace},
    "appo": {"num_epochs": 2, "num_minibatches": 2, "advantage": partial(vtrace, clip_advantage_ratio=None)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_pause_changes_no_bit_and_compiles_nothing(name):
    maze = make_environment(1)
    policy = partial(make_actor_critic, encoder=MLP((8,)), memory=GTrXL(8, num_heads=2, window=3), shared=True)
    agent = make_agent(
        maze,
        policy=policy,
        optimizer=partial(make_adam, learning_rate=1e-2),
        normalize_observations=True,
        reward_discount=0.99,
        actor_period=3,
        **GRADIENTS[name],
    )
    init, run = train(agent, maze, num_envs=4, num_steps=4)
    whole, metrics = run(init(KEY), 8)
    halfway, _ = run(init(KEY), 4)
    resumed, _ = run(halfway, 4)
    assert run._cache_size() == 1 and np.isfinite(float(metrics["train/loss"].value))
    same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), whole.learner, resumed.learner)
    assert all(jax.tree.leaves(same))

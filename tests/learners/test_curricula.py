"""What all curricula share: a later stage goes on with their levels, and begins anew where these do not fit."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

from jaxagents.environments import contextual_gridworld, craft, quest
from jaxagents.environments.quest_levels import field_sizes, graded
from jaxagents.learners import dicode, envgen, plr, ppo, sfl, xland
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.rollouts.levels import make_level_collector

KEY = jax.random.key(0)
MAZES = contextual_gridworld.make_environment(3, max_steps=6)
QUESTS = graded(quest.make_environment(size=4, max_steps=6), (1,))
GRAPH = {"sizes": field_sizes((1,)), "num_played": 2, "num_children": 2, "session": 2, "window": 2, "capacity": 8}
GOALS = {"achievements": craft.ACHIEVEMENTS, "prepare": lambda key, level, index: level}
CURRICULA = {
    "plr": (plr, MAZES, {"capacity": 8}),
    "sfl": (sfl, MAZES, {"num_chosen": 4, "num_judged": 1}),
    "xland": (xland, MAZES, {"num_batches": 1}),
    "dicode": (dicode, QUESTS, GRAPH),
    "envgen": (envgen, craft.make_environment(8, max_steps=6), GOALS),
}
CASES = [name if name in ("plr", "xland") else pytest.param(name, marks=pytest.mark.exhaustive) for name in CURRICULA]


def make(name, num_envs=4):
    module, world, options = CURRICULA[name]
    policy = partial(make_actor_critic, encoder=MLP((4,), observation_ndim=len(world.observation_space.shape)))
    inner = partial(ppo.make_agent, policy=policy, optimizer=lambda steps: optax.adam(1e-3), num_minibatches=1)
    own = {"policy": policy} if module is plr else {}
    agent = module.make_agent(world, inner=inner, **options, **own)
    collector = make_level_collector(world, agent.policy, num_envs=num_envs, num_steps=4)
    return agent.make_learner(collector, 4)


@pytest.mark.parametrize("name", CASES)
def test_a_later_stage_goes_on_with_the_levels(name):
    init = jax.jit(make(name).init)
    state = init(KEY)
    following = init(jax.random.key(1), state)
    jax.tree.map(np.testing.assert_array_equal, following.memory, state.memory)
    wider = jax.eval_shape(make(name, num_envs=8).init, KEY, state)
    assert jax.tree.leaves(wider.memory.levels)[0].shape[0] == 8
    # Of parameters alone, it has none to go on with.
    fresh, other = init(jax.random.key(1)), init(jax.random.key(1), state.params)
    jax.tree.map(np.testing.assert_array_equal, other.memory.levels, fresh.memory.levels)

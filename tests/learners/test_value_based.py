"""Members of the DQN family as compositions: one program, the same bits after a pause, the same on two devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.buffers import make_prioritized_buffer
from jaxagents.environments import tmaze
from jaxagents.learners.dqn import make_agent, make_dqn
from jaxagents.losses.q import munchausen_target, rescaled_q_target
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.schedules import linear_schedule
from jaxagents.rollouts.evaluate import make_evaluator
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, run_updates
from jaxagents.types import Sample
from jaxagents.values.distributions import categorical, implicit_quantiles
from jaxagents.values.q_function import make_q_function
from tests.fakes import make_transition, require_agreement

KEY = jax.random.key(0)
WORLD = tmaze.make_environment(2)
MEMORY = {"memory": GRU(hidden_size=4)}
HISTORY = {"history": True, "dueling": True}
ATOMS = {"distribution": categorical(low=-1.0, high=1.0, num_atoms=5)}
FRACTIONS = {"distribution": implicit_quantiles(num_fractions=3, num_cosines=4)}
# Arguments of the Q-function, of the learner, and the length of the sequences.
FAMILY = {
    "r2d2": (MEMORY | HISTORY, {"num_steps": 2, "burn_in": 1, "target": partial(rescaled_q_target, epsilon=1e-3)}, 5),
    "rainbow": (ATOMS | {"dueling": True, "noise_scale": 0.5}, {"epsilon": 0.0}, 3),
    "munchausen iqn": (FRACTIONS, {"target": partial(munchausen_target, temperature=0.1)}, 1),
    "recurrent rainbow": (MEMORY | ATOMS | {"noise_scale": 0.5}, {"num_steps": 2, "burn_in": 1}, 5),
}
FAST_AND_SLOW = [pytest.param(name, marks=() if name == "r2d2" else pytest.mark.exhaustive) for name in FAMILY]


def make_value(name):
    return partial(make_q_function, encoder=MLP((8,)), **FAMILY[name][0])


def experience(length, batch_size, carry_size):
    """Returns sequences of random steps, leaves `[length, batch_size, ...]`."""
    generator, shape = np.random.default_rng(0), (length, batch_size)
    flags = [jnp.asarray(generator.random(shape) < 0.2) for _ in range(3)]
    seen, following = (jnp.asarray(generator.normal(size=(*shape, 4)), jnp.float32) for _ in range(2))
    transition = make_transition(
        observation=seen,
        action=jnp.asarray(generator.integers(0, 4, shape), jnp.int32),
        reward=jnp.asarray(generator.normal(size=shape), jnp.float32),
        terminated=flags[0],
        truncated=flags[1] & ~flags[0],
        next_observation=following,
        first=flags[2],
        previous_action=jnp.asarray(generator.integers(0, 4, shape), jnp.int32),
        previous_reward=jnp.asarray(generator.normal(size=shape), jnp.float32),
    )
    carry = jnp.asarray(generator.normal(size=(batch_size, carry_size)), jnp.float32) if carry_size else ()
    return Sample(transition=transition, weight=jnp.asarray(generator.random(batch_size), jnp.float32), carry=carry)


@pytest.mark.parametrize("name", FAST_AND_SLOW)
def test_devices_agree_with_one_device(name):
    q_options, options, length = FAMILY[name]
    q_function = make_value(name)(WORLD.observation_space, WORLD.action_space)
    whole = experience(length, 4, 4 if "memory" in q_options else 0)
    alone, learner = (make_dqn(q_function, optax.sgd(0.1), axis_name=axis, **options) for axis in (None, "device"))
    require_agreement(alone, learner, alone.init(KEY), whole, lambda state, metrics: state.network, rtol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("memory", "low", "high"), [(GRU(hidden_size=16), 0.95, 1.0), (None, 0.0, 0.7)])
def test_r2d2_remembers_the_cue_of_a_t_maze_and_a_network_without_memory_cannot(memory, low, high):
    world = tmaze.make_environment(3, max_steps=30)
    agent = make_agent(
        world,
        value=partial(make_q_function, encoder=MLP((16,), activation="relu"), memory=memory),
        optimizer=lambda num_updates: optax.adam(3e-3),
        buffer=make_prioritized_buffer(capacity=20_000, batch_size=32, sequence_length=14, min_size=1_000),
        updates_per_rollout=4,
        num_steps=3,
        burn_in=4,
        target=partial(rescaled_q_target, epsilon=1e-3),
        target_update_rate=0.02,
        epsilon=linear_schedule(start=1.0, end=0.05, num_updates=600),
    )
    collector = make_rollout_collector(world, agent.policy, num_envs=16, num_steps=8)
    program = make_program(collector, agent.make_learner(collector, 400))
    state, _ = jax.jit(partial(run_updates, program))(program.init(KEY), 400)
    results = jax.jit(make_evaluator(world, agent.policy, num_episodes=128))(state.learner.params, KEY)
    assert low <= float(results["success"].mean()) <= high

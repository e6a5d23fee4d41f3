"""Rollouts against opponents: whom is played, and that its parameters count.

The game is Nim with a heap of 4, of which one or two are taken; who takes the last wins. Parameters are a table:
whether to take two of a heap. Between two who always take as many, the second player wins; between one who takes one
and one who takes two, the first.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.environments.timesteps import first_timestep
from jaxagents.environments.wrappers import absorbing
from jaxagents.ops import opponents
from jaxagents.ops.distributions import Categorical
from jaxagents.rollouts.opponents import make_opponent, make_opponents_collector
from jaxagents.types import Array, Box, Discrete, Policy, TimeStep
from tests.fakes import make_world

NUM_ENVS, NUM_STEPS = 8, 12
ONE, TWO = jnp.zeros(5), jnp.ones(5)
BEST = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0])


@struct.dataclass
class Heap:
    size: Array
    player: Array


def make_nim():
    def view(state):
        return state.size.astype(jnp.float32)[None], jnp.stack([jnp.ones((), bool), state.size != 1])

    def reset(key, task):
        state = Heap(size=jnp.int32(4), player=task)
        observation, mask = view(state)
        return state, first_timestep(observation, reward_shape=(2,), action_mask=mask, player=task)

    def step(key, state, action):
        size = state.size - 1 - action.astype(jnp.int32)
        following = Heap(size=size, player=1 - state.player)
        observation, mask = view(following)
        sign = jnp.where(jnp.arange(2) == state.player, 1.0, -1.0)
        timestep = TimeStep(
            observation=observation,
            reward=jnp.where(size == 0, sign, 0.0),
            terminated=size == 0,
            truncated=jnp.zeros((), bool),
            action_mask=mask,
            player=following.player,
        )
        return following, timestep

    return absorbing(
        make_world(
            reset,
            step,
            Box((1,)),
            Discrete(2),
            4,
            num_players=2,
            sample_task=lambda key, level=None: jax.random.bernoulli(key).astype(jnp.int32),
        )
    )


def by_table(params, carry, inputs):
    two = params[inputs.observation[..., 0].astype(jnp.int32)]
    logits = jnp.stack([100.0 - 200.0 * two, 200.0 * two - 100.0], axis=-1)
    return carry, Categorical(logits=logits).mask(inputs.action_mask)


NIM = make_nim()
POLICY = Policy(init=lambda key: ONE, initial_carry=lambda shape: (), apply=by_table)


@functools.cache
def collected():
    """Plays the first opponent, then the second one, then either."""
    collector = make_opponents_collector(
        NIM, POLICY, num_envs=NUM_ENVS, num_steps=NUM_STEPS, num_opponents=4, weights=lambda pool: pool.score
    )
    collect = jax.jit(collector.collect)
    pool = opponents.add(opponents.init_pool(ONE, 2), TWO)
    state = collector.init(jax.random.key(0), ONE)
    results = []
    for score in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]):
        acting = {"params": ONE, "pool": pool.replace(score=jnp.array(score))}
        state, rollout, metrics = collect(state, acting, jax.random.key(1))
        results.append((rollout, metrics))
    assert collect._cache_size() == 1
    return jax.device_get(results)


@pytest.mark.exhaustive
def test_rollouts_say_whom_they_were_played_against():
    for slot, (rollout, metrics) in enumerate(collected()[:2]):
        transition = rollout.transition
        assert transition.reward.shape == (NUM_STEPS, NUM_ENVS)
        np.testing.assert_array_equal(transition.extras["opponent"], slot)
        assert bool(transition.first[0].all()) and float(metrics["episode_return"].count) > 0
        over = transition.terminated
        np.testing.assert_array_equal(transition.first[1:], over[:-1])
        assert float(metrics["success_rate"].total) == float((over & (transition.reward > 0)).sum())


@pytest.mark.exhaustive
@pytest.mark.parametrize("collection", range(3))
def test_the_parameters_of_the_opponent_decide(collection):
    transition = collected()[collection][0].transition
    games = 0
    for env in range(NUM_ENVS):
        for step in range(NUM_STEPS):
            if transition.first[step, env]:
                opened = transition.observation[step, env, 0] == 4.0
            if transition.terminated[step, env]:
                second = transition.extras["opponent"][step, env] == 1
                assert transition.reward[step, env] == (1.0 if opened == second else -1.0)
                games += 1
    assert games > NUM_ENVS


def test_groups_have_opponents_of_their_own():
    slots = collected()[2][0].transition.extras["opponent"]
    assert (slots == slots[:1]).all() and set(slots[0]) == {0, 1}
    assert (slots[0, ::2] == slots[0, 1::2]).all()


@pytest.mark.slow
def test_a_device_with_half_of_the_environments_plays_the_same_games():
    collector = make_opponents_collector(NIM, POLICY, num_envs=NUM_ENVS, num_steps=3, num_opponents=4)
    pool = opponents.add(opponents.init_pool(ONE, 2), TWO)
    state = collector.init(jax.random.key(0), ONE)
    collect = jax.jit(lambda state: collector.collect(state, {"params": ONE, "pool": pool}, jax.random.key(1))[1])
    half = jax.tree.map(lambda leaf: leaf[NUM_ENVS // 2 :], state)
    expected = jax.tree.map(lambda leaf: leaf[:, NUM_ENVS // 2 :], collect(state).transition)
    for one, other in zip(jax.tree.leaves(collect(half).transition), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="whole groups .* got groups of 2 and 3 environments"):
        collect(jax.tree.map(lambda leaf: leaf[:3], state))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_opponents_collector(NIM, POLICY, num_envs=8, num_steps=2, num_opponents=3),
            "`num_opponents` must be at least 1 and divide `num_envs`, got 3 and 8; try 1.",
        ),
        (
            lambda: make_opponent(Policy(init=None, initial_carry=lambda shape: jnp.zeros(shape), apply=None), None),
            "`policy` of an opponent must have no memory, got a recurrent one; try policy=mlp.",
        ),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

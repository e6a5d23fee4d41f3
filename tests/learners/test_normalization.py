"""Learners that see normalised observations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.learners.normalization import normalize_observations, scale_rewards
from jaxagents.learners.replay import with_replay
from jaxagents.learners.rollouts import rollout_agent
from jaxagents.types import REPLICATED, Array, Box, Learner, Rollout
from tests.fakes import make_rollout

KEY = jax.random.key(0)
SPACE = Box((1,))


@struct.dataclass
class Last:
    params: Array


def remembering():
    """Returns a learner whose parameters are the observations and successors of its last batch."""

    def update(state, key, batch):
        del key
        seen = jnp.stack([batch.transition.observation, batch.transition.next_observation])
        return state.replace(params=seen.reshape(state.params.shape)), {"norm": optax.global_norm(seen)}

    return Learner(init=lambda key, params=None: Last(params=jnp.zeros(4) if params is None else params), update=update)


def rollout(observation, next_observation, dtype=jnp.float32):
    observation, next_observation = (jnp.asarray(x, dtype)[None, :, None] for x in (observation, next_observation))
    return make_rollout((1, observation.shape[1]), observation=observation, next_observation=next_observation)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_a_batch_is_normalised_by_the_statistics_before_it(dtype):
    learner = normalize_observations(remembering(), SPACE, clip=3.0)
    state = learner.init(KEY)
    state, _ = learner.update(state, KEY, rollout([2, 6], [6, 10], dtype))
    np.testing.assert_allclose(state.params["params"], [2.0, 3.0, 3.0, 3.0], rtol=1e-6)  # Clipped at 3.
    # Mean 4 and deviation 2 now, from the observations alone.
    state, _ = learner.update(state, KEY, rollout([2, 6], [6, 1000], dtype))
    np.testing.assert_allclose(state.params["params"], [-1.0, 1.0, 1.0, 3.0], rtol=1e-6)
    assert float(state.params["statistics"].count) == 4.0


def test_what_the_dead_of_a_team_see_is_left_out():
    learner, batch = normalize_observations(remembering(), SPACE), rollout([2, 6], [6, 10])
    batch = batch.replace(transition=batch.transition.replace(extras={"agent_mask": jnp.array([[True, False]])}))
    state, _ = learner.update(learner.init(KEY), KEY, batch)
    np.testing.assert_allclose(state.statistics.mean, [2.0])
    assert float(state.statistics.count) == 1.0


def test_parameters_carry_the_statistics_to_the_next_stage():
    learner = normalize_observations(remembering(), SPACE)
    state, _ = learner.update(learner.init(KEY), KEY, rollout([2, 6], [6, 10]))
    following = learner.init(KEY, state.params)
    jax.tree.map(np.testing.assert_array_equal, following.params, state.params)


def test_devices_agree_with_one_device():
    batch = rollout([2, 6, 4, 9], [6, 10, 1, 1])
    parts = jax.tree.map(lambda leaf: leaf.reshape(2, 1, 2, *leaf.shape[2:]), batch)
    learner = normalize_observations(remembering(), SPACE, axis_name="device")
    state = learner.init(KEY)
    actual, _ = jax.jit(jax.vmap(learner.update, (None, None, 0), axis_name="device"))(state, KEY, parts)
    np.testing.assert_allclose(actual.statistics.mean, np.full((2, 1), 5.25), rtol=1e-6)
    np.testing.assert_allclose(actual.statistics.variance, np.full((2, 1), 6.6875), rtol=1e-6)


def test_composes_with_replay_on_the_inside():
    batch = rollout([2, 6], [6, 10])
    learner = with_replay(
        normalize_observations(remembering(), SPACE), make_uniform_buffer(capacity=8, batch_size=2), batch
    )
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, batch)
    assert float(state.params["statistics"].count) == 2.0 and float(metrics["norm"].count) == 1.0
    assert set(jax.tree.leaves(learner.partition(state).inner)) == {REPLICATED}


def test_composes_with_replay_on_the_outside():
    batch = rollout([2, 6], [6, 10])
    replay = with_replay(remembering(), make_uniform_buffer(capacity=8, batch_size=2), batch)
    learner = normalize_observations(replay, SPACE)
    partition = learner.partition(learner.init(KEY))
    assert set(jax.tree.leaves(partition.inner.buffer)) == {0}
    assert set(jax.tree.leaves(partition.statistics)) == {REPLICATED}


def test_refuses_a_clip_that_is_not_positive():
    with pytest.raises(ValueError, match="`clip` must be positive, got -1"):
        normalize_observations(remembering(), SPACE, clip=-1.0)


def rewarded(reward, terminated, truncated):
    """Returns a rollout of lists `[T]` of one environment."""
    reward, *ended = (jnp.asarray(x)[:, None] for x in (reward, terminated, truncated))
    batch = rollout([0.0] * len(reward), [0.0] * len(reward))
    transition = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), batch.transition)
    return Rollout(transition.replace(reward=reward, terminated=ended[0] > 0, truncated=ended[1] > 0), carry=())


def keeping_rewards():
    """Returns a learner whose parameters are the rewards of its last batch."""

    def update(state, key, batch):
        return state.replace(params=batch.transition.reward[:, 0]), {}

    return Learner(init=lambda key, params=None: Last(params=jnp.zeros(4)), update=update)


def test_rewards_are_in_units_of_the_deviation_of_returns():
    """Returns are 1, 0.5 + 2 = 2.5, 4 of a new episode, 0.5 * 4 + 0.5 = 2.5; then 0.5 * 2.5 - 1 = 0.25."""
    learner = scale_rewards(keeping_rewards(), (1,), discount=0.5, clip=2.0)
    update = jax.jit(learner.update)
    first, _ = update(learner.init(KEY), KEY, rewarded([1.0, 2.0, 4.0, 0.5], [0, 1, 0, 0], [0] * 4))
    deviation = np.std([1.0, 2.5, 4.0, 2.5])
    np.testing.assert_allclose(first.params, np.minimum(np.array([1.0, 2.0, 4.0, 0.5]) / deviation, 2.0), rtol=1e-5)
    second, _ = update(first, KEY, rewarded([-1.0, 0.0, 0.0, 0.0], [0, 0, 0, 0], [1, 0, 0, 0]))
    deviation = np.std([1.0, 2.5, 4.0, 2.5, 0.25, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(second.params[0], -1.0 / deviation, rtol=1e-5)
    np.testing.assert_array_equal(second.returns, [0.0])
    following = learner.init(KEY, second)
    np.testing.assert_array_equal(following.statistics.variance, second.statistics.variance)


def test_scaled_rewards_are_the_same_on_two_devices():
    batch = rewarded([1.0, 2.0, 4.0, 0.5], [0, 1, 0, 0], [0] * 4)
    batch = jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, 3 * leaf if leaf.dtype == jnp.float32 else leaf], 1), batch
    )
    alone, learner = (
        scale_rewards(keeping_rewards(), (size,), discount=0.5, axis_name=name) for size, name in ((2, None), (1, "d"))
    )
    expected, _ = jax.jit(alone.update)(alone.init(KEY), KEY, batch)
    parts = jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=1)), batch)
    actual, _ = jax.jit(jax.vmap(learner.update, (None, None, 0), axis_name="d"))(learner.init(KEY), KEY, parts)
    np.testing.assert_allclose(actual.params[0], expected.params, rtol=1e-5)
    np.testing.assert_allclose(actual.returns.reshape(-1), expected.returns, rtol=1e-6)
    assert learner.partition(learner.init(KEY)).returns == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward_discount": 2.0}, r"`reward_discount` must be in \[0, 1\], got 2.0; try null"),
        ({"actor_period": 0}, "`actor_period` must be a positive number, got 0"),
    ],
)
def test_agents_of_rollouts_refuse_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        rollout_agent(None, None, None, optimizer=None, **options)

"""Learners that see normalised observations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.data.buffers import make_uniform_buffer
from jaxagents.learners.normalization import normalize_observations
from jaxagents.learners.replay import with_replay
from jaxagents.types import REPLICATED, Array, Box, Learner, Rollout, Transition

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
    zeros, flags = jnp.zeros(observation.shape[:2]), jnp.zeros(observation.shape[:2], bool)
    transition = Transition(observation, zeros.astype(int), zeros, zeros, flags, flags, next_observation, flags)
    return Rollout(transition=transition, carry=())


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
    actual, _ = jax.vmap(learner.update, (None, None, 0), axis_name="device")(state, KEY, parts)
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

"""What replay buffers return, in which proportion, and that they work in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.buffers import make_prioritized_buffer, make_uniform_buffer
from tests.fakes import make_transition

MAKERS = [make_uniform_buffer, make_prioritized_buffer]
KEY = jax.random.key(0)


def steps(start, num_steps, num_envs):
    """Returns transitions whose observation names the environment and the time."""
    time = jnp.broadcast_to(jnp.arange(start, start + num_steps)[:, None], (num_steps, num_envs))
    row = jnp.broadcast_to(jnp.arange(num_envs)[None], (num_steps, num_envs))
    return make_transition(
        observation=jnp.stack([row, time], axis=-1),
        action=time,
        reward=time.astype(jnp.float32),
        next_observation=jnp.stack([row, time + 1], axis=-1),
    )


def example():
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), steps(0, 1, 1))


def filled(buffer, num_envs, sizes):
    @jax.jit
    def fill():
        state, start = buffer.init(example(), num_envs), 0
        for size in sizes:
            state, start = buffer.add(state, steps(start, size, num_envs)), start + size
        return state

    return fill()


def compiled(buffer):
    functions = {name: jax.jit(getattr(buffer, name)) for name in ("add", "sample", "set_priorities")}
    return buffer._replace(**functions)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("sizes", "starts"),
    # Rings of 6 steps; sequences of 3 never run over the newest step or into what was not written.
    [((3,), {0}), ((2, 2), {0, 1}), ((4, 2), {0, 1, 2, 3}), ((4, 4), {2, 3, 4, 5}), ((4, 4, 3, 2, 1), {8, 9, 10, 11})],
)
def test_samples_are_all_the_consecutive_steps_there_are(make, sizes, starts):
    buffer = make(capacity=12, batch_size=200, sequence_length=3)
    state = filled(buffer, 2, sizes)
    transition, weight, _ = jax.jit(buffer.sample)(state, KEY)
    row, time = np.moveaxis(np.asarray(transition.observation), -1, 0)
    assert time.shape == (3, 200) and weight.shape == (200,)
    np.testing.assert_array_equal(time, time[:1] + np.arange(3)[:, None])
    np.testing.assert_array_equal(row, np.broadcast_to(row[:1], row.shape))
    np.testing.assert_array_equal(transition.reward, time)
    assert set(time[0]) == starts and set(row[0]) == {0, 1}
    np.testing.assert_allclose(weight, 1.0)


@pytest.mark.parametrize("make", MAKERS)
def test_can_sample_once_enough_is_there(make):
    buffer = make(capacity=40, batch_size=2, sequence_length=2, min_size=8)
    assert not buffer.can_sample(filled(buffer, 2, [3]))
    assert buffer.can_sample(filled(buffer, 2, [4]))
    assert buffer.can_sample(filled(buffer, 2, [12, 12]))
    short = make(capacity=40, batch_size=2, sequence_length=3, min_size=1)
    assert not short.can_sample(filled(short, 2, [2]))
    assert short.can_sample(filled(short, 2, [3]))


@pytest.mark.parametrize("make", MAKERS)
def test_sampling_an_empty_buffer_is_finite(make):
    buffer = compiled(make(capacity=40, batch_size=4, sequence_length=2))
    state = buffer.init(example(), 2)
    transition, weight, indices = buffer.sample(state, KEY)
    assert np.all(np.isfinite(weight)) and np.all(np.isfinite(transition.reward))
    after = buffer.set_priorities(state, indices, jnp.full(4, -1.0))
    jax.tree.map(np.testing.assert_array_equal, state, after)


@pytest.mark.slow
def test_priorities_are_written_at_the_sampled_indices():
    buffer = compiled(make_prioritized_buffer(capacity=8, batch_size=64, priority_exponent=1.0))
    state = filled(buffer, 2, [4])
    transition, _, indices = buffer.sample(state, KEY)
    # Only environment 1 at time 2 keeps a large priority.
    chosen = np.all(np.asarray(transition.observation[0]) == np.array([1, 2]), axis=-1)
    assert 0 < chosen.sum() < 64
    state = buffer.set_priorities(state, indices, jnp.where(chosen, 9.0, 1.0))
    transition, weight, indices = buffer.sample(state, KEY)
    now = np.all(np.asarray(transition.observation[0]) == np.array([1, 2]), axis=-1)
    assert now.sum() == 36  # 64 * 9 / (9 + 7)
    np.testing.assert_allclose(weight, np.where(now, 1.0 / 9.0, 1.0), rtol=1e-6)


def test_a_negative_priority_leaves_the_old_one():
    buffer = compiled(make_prioritized_buffer(capacity=8, batch_size=16, priority_exponent=1.0))
    state = filled(buffer, 2, [4])
    _, _, indices = buffer.sample(state, KEY)
    state = buffer.set_priorities(state, indices, jnp.full(16, 3.0))
    unchanged = buffer.set_priorities(state, indices, jnp.full(16, -1.0))
    jax.tree.map(np.testing.assert_array_equal, state, unchanged)


def test_new_sequences_get_the_largest_priority_so_far():
    buffer = compiled(make_prioritized_buffer(capacity=8, batch_size=16, priority_exponent=0.5))
    state = filled(buffer, 1, [4])
    _, _, indices = buffer.sample(state, KEY)
    state = buffer.set_priorities(state, indices, jnp.full(16, 6.25))  # The value is 2.5.
    state = buffer.add(state, steps(4, 1, 1))
    state = buffer.set_priorities(state, indices, jnp.full(16, 0.25))  # The value is 0.5.
    transition, weight, _ = buffer.sample(state, KEY)
    new = np.asarray(transition.observation)[0, :, 1] == 4
    assert 7 <= new.sum() <= 10  # 16 * 2.5 / (4 * 0.5 + 2.5) is 8.9.
    np.testing.assert_allclose(weight, np.where(new, 0.2, 1.0), rtol=1e-6)


@pytest.mark.exhaustive
def test_overwritten_sequences_lose_their_priority():
    buffer = compiled(make_prioritized_buffer(capacity=4, batch_size=8, priority_exponent=1.0))
    state = filled(buffer, 1, [4])
    _, _, indices = buffer.sample(state, KEY)
    state = buffer.set_priorities(state, indices, jnp.full(8, 0.5))
    state = buffer.add(state, steps(4, 2, 1))
    np.testing.assert_allclose(state.priorities[0, 1], 2 * 0.5 + 2 * 1.0)


@pytest.mark.parametrize("make", MAKERS)
def test_samples_of_shards_do_not_depend_on_the_devices(make):
    buffer = make(capacity=80, batch_size=8, sequence_length=2, num_shards=4)
    state = filled(buffer, 4, [3, 4])
    whole, whole_weight, _ = jax.jit(buffer.sample)(state, KEY)
    parts = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), state)
    split, split_weight, _ = jax.jit(jax.vmap(buffer.sample, (0, None), (1, 0, 0)))(parts, KEY)
    np.testing.assert_array_equal(whole.observation, split.observation.reshape(whole.observation.shape))
    np.testing.assert_array_equal(whole_weight, split_weight.reshape(-1))
    np.testing.assert_array_equal(whole.observation[0, :, 0], np.repeat(np.arange(4), 2))
    starts = np.asarray(whole.observation[0, :, 1]).reshape(4, 2)
    assert np.any(starts != starts[:1])  # Every shard has a random stream of its own.


def test_every_leaf_of_the_state_has_the_shard_axis_first():
    state = make_prioritized_buffer(capacity=80, batch_size=8, num_shards=4).init(example(), 8)
    assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("make", MAKERS)
def test_a_scan_over_a_donated_buffer_makes_no_copy_of_it(make):
    buffer = make(capacity=100_000, batch_size=8)
    state = jax.eval_shape(lambda: buffer.init(example(), 2))

    def run(state, keys):
        def step(state, key):
            state = buffer.add(state, steps(0, 1, 2))
            transition, _, indices = buffer.sample(state, key)
            return buffer.set_priorities(state, indices, transition.reward[0]), None

        return jax.lax.scan(step, state, keys)[0]

    memory = jax.jit(run, donate_argnums=0).lower(state, jax.random.split(KEY, 4)).compile().memory_analysis()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < 0.01 * size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_uniform_buffer(capacity=8, batch_size=0), "`batch_size` must be at least 1, got 0"),
        (lambda: make_uniform_buffer(capacity=8, batch_size=5, num_shards=2), "divisible by `num_shards`.* try 6"),
        (lambda: make_uniform_buffer(capacity=8, batch_size=2, min_size=9), "`min_size` must be at most `capacity`"),
        (lambda: make_prioritized_buffer(capacity=8, batch_size=2, priority_exponent=1.5), "`priority_exponent` must"),
        (
            lambda: make_uniform_buffer(capacity=12, batch_size=2, sequence_length=2).init(example(), 8),
            "`capacity` must be at least `num_envs \\* sequence_length`, got 12 for 8 and 2; try 16",
        ),
        (lambda: filled(make_uniform_buffer(capacity=8, batch_size=2), 2, [5]), "`capacity` must hold a whole rollout"),
        (
            lambda: make_uniform_buffer(capacity=80, batch_size=2, num_shards=2).init(example(), 3),
            "`num_envs` must be divisible by `num_shards`",
        ),
        (
            lambda: filled(make_prioritized_buffer(capacity=8, batch_size=2, sequence_length=3), 2, [4]),
            "`capacity` must hold a whole rollout and a sequence, got 4 steps",
        ),
    ],
)
def test_refuses_sizes_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()

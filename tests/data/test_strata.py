"""Batches of which a share has a mark: exact counts, uniform draws, and nothing that is not held."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.strata import make_stratified_buffer
from tests.fakes import make_transition

KEY = jax.random.key(0)


def transition_of(values, marked):
    """`values` `[T, B]` are observations."""
    values = jnp.asarray(values, jnp.float32)
    return make_transition(
        observation=values[..., None],
        action=jnp.zeros(values.shape, jnp.int32),
        reward=values,
        extras={"taught": jnp.asarray(marked)},
    )


def fill(buffer, *batches):
    step = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), batches[0])
    state = buffer.init(step, batches[0].reward.shape[1])
    for batch in batches:
        state = jax.jit(buffer.add)(state, batch)
    return state


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_share_of_every_batch_has_the_mark(num_shards):
    """Two of twelve steps have it, both in the second environment of each shard; they are drawn in the same ratio."""
    values = np.arange(12).reshape(3, 4)
    marked = np.isin(values, [1, 5, 3, 11])
    buffer = make_stratified_buffer(capacity=16, batch_size=400, mark="taught", share=0.25, num_shards=num_shards)
    state = fill(buffer, transition_of(values, marked))
    sample, weight, _ = jax.jit(buffer.sample)(state, KEY)
    assert sample.reward.shape == (1, 400) and np.all(weight == 1.0)
    assert int(sample.extras["taught"].sum()) == 100
    drawn = np.asarray(sample.reward[0]).astype(int)
    counts = np.bincount(drawn, minlength=12)
    assert counts.sum() == 400 and set(np.flatnonzero(counts)) == set(range(12))
    np.testing.assert_allclose(counts[[1, 5, 3, 11]], 25.0, atol=15.0)
    np.testing.assert_allclose(counts[~marked.reshape(-1)], 37.5, atol=20.0)


def test_only_what_is_held_is_drawn():
    """The ring of four steps holds the last ones of two rollouts of three; the first mark was overwritten."""
    buffer = make_stratified_buffer(capacity=4, batch_size=64, mark="taught")
    no = np.zeros((3, 1), bool)
    first = transition_of([[0.0], [1.0], [2.0]], ~no)
    state = fill(buffer, first)
    draw = jax.jit(buffer.sample)
    assert set(np.asarray(draw(state, KEY)[0].reward[0])) == {0.0, 1.0, 2.0}  # Of one kind: from all.
    state = buffer.add(state, transition_of([[3.0], [4.0], [5.0]], no))
    sample = draw(state, KEY)[0]
    assert set(np.asarray(sample.reward[0, :32])) == {2.0} and set(np.asarray(sample.reward[0, 32:])) == {3.0, 4.0, 5.0}


def test_all_or_nothing():
    values, marked = [[0.0, 1.0]], [[True, False]]
    for share, wanted in ((0.0, 1.0), (1.0, 0.0)):
        buffer = make_stratified_buffer(capacity=2, batch_size=8, mark="taught", share=share)
        sample = jax.jit(buffer.sample)(fill(buffer, transition_of(values, marked)), KEY)[0]
        np.testing.assert_array_equal(sample.reward, [[wanted] * 8])


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"`share` must be in \[0, 1\], got 1.5; try 0.5"):
        make_stratified_buffer(capacity=4, batch_size=2, mark="taught", share=1.5)
    with pytest.raises(ValueError, match="`mark` must be a key of `extras`, .'taught'., got 'taken'"):
        fill(make_stratified_buffer(capacity=4, batch_size=2, mark="taken"), transition_of([[0.0]], [[True]]))

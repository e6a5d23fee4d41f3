"""Trees as few arrays: by hand, and what is done to all leaves alike."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.packing import pack, unpack

TREE = {"a": jnp.float32(1.0), "b": (jnp.int32(2), jnp.float32(3.0)), "c": jnp.array([4.0, 5.0])}


def test_leaves_of_one_shape_and_type_lie_beside_each_other():
    packed = pack(TREE)
    assert [array.tolist() for array in packed] == [[1.0, 3.0], [2], [[4.0], [5.0]]]
    assert [array.dtype for array in packed] == [jnp.float32, jnp.int32, jnp.float32]
    jax.tree.map(np.testing.assert_array_equal, unpack(packed, TREE), TREE)
    assert pack({}) == [] and unpack([], {}) == {}


def test_what_is_done_to_all_leaves_is_done_to_each():
    doubled = unpack([2 * array for array in pack(TREE)], jax.eval_shape(lambda: TREE))
    jax.tree.map(np.testing.assert_array_equal, doubled, jax.tree.map(lambda leaf: 2 * leaf, TREE))


def test_leaves_keep_axes_that_a_scan_adds():
    shapes = []

    def step(carry, number):
        metrics = {"number": number, "square": number**2}
        shapes.append(jax.eval_shape(lambda: metrics))
        return carry, pack(metrics)

    stacked = jax.jit(lambda: jax.lax.scan(step, (), jnp.arange(3.0)))()[1]
    assert jax.tree.map(list, unpack(stacked, shapes[0])) == {"number": [0.0, 1.0, 2.0], "square": [0.0, 1.0, 4.0]}

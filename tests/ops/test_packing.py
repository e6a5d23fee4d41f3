"""Trees as few arrays: by hand, and what is done to all leaves alike."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.ops.packing import pack, pack_rows, unpack, unpack_rows

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


NAN = np.array([0x7FC00001, 0xFF800123], np.uint32).view(np.float32)  # Two that are told apart by their bits alone.
STEP = {
    "ended": jnp.array([True, False]),
    "image": jnp.ones((2, 5, 13), jnp.uint8),
    "observation": jnp.stack([jnp.asarray(NAN), jnp.array([-0.0, 2.0])]),
    "action": jnp.array([[[3], [4]], [[5], [-6]]]),
    "reward": jnp.array([7.0, 8.0]),
    "half": jnp.array([1.5, 2.5], jnp.bfloat16),
    "key": jax.random.split(jax.random.key(0), 2),
    "nothing": None,
}


def test_narrow_leaves_are_columns_and_the_others_stay():
    rows = pack_rows(STEP, num_axes=1)
    assert {name: array.shape for name, array in rows.columns.items()} == {
        "int32": (2, 3),
        "bfloat16": (2, 1),
        "float32": (2, 3),
    }
    assert rows.columns["int32"].tolist() == [[3, 4, 1], [5, -6, 0]]
    assert [leaf.dtype for leaf in rows.wide] == [jnp.uint8, STEP["key"].dtype]
    assert (
        len(pack_rows(STEP, num_axes=1, widest=1).wide) == 4 and len(pack_rows(STEP, num_axes=1, widest=65).wide) == 1
    )


def same_bits(actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if jnp.issubdtype(actual.dtype, jax.dtypes.prng_key):
        actual, expected = jax.random.key_data(actual), jax.random.key_data(expected)
    assert np.asarray(actual).tobytes() == np.asarray(expected).tobytes()


def test_rows_come_back_bit_by_bit_whatever_their_leading_axes():
    jax.tree.map(same_bits, jax.jit(lambda: unpack_rows(pack_rows(STEP, num_axes=1)))(), STEP)
    stacked = jax.lax.scan(lambda carry, _: (carry, pack_rows(STEP, num_axes=1)), (), length=3)[1]
    jax.tree.map(lambda steps, leaf: same_bits(steps[2], leaf), unpack_rows(stacked), STEP)
    row = jax.tree.map(lambda leaf: leaf[1], pack_rows(STEP, num_axes=1))
    jax.tree.map(lambda one, leaf: same_bits(one, leaf[1]), unpack_rows(row), STEP)


def test_rows_of_one_kind_have_one_structure_whatever_their_number():
    one, two = pack_rows(STEP, num_axes=1), pack_rows(jax.tree.map(lambda leaf: leaf[None], STEP), num_axes=2)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert unpack_rows(pack_rows({}, num_axes=1)) == {}

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxagents.training.checkpoints.snapshots import describe_target, restore_snapshot, take_snapshot


def test_take_snapshot_holds_plain_arrays_with_content():
    state = {"a": jnp.array([1, 2], jnp.int8), "none": None, "empty": (), "zero": jnp.zeros((0, 3)), "n": np.arange(2)}
    snapshot = take_snapshot({**state, "key": jax.random.key(5)})
    assert list(snapshot) == ["['a']", "['key']", "['n']"]
    assert all(type(array) is np.ndarray for array in snapshot.values())
    np.testing.assert_array_equal(snapshot["['key']"], np.array([0, 5], np.uint32))


def test_take_snapshot_shares_no_memory_with_the_state():
    state = {"jax": jnp.arange(100), "numpy": np.arange(100)}
    snapshot = take_snapshot(state)
    donate = jax.jit(lambda x: x - 1, donate_argnums=0)
    donate(state["jax"]).block_until_ready()
    state["numpy"] -= 1
    assert state["jax"].is_deleted()  # a view that somebody holds would have kept jax from donating
    np.testing.assert_array_equal(snapshot["['jax']"], range(100))
    np.testing.assert_array_equal(snapshot["['numpy']"], range(100))


def test_restore_snapshot_gives_every_leaf_its_kind_and_place():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    split, second = NamedSharding(mesh, PartitionSpec("data")), SingleDeviceSharding(jax.devices()[1])
    key_type = jax.random.key(0, impl="rbg").dtype
    abstract = {
        "free": jax.ShapeDtypeStruct((2,), jnp.float32),
        "uncommitted": jnp.zeros((2,)),
        "committed": jax.device_put(jnp.zeros((2,)), second),
        "split": jax.ShapeDtypeStruct((4,), jnp.int32, sharding=split),
        "keys": jax.ShapeDtypeStruct((2,), key_type, sharding=split),
        "zero": jax.ShapeDtypeStruct((0, 2), jnp.int8, sharding=split),
        "no_keys": jax.ShapeDtypeStruct((0,), key_type),
        "numpy": np.zeros((2,), np.float64),
        "none": None,
    }
    target = describe_target(abstract)
    assert {name: type(leaf) for name, leaf in target.items()} == {
        "['free']": np.ndarray,
        "['uncommitted']": np.ndarray,
        "['committed']": jax.ShapeDtypeStruct,
        "['split']": jax.ShapeDtypeStruct,
        "['keys']": jax.ShapeDtypeStruct,
        "['numpy']": np.ndarray,
    }
    assert target["['keys']"].shape == (2, 4)
    found = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in target.items()}
    placed = {
        name: jax.device_put(found[name], leaf.sharding)
        for name, leaf in target.items()
        if isinstance(leaf, jax.ShapeDtypeStruct)
    }
    restored = restore_snapshot({**found, **placed}, abstract)
    assert not restored["free"].committed
    assert not restored["uncommitted"].committed
    assert restored["committed"].devices() == {jax.devices()[1]}
    assert restored["split"].sharding == split
    assert restored["keys"].dtype == key_type
    assert restored["keys"].sharding.is_equivalent_to(split, 1)
    assert restored["zero"].sharding == split
    assert restored["zero"].shape == (0, 2)
    assert restored["no_keys"].dtype == key_type
    assert type(restored["numpy"]) is np.ndarray
    assert restored["none"] is None


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_snapshot_of_keys_draws_the_same_numbers(impl):
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)
    restored = restore_snapshot(take_snapshot([keys]), [keys])[0]
    np.testing.assert_array_equal(jax.random.bits(restored[2]), jax.random.bits(keys[2]))

"""States as flat dicts of plain arrays, the form in which checkpoints hold them, and back.

Orbax takes neither typed PRNG keys nor arrays of size zero, and stumbles over None and empty containers: a snapshot has
the key data, and only leaves with content; everything else comes back from the abstract state.
"""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.types import PyTree

Snapshot = dict[str, Any]


def take_snapshot(state: PyTree) -> Snapshot:
    """Copies a state into `{path: array}`, of buffers that nobody else holds, so that the caller may donate his.

    Args:
        state: pytree of jax arrays, typed PRNG keys and numpy arrays.

    Returns:
        Numpy arrays; leaves that are spread over processes stay jax arrays.
    """
    arrays = {
        name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in _leaves_with_content(state).items()
    }
    for array in arrays.values():
        if isinstance(array, jax.Array) and array.is_fully_addressable and not _is_on_cpu(array):
            array.copy_to_host_async()  # all transfers at once; the copies below then find them done
    return {name: _copy(array) for name, array in arrays.items()}


def _is_on_cpu(array: jax.Array) -> bool:
    """Tells whether the host has the array already: a transfer would then keep a view, and jax from donating it."""
    return all(device.platform == "cpu" for device in array.devices())


def describe_target(abstract_state: PyTree) -> Snapshot:
    """Describes the snapshot of a state for `orbax.checkpoint.args.StandardRestore`.

    Args:
        abstract_state: pytree of arrays or `jax.ShapeDtypeStruct`.

    Returns:
        `{path: target}`: a ShapeDtypeStruct with a sharding for a jax array, a numpy array for a numpy array.
    """
    return {name: _target_of(leaf) for name, leaf in _leaves_with_content(abstract_state).items()}


def restore_snapshot(snapshot: Snapshot, abstract_state: PyTree, only: Collection[str] | None = None) -> PyTree:
    """Builds the state from a snapshot.

    Args:
        snapshot: `{path: array}`, restored into `describe_target(abstract_state)`.
        abstract_state: as there.
        only: paths of the leaves to build; the others stay as they are in `abstract_state`. None builds all.

    Returns:
        Pytree with the structure of `abstract_state`. Where it has a ShapeDtypeStruct without a sharding, or an array
        that is not committed to a device, the array returned is not committed either.
    """

    def restore(path: Any, leaf: Any) -> Any:
        if only is not None and jax.tree_util.keystr(path) not in only:
            return leaf
        array = _zero_size(leaf) if 0 in leaf.shape else snapshot[jax.tree_util.keystr(path)]
        if isinstance(leaf, np.ndarray | np.generic):
            return array
        array = jnp.array(array) if _sharding_of(leaf) is None else array
        return jax.random.wrap_key_data(array, impl=_key_implementation(leaf)) if _is_key(leaf) else array

    return jax.tree_util.tree_map_with_path(restore, abstract_state)


def _leaves_with_content(tree: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if 0 not in leaf.shape}


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _copy(array: Any) -> Any:
    # On a CPU, numpy and orbax look into the buffer of a jax array instead of copying it.
    looked_into = not isinstance(array, jax.Array) or next(iter(array.devices())).platform == "cpu"
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return jnp.copy(array) if looked_into else array
    return np.array(array, copy=True if looked_into else None)


def _data_of(leaf: Any) -> jax.ShapeDtypeStruct:
    data = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=_sharding_of(leaf))


def _target_of(leaf: Any) -> Any:
    data = _data_of(leaf)
    # Orbax restores numpy where it is shown numpy; a broadcast zero takes no memory.
    return np.broadcast_to(np.zeros((), data.dtype), data.shape) if data.sharding is None else data


def _zero_size(leaf: Any) -> Any:
    data = _data_of(leaf)
    zeros = np.zeros(data.shape, data.dtype)
    if data.sharding is None:
        return zeros
    return jax.make_array_from_callback(data.shape, data.sharding, zeros.__getitem__)


def _sharding_of(leaf: Any) -> jax.sharding.Sharding | None:
    unbound = isinstance(leaf, jax.Array) and not leaf.committed
    return None if unbound else getattr(leaf, "sharding", None)


def _key_implementation(leaf: Any) -> Any:
    found = []  # key_impl takes arrays and tracers, but no ShapeDtypeStruct
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def first_not_finite(params: PyTree) -> str | None:
    """Returns the path of the first leaf with a number that is not finite, as `keystr` has it; None: all are."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):
            continue
        whole = leaf.is_fully_addressable or leaf.is_fully_replicated
        finite = np.isfinite(np.asarray(leaf)) if whole else jax.numpy.isfinite(leaf)  # Shards of other processes.
        if not finite.all():
            return jax.tree_util.keystr(path)
    return None

"""Places a program on one device, under pmap, or over the shards of a mesh."""

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxagents.learners.liveness import paths_read
from jaxagents.training.program import AXIS_NAME, REPLICATED, Program, TrainState, report, run_updates, stage_keys
from jaxagents.training.sharding import Rule, shardings_of_state
from jaxagents.types import Array, Params, PyTree

Mode = Literal["jit", "pmap", "sharded"]
_NO_LIMITS: Mapping[str, np.ndarray] = MappingProxyType({})


class Runner(NamedTuple):
    """A program placed on devices.

    Attributes:
        init: `(seed, stage=0, start=None) -> state`; `start` is that of `Learner.init`; `seed` is one number, or one
            for every copy, see `stage_keys`.
        run: `(state, num_updates, limits={}) -> (state, metrics)`: a chunk of updates as one compiled program, whatever
            their number; donates the state and returns at once. With `limits` of experience it may do fewer, see
            `run_updates`. A metric without a count in the chunk is NaN, and a metric that was not finite is infinite.
        lower: `(limits) -> jax.stages.Lowered`: the program of `run`, so that a thread can compile it; None if there is
            more than one program.
        params: `(state) -> params` that policies act with, on every device.
        to_global: `(state) -> state` with the shapes of one device, whatever the placement; this is what checkpoints
            hold.
        from_global: its inverse.
        abstract: shapes, types and shardings of a global state.
        acting: paths of the leaves of a global state that `params` reads, as given by `jax.tree_util.keystr`.
        replicated: sharding of arrays that every device holds completely.
    """

    init: Callable[..., PyTree]
    run: Callable[..., tuple[PyTree, dict[str, Array]]]
    lower: Callable[[Mapping[str, np.ndarray]], jax.stages.Lowered] | None
    params: Callable[[PyTree], Params]
    to_global: Callable[[PyTree], TrainState]
    from_global: Callable[[TrainState], PyTree]
    abstract: TrainState
    acting: frozenset[str]
    replicated: NamedSharding


def axis_name_of(mode: Mode) -> str | None:
    """Returns the axis that a learner must reduce over; None on one device."""
    return None if mode == "jit" else AXIS_NAME


def select_devices(mode: Mode, num_devices: int | None) -> list[jax.Device]:
    """Returns the first `num_devices` devices; null selects all of them, or one under `jit`.

    Raises:
        ValueError: the mode is unknown, there are fewer devices, or there are several devices under `jit`, or several
            processes under `pmap`.
    """
    if mode not in ("jit", "pmap", "sharded"):
        raise ValueError(f"`devices.mode` must be jit, pmap or sharded, got {mode!r}.")
    available = jax.devices()
    if mode == "jit":
        if num_devices not in (None, 1) or jax.process_count() > 1:
            raise ValueError(
                f"`devices.mode` must be pmap or sharded to use several devices, got jit with {num_devices} devices "
                f"and {jax.process_count()} processes; try devices=sharded."
            )
        return available[:1]
    if mode == "pmap" and jax.process_count() > 1:
        raise ValueError(
            f"`devices.mode` must be sharded with several processes, got pmap and {jax.process_count()} of them; "
            "try devices=sharded."
        )
    if num_devices is not None and not 1 <= num_devices <= len(available):
        raise ValueError(
            f"`devices.num_devices` must be between 1 and the {len(available)} devices there are, got {num_devices}."
        )
    return available[:num_devices]


def place(
    program: Program,
    *,
    mode: Mode,
    devices: list[jax.Device],
    read_params: Callable[[Array], Params] | None = None,
) -> Runner:
    """Compiles a program for devices.

    Every mode starts from the same global state, so that one seed gives the same environments, tasks and random streams
    on any number of devices.

    Args:
        program: program whose learner was made with `axis_name_of(mode)`.
        mode: "jit": one device; "pmap": one copy of the state per device, stacked on a leading axis; "sharded": one
            global state over a mesh, in which every device holds and processes its own shard.
        devices: see `select_devices`.
        read_params: `(key) -> params` from which a run starts if it is given none, read on the host, as from a
            checkpoint of another ecosystem; None: the learner makes them.

    Returns:
        The runner.

    Raises:
        ValueError: the size of an axis is not divisible by the number of devices.
    """
    initialise = _initialise(program)
    abstract = jax.eval_shape(jax.jit(initialise), np.uint32(0), np.uint32(0), None)
    axes = program.partition(abstract)
    _require_divisible(abstract, axes, len(devices), program.divided_option)
    mesh = Mesh(np.asarray(devices), (AXIS_NAME,), axis_types=(AxisType.Auto,))
    shardings = jax.tree.map(lambda axis: NamedSharding(mesh, _spec(axis)), axes)
    compiled = jax.jit(initialise, out_shardings=shardings, compiler_options=_options_of_one_call(devices[0]))

    def init(seed: Any, stage: int = 0, start: PyTree | None = None) -> TrainState:
        if start is None and read_params is not None:
            start = _read(read_params, stage_keys(seed, stage, program.num_seeds))
        return compiled(np.asarray(seed, np.uint32), np.uint32(stage), start)

    axis_name = axis_name_of(mode)
    if mode == "pmap":
        return _place_pmap(_chunk(program, axis_name), init, _with_shardings(abstract, shardings), axes, mesh)
    return _place(program, init, abstract, axes, shardings, mesh, axis_name=axis_name)


def place_on_mesh(
    program: Program,
    mesh: Mesh,
    *,
    rules: Mapping[str, Rule] = MappingProxyType({}),
    read_params: Callable[..., Params] | None = None,
) -> Runner:
    """Compiles a program for a mesh that also splits parameters.

    Along the data axis it works as in `place`: every device has its own rows, and gradients are averaged explicitly.
    Along the other two axes the compiler splits the work, guided by the shards of the state: leaves of the learner by
    the rules, rows of the collector and of replay buffers over `fsdp`, and following these, gradients, activations and
    caches of keys and values.

    Args:
        program: program whose learner was made with `mesh.axis_name_on(mesh)`.
        mesh: see `mesh.make_mesh`.
        rules: see `sharding.spec_by_rules`.
        read_params: `(key, shardings) -> params`, see `place`; every tensor is read directly into its shards, and no
            device ever holds more of it.

    Returns:
        The runner.

    Raises:
        ValueError: see `spec_by_rules`; data times fsdp does not divide the rows; or an optimiser works on one flat
            vector.
    """
    abstract = jax.eval_shape(program.init, jax.random.key(0))
    axes = program.partition(abstract)
    _require_divisible(abstract, axes, mesh.shape[AXIS_NAME] * mesh.shape["fsdp"], program.divided_option)
    shardings, splits_rows = shardings_of_state(abstract, axes, mesh, rules), mesh.shape[AXIS_NAME] > 1
    initialise = _initialise(program)
    start_anew = jax.jit(initialise, out_shardings=shardings)
    start_from_read = jax.jit(initialise, out_shardings=shardings, donate_argnums=2)

    def init(seed: Any, stage: int = 0, start: PyTree | None = None) -> TrainState:
        numbers = np.asarray(seed, np.uint32), np.uint32(stage)
        if start is not None or read_params is None:
            return start_anew(*numbers, start)
        keys, placed = stage_keys(seed, stage, program.num_seeds), shardings.learner.params
        # With several seeds, the host stacks copies.
        read = jax.device_put(_read(read_params, keys), placed) if keys.ndim else read_params(keys, placed)
        return start_from_read(*numbers, read)

    # The compiler refuses means over an axis of one device between its own axes.
    return _place(program, init, abstract, axes, shardings, mesh, axis_name=AXIS_NAME if splits_rows else None)


def _options_of_one_call(device: jax.Device) -> dict[str, int]:
    """Returns options for a program that runs once: on CPUs, the same arithmetic compiles in two thirds of the time."""
    level = "xla_backend_optimization_level"
    return {} if device.platform != "cpu" or level in os.environ.get("XLA_FLAGS", "") else {level: 1}


def _initialise(program: Program) -> Callable[..., TrainState]:
    return lambda seed, stage, start: program.init(stage_keys(seed, stage, program.num_seeds), start)


def _chunk(program: Program, axis_name: str | None) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Returns `(state, num_updates, limits) -> (state, metrics)` for the share of one device."""

    def chunk(
        state: TrainState, num_updates: Array, limits: Mapping[str, Array]
    ) -> tuple[TrainState, dict[str, Array]]:
        state, merged = run_updates(program, state, num_updates, limits=limits, axis_name=axis_name)
        if axis_name is not None:
            merged = jax.lax.psum(merged, axis_name)
        return state, {name: report(summary) for name, summary in merged.items()}

    return chunk


def _with_shardings(abstract: TrainState, shardings: PyTree) -> TrainState:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract, shardings
    )


def _acting(abstract: TrainState) -> frozenset[str]:
    return frozenset(jax.tree_util.keystr(path[1:]) for path in paths_read(lambda s: s.learner.params, abstract))


def _place(
    program: Program,
    init: Callable[..., TrainState],
    abstract: TrainState,
    axes: PyTree,
    shardings: PyTree,
    mesh: Mesh,
    *,
    axis_name: str | None,
) -> Runner:
    """Compiles a program over a mesh; with `axis_name`, every device works on its own rows along that axis."""
    replicated, chunk = NamedSharding(mesh, PartitionSpec()), _chunk(program, axis_name)
    if axis_name is not None:
        # By default, the partitioner gathers sorted or shuffled rows, and every device then processes all of them.
        specs = jax.tree.map(_spec, axes)
        chunk = jax.shard_map(
            chunk,
            mesh=mesh,
            in_specs=(specs, PartitionSpec(), PartitionSpec()),
            out_specs=(specs, PartitionSpec()),
            axis_names={axis_name},
            check_vma=False,
        )
    compiled = jax.jit(
        chunk,
        in_shardings=(shardings, replicated, replicated),
        out_shardings=(shardings, replicated),
        donate_argnums=0,
    )
    abstract = _with_shardings(abstract, shardings)
    return Runner(
        init=init,
        run=lambda state, num_updates, limits=_NO_LIMITS: compiled(state, np.int32(num_updates), dict(limits)),
        lower=lambda limits: compiled.lower(abstract, np.int32(0), dict(limits)),
        params=lambda state: state.learner.params,
        to_global=lambda state: state,
        from_global=lambda state: state,
        abstract=abstract,
        acting=_acting(abstract),
        replicated=replicated,
    )


def _place_pmap(
    chunk: Callable[..., tuple[TrainState, dict[str, Array]]],
    init: Callable[..., TrainState],
    abstract: TrainState,
    axes: PyTree,
    mesh: Mesh,
) -> Runner:
    devices = list(mesh.devices.flat)
    count = len(devices)
    stacked = NamedSharding(mesh, PartitionSpec(AXIS_NAME))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    split = jax.jit(
        lambda state: jax.tree.map(lambda leaf, axis: _split(leaf, axis, count), state, axes), out_shardings=stacked
    )
    merge = jax.jit(lambda state: jax.tree.map(_merge, state, axes), out_shardings=shardings)
    mapped = jax.pmap(chunk, axis_name=AXIS_NAME, in_axes=(0, None, None), devices=devices, donate_argnums=0)

    def run(
        state: PyTree, num_updates: int, limits: Mapping[str, np.ndarray] = _NO_LIMITS
    ) -> tuple[PyTree, dict[str, Array]]:
        state, metrics = mapped(state, np.int32(num_updates), dict(limits))
        return state, jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], metrics)

    return Runner(
        init=lambda seed, stage=0, start=None: split(init(seed, stage, start)),
        run=run,
        lower=None,
        params=lambda state: merge(state).learner.params,
        to_global=merge,
        from_global=split,
        abstract=abstract,
        acting=_acting(abstract),
        replicated=NamedSharding(mesh, PartitionSpec()),
    )


def _read(read_params: Callable[[Array], Params], keys: Array) -> Params:
    """Reads the parameters for one key `[]`, or stacks those for several keys `[num_seeds]`, on the host."""
    if not keys.ndim:
        return jax.device_get(read_params(keys))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(jax.device_get(read_params(key)) for key in keys))


def _spec(axis: int) -> PartitionSpec:
    return PartitionSpec() if axis == REPLICATED else PartitionSpec(*(None,) * axis, AXIS_NAME)


def _split(leaf: Array, axis: int, count: int) -> Array:
    """Reshapes `[.., D * n, ..]` to `[D, .., n, ..]`, or makes a copy per device."""
    if axis == REPLICATED:
        return jnp.broadcast_to(leaf[None], (count, *leaf.shape))
    shape = leaf.shape[:axis] + (count, leaf.shape[axis] // count) + leaf.shape[axis + 1 :]
    return jnp.moveaxis(leaf.reshape(shape), axis, 0)


def _merge(leaf: Array, axis: int) -> Array:
    if axis == REPLICATED:
        return leaf[0]
    leaf = jnp.moveaxis(leaf, 0, axis)
    return leaf.reshape(leaf.shape[:axis] + (-1,) + leaf.shape[axis + 2 :])


def _require_divisible(abstract: TrainState, axes: PyTree, count: int, divided_option: str) -> None:
    sizes = dict(jax.tree_util.tree_leaves_with_path(abstract))
    for path, axis in jax.tree_util.tree_leaves_with_path(axes):
        if axis == REPLICATED:
            continue
        name = f"collector.{divided_option}" if path[0].name == "collector" else "learner.buffer.num_shards"
        size = sizes[path].shape[axis]
        if size % count:
            lower, upper = size // count * count, -(-size // count) * count
            nearest = f"{lower} or {upper}" if lower else f"{upper}"
            raise ValueError(f"`{name}` must be divisible by the device count, got {size} and {count}; try {nearest}.")

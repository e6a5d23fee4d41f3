"""Meshes of devices: an axis for rows of batches, and two for shards of parameters."""

import math
from collections.abc import Mapping

import jax
from jax.sharding import AxisType, Mesh

from jaxagents.training.devices import select_devices
from jaxagents.training.program import AXIS_NAME
from jaxagents.training.sharding import AXES


def make_mesh(sizes: Mapping[str, int | None], num_devices: int | None = None) -> Mesh:
    """Makes a mesh with an axis for rows of batches, and axes for shards of parameters.

    Args:
        sizes: number of devices along `data`, `fsdp` and `tensor`; null, for one of them: all that are left, which is
            the default of `data`; the other axes have size 1 by default.
        num_devices: number of devices of the mesh; null: all there are, or as many as the sizes need.

    Returns:
        The mesh; its data axis has the same name as in `devices.place`.

    Raises:
        ValueError: an axis is unknown, or the number of devices does not match the sizes.
    """
    names = ("data", *AXES)
    if not set(sizes) <= set(names):
        raise ValueError(f"`devices.mesh` must have the axes {', '.join(names)}, got {', '.join(sizes)}.")
    counts = {"data": 1 if None in sizes.values() else None} | dict.fromkeys(AXES, 1) | dict(sizes)
    left = [name for name, count in counts.items() if count is None]
    for name, count in counts.items():
        if len(left) > 1 or (name not in left and (not isinstance(count, int) or count < 1)):
            raise ValueError(f"`devices.mesh` must have numbers from 1 on and at most one null, got {dict(sizes)}.")
    available = len(jax.devices()) if num_devices is None else num_devices
    others = math.prod(count for count in counts.values() if count is not None)
    shape = tuple(available // others if count is None else count for count in counts.values())
    exact = left or num_devices is not None or jax.process_count() > 1
    if not 1 <= math.prod(shape) <= available or (exact and math.prod(shape) != available):
        listed = " x ".join(f"{name} {'?' if count is None else count}" for name, count in counts.items())
        raise ValueError(
            f"`devices.mesh` must be of the devices there are, got {listed} and {available} devices; try "
            f"data null, fsdp {math.gcd(available, counts['fsdp'] or 1)} and tensor 1."
        )
    devices = select_devices("sharded", math.prod(shape))
    axis_types = (AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, (AXIS_NAME, *AXES), axis_types=axis_types, devices=devices)


def axis_name_on(mesh: Mesh) -> str | None:
    """Returns the axis that a learner must reduce over; None if no data axis splits rows."""
    return AXIS_NAME if mesh.shape[AXIS_NAME] > 1 else None

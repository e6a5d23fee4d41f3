"""Graded rewards: a weighted sum of parts that a world reports becomes its dense reward."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import jax.numpy as jnp

from jaxagents.environments.text.tracing import trace_world
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, State


def with_graded(
    world: World, *, weights: Mapping[str, float], gate: Mapping[str, float] = MappingProxyType({})
) -> World:
    """Makes the weighted sum of parts the progress of a world; `reward=dense` pays its increase.

    `progress = sum_k weight_k part_k` if every part of the gate has its value, and 0 otherwise. A step earns the
    increase, so the return of an episode is the progress at its end.

    Args:
        world: rules with one seat.
        weights: weights of parts, by name; "success" is a part, too, which counts only at the end.
        gate: values that parts must have for anything to count, by name, such as `{format: 1.0}`.

    Returns:
        The rules with this progress, and without payoffs.

    Raises:
        ValueError: there are no weights, several seats, or a part that the world does not report; the message lists its
            parts.

    References:
        Qian et al. (2025), "ToolRL: Reward is All Tool Learning Needs" (parts of a call).
        Zhang et al. (2025), "Shop-R1" (parts of different weight).
    """
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat to be graded, got {world.num_seats} in {world.name!r}.")
    if not weights:
        raise ValueError("`weights` must hold at least one part, got none; try {success: 1.0}.")
    there = ("success", *trace_world(world).status.parts)
    for name in (*weights, *gate):
        if name not in there:
            raise ValueError(
                f"`weights` and `gate` must name parts of {world.name!r}, got {name!r}; there are {', '.join(there)}."
            )

    def status(state: State) -> Status:
        judged = world.status(state)
        parts: dict[str, Array] = {"success": judged.success & judged.over, **judged.parts}
        open_gate = [jnp.asarray(parts[name], jnp.float32) == value for name, value in gate.items()]
        total = sum((weight * jnp.asarray(parts[name], jnp.float32) for name, weight in weights.items()), jnp.zeros(()))
        progress = jnp.where(jnp.all(jnp.asarray(open_gate, bool)), total, 0.0)
        return judged.replace(progress=progress, payoff=None)

    return replace(world, status=status)

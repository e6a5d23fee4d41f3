"""Separate parameters for every agent of a team, as a combinator of policies and actor-critics."""

from typing import Any, TypeVar

import jax

from jaxagents.types import ActorCritic, Array, Carry, Params, PolicyInput

_Actor = TypeVar("_Actor", bound=Any)


def separate_parameters(policy: _Actor, num_agents: int) -> _Actor:
    """Gives every agent separate parameters; without this, all agents share them.

    Args:
        policy: `Policy`, `QFunction` or `ActorCritic` of one agent.
        num_agents: N, number of agents.

    Returns:
        A record of the same type for observations `[T, B, N, ...]` and carries `[B, N, ...]`; the leaves of its
        parameters have a leading axis of N.

    Raises:
        ValueError: `num_agents` is not positive, or (when applied) differs from the observations.
    """
    if num_agents < 1:
        raise ValueError(
            f"`num_agents` must be at least 1 for separate parameters, got {num_agents}; try sharing them."
        )

    def init(key: Array) -> Params:
        return jax.vmap(policy.init)(jax.random.split(key, num_agents))

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple:
        found = jax.tree.leaves(inputs.observation)[0].shape[2]
        if found != num_agents:
            raise ValueError(
                f"`observation` must be [T, B, {num_agents}, ...] for as many parameters, got {found} agents."
            )

        # The carry has no time axis, and agents share the beginnings of their episodes.
        of_agents = PolicyInput(observation=2, first=None, action_mask=2, previous_action=2, previous_reward=2, noise=2)  # type: ignore[arg-type]
        return jax.vmap(policy.apply, in_axes=(0, 1, of_agents), out_axes=_out_axes(policy))(params, carry, inputs)

    return policy._replace(init=init, apply=apply)


def _out_axes(policy: Any) -> tuple[int, ...]:
    return (1, 2, 2) if isinstance(policy, ActorCritic) else (1, 2)

"""A set of parameters for every agent of a team, as a combinator of action-value functions."""

import jax

from jaxagents.types import Array, Params, PyTree
from jaxagents.values.q_function import QFunction


def separate_parameters(q_function: QFunction, num_agents: int, observation_space: PyTree) -> QFunction:
    """Gives every agent parameters of its own; without this, all agents share them.

    Args:
        q_function: of one agent with discrete actions.
        num_agents: N.
        observation_space: of one agent; says which axis of an observation is that of the agents.

    Returns:
        The function `(params, observation [..., N, *shape]) -> [..., N, A]`; the leaves of its parameters have a
        leading axis of N.

    Raises:
        ValueError: `num_agents` is not positive, or (when applied) not that of the observations.
    """
    if num_agents < 1:
        raise ValueError(
            f"`num_agents` must be at least 1 for separate parameters, got {num_agents}; try sharing them."
        )

    def init(key: Array) -> Params:
        return jax.vmap(q_function.init)(jax.random.split(key, num_agents))

    def apply(params: Params, observation: PyTree) -> Array:
        axes = jax.tree.map(lambda space, leaf: leaf.ndim - len(space.shape) - 1, observation_space, observation)
        leaf, axis = jax.tree.leaves(observation)[0], jax.tree.leaves(axes)[0]
        if leaf.shape[axis] != num_agents:
            raise ValueError(
                f"`observation` must be [..., {num_agents}, *shape] for as many parameters, got {leaf.shape[axis]}."
            )
        return jax.vmap(q_function.apply, in_axes=(0, axes), out_axes=-2)(params, observation)

    return QFunction(init=init, apply=apply)

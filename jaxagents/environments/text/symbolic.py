"""The symbolic interface of a text world: actions by index, for policies of arrays."""

from dataclasses import replace

import jax.numpy as jnp

from jaxagents.types import Array, Discrete, Environment, State, TimeStep


def symbolic(environment: Environment) -> Environment:
    """Converts a text world to an environment with discrete actions.

    Action i is row i of `text.actions`, to which `action_mask` already refers. The observation is still the word ids,
    which `networks.embedding.Embedding` reads; `text.prompt` is not shown.

    Args:
        environment: text world.

    Returns:
        The environment with `Discrete` actions and without a text interface.

    Raises:
        ValueError: it is not a text world, or its actions are too many to be listed.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name}, which has no `text`.")
    actions = environment.text.actions
    if actions is None:
        raise ValueError(f"`environment` must have actions that can be listed, {environment.name} has free ones.")

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        return environment.step(key, state, jnp.asarray(actions)[action])

    return replace(
        environment, name=f"{environment.name}-symbolic", step=step, action_space=Discrete(len(actions)), text=None
    )

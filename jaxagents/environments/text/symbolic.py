"""The other interface of a text world: actions by number, for policies of arrays."""

from dataclasses import replace

import jax.numpy as jnp

from jaxagents.types import Array, Discrete, Environment, State, TimeStep


def symbolic(environment: Environment) -> Environment:
    """Makes a text world an environment with discrete actions.

    Action i is the row i of `text.actions`, and `action_mask` already speaks of those. The observation stays the word
    ids, which `networks.embedding.Embedding` reads; nothing of `text.prompt` is shown.

    Args:
        environment: a text world.

    Returns:
        The environment with `Discrete` actions and without a text interface.

    Raises:
        ValueError: not a text world, or one whose actions are too many to be listed.
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

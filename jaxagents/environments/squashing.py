"""The border between policies and environments of bounded continuous actions."""

from dataclasses import replace
from typing import Any

from jaxagents.ops.distributions import is_bounded, squash
from jaxagents.types import Array, Environment, State, TimeStep


def squash_action(action: Array, action_space: Any) -> Array:
    """Computes the action that an environment gets of what a policy gave: `tanh`, stretched to a bounded box.

    Args:
        action: of a policy: samples before the squashing where the space is a bounded `Box`.
        action_space: of the environment.

    Returns:
        The action; what a policy of another space gave is the action already.
    """
    return squash(action, low=action_space.low, high=action_space.high) if is_bounded(action_space) else action


def squash_actions(environment: Environment) -> Environment:
    """Makes an environment take the actions of policies, see `squash_action`.

    Policies act, remember and judge before the squashing, so that no log-probability inverts a saturated tanh. What
    lets a policy act in an environment, as rollouts and evaluations do, puts this around it.

    Args:
        environment: any; one without a bounded `Box` of actions is returned as it is.
    """
    space = environment.action_space
    if not is_bounded(space):
        return environment

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        return environment.step(key, state, squash_action(action, space))

    return replace(environment, step=step)

"""The interface between policies and environments with bounded continuous actions."""

from dataclasses import replace
from typing import Any

from jaxagents.ops.distributions import is_bounded, squash
from jaxagents.types import Array, Environment, State, TimeStep


def squash_action(action: Array, action_space: Any) -> Array:
    """Computes an environment's action from a policy's action: `tanh`, scaled to a bounded box.

    Args:
        action: action of a policy: a sample before squashing if the space is a bounded `Box`.
        action_space: action space of the environment.

    Returns:
        The action; for other spaces, the policy's action is returned unchanged.
    """
    return squash(action, low=action_space.low, high=action_space.high) if is_bounded(action_space) else action


def squash_actions(environment: Environment) -> Environment:
    """Makes an environment that takes the actions of policies, see `squash_action`.

    Policies act, store and evaluate actions before squashing, so that no log-probability inverts a saturated tanh. Code
    that lets a policy act in an environment, such as rollouts and evaluations, applies this wrapper.

    Args:
        environment: any environment; one without a bounded `Box` of actions is returned unchanged.
    """
    space = environment.action_space
    if not is_bounded(space):
        return environment

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        return environment.step(key, state, squash_action(action, space))

    return replace(environment, step=step)

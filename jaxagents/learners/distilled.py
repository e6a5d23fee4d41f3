"""Policy gradients whose reference is a teacher: distillation on own episodes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import replace_innermost, wrapper_agent
from jaxagents.types import Agent, Array, Environment, Learner, Params, State


def with_teacher(learner: Learner, teacher: Params) -> Learner:
    """Makes a policy-gradient learner whose reference is a teacher instead of the policy that the run starts from.

    Args:
        learner: learner that keeps a `reference`, from which `ops.reference_credit.distillation` learns.
        teacher: parameters of the teacher, for the same model.

    Returns:
        The learner.

    Raises:
        ValueError: (in `init`) the parameters belong to another model.
    """

    def init(key: Array, start: Any = None) -> State:
        return replace_innermost(
            learner.init(key, start), lambda state: state.replace(reference=_checked(state.params))
        )

    def _checked(params: Params) -> Params:
        shapes, given = (jax.tree.map(jnp.shape, tree) for tree in (params, teacher))
        if shapes != given:
            raise ValueError(f"`teacher` must be of the model that learns, of shapes {shapes}, got {given}.")
        return jax.tree.map(jnp.array, teacher)

    return learner._replace(init=init)


def make_agent(environment: Environment, *, teacher: Callable[[], Params], **options: Any) -> Agent:
    """Assembles a policy-gradient agent that learns from a teacher.

    Args:
        environment: text world.
        teacher: `() -> parameters` of the same model.
        **options: further arguments of `learners.policy_gradient.make_agent`, except `reference`.
    """
    agent = policy_gradient.make_agent(environment, **options | {"reference": True})
    return wrapper_agent(agent, lambda learner, *_: with_teacher(learner, teacher()))

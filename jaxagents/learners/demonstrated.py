"""Policy gradients of batches that hold an expert's episodes beside own ones: LUFFY, CHORD and their relatives."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import wrapper_agent
from jaxagents.types import Agent, Array, Demonstrated, Environment, Episode, Learner, Metrics, State


def with_demonstrations(learner: Learner, *, shared_groups: bool = True) -> Learner:
    """Makes a learner of `Demonstrated` batches, which are one batch of episodes to the learner inside.

    Args:
        learner: of `Episode` batches; `losses.demonstrated` are losses that tell the two kinds of rows apart, and
            `ops.mixing.mixed` weighs them.
        shared_groups: the expert's episode of a task is one more of the group of the policy's own, with which returns
            are compared (LUFFY); else it is a group of its own.

    Returns:
        The learner. The expert's episodes come last, are marked as `control`, and have been drawn with probability 1.

    References:
        Yan et al. (2025), "Learning to Reason under Off-Policy Guidance" (LUFFY), section 3; Zhang et al. (2025),
        "On-Policy RL Meets Off-Policy Experts" (CHORD), section 3.
    """

    def update(state: State, key: Array, batch: Demonstrated) -> tuple[State, Metrics]:
        return learner.update(state, key, side_by_side(batch, shared_groups=shared_groups))

    return learner._replace(update=update)


def side_by_side(batch: Demonstrated, *, shared_groups: bool = True) -> Episode:
    """Puts own episodes and an expert's into one batch.

    Args:
        batch: n tasks with G own episodes each.
        shared_groups: see `with_demonstrations`.

    Returns:
        `n G + n` rows, own ones first, without values of what follows a cut.
    """
    own, expert = (episode.replace(bootstrap_value=None) for episode in (batch.own, batch.demonstration))
    if not shared_groups:
        expert = expert.replace(group=-1 - jnp.arange(expert.group.shape[0], dtype=expert.group.dtype))
    certain = jnp.zeros_like(expert.behavior_log_prob)
    expert = expert.replace(behavior_log_prob=certain, sampling_log_prob=certain)
    rows = [
        episode.replace(control=jnp.full(episode.success.shape, is_shown), keep=None)
        for episode, is_shown in ((own, False), (expert, True))
    ]
    return jax.tree.map(lambda one, other: jnp.concatenate([one, other]), *rows)


def make_agent(environment: Environment, *, shared_groups: bool = True, **options: Any) -> Agent:
    """Assembles a policy-gradient agent that also learns from an expert's episodes, of `Demonstrated` batches.

    Args:
        environment: a text world of one seat.
        shared_groups: see `with_demonstrations`.
        **options: of `learners.policy_gradient.make_agent`.
    """
    agent = policy_gradient.make_agent(environment, **options)
    return wrapper_agent(agent, lambda learner, *_: with_demonstrations(learner, shared_groups=shared_groups))

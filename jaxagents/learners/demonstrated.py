"""Policy gradients on batches that contain both own and an expert's episodes: LUFFY, CHORD and related methods."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import wrapper_agent
from jaxagents.types import Agent, Array, Demonstrated, Environment, Episode, Learner, Metrics, State


def with_demonstrations(learner: Learner, *, shared_groups: bool = True) -> Learner:
    """Makes a learner of `Demonstrated` batches, which the inner learner sees as one batch of episodes.

    Args:
        learner: learner for `Episode` batches; `losses.demonstrated` has losses that distinguish the two kinds of rows,
            and `ops.mixing.mixed` weights them.
        shared_groups: whether the expert's episode of a task joins the group of the policy's episodes, with which
            returns are compared (LUFFY); else it is a separate group.

    Returns:
        The learner. The expert's episodes come last, are marked as `control`, and count as drawn with probability 1.

    References:
        Yan et al. (2025), "Learning to Reason under Off-Policy Guidance" (LUFFY), section 3; Zhang et al. (2025),
        "On-Policy RL Meets Off-Policy Experts" (CHORD), section 3.
    """

    def update(state: State, key: Array, batch: Demonstrated) -> tuple[State, Metrics]:
        return learner.update(state, key, side_by_side(batch, shared_groups=shared_groups))

    return learner._replace(update=update)


def side_by_side(batch: Demonstrated, *, shared_groups: bool = True) -> Episode:
    """Combines own and an expert's episodes into one batch.

    Args:
        batch: n tasks with G own episodes each.
        shared_groups: see `with_demonstrations`.

    Returns:
        `n G + n` rows, own episodes first, without values after truncations.
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
    """Assembles a policy-gradient agent that also learns from an expert's episodes, from `Demonstrated` batches.

    Args:
        environment: a text world with one seat.
        shared_groups: see `with_demonstrations`.
        **options: further arguments of `learners.policy_gradient.make_agent`.
    """
    agent = policy_gradient.make_agent(environment, **options)
    return wrapper_agent(agent, lambda learner, *_: with_demonstrations(learner, shared_groups=shared_groups))

"""Agents that learn from every rollout as it comes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.combinators import rollout_shapes, steps_per_update
from jaxagents.learners.independent import independent_agents
from jaxagents.learners.lagged import with_lagged_actor
from jaxagents.learners.normalization import normalize_observations as normalize_observations_of_learner
from jaxagents.learners.normalization import scale_rewards
from jaxagents.ops.checks import require_positive
from jaxagents.policies.normalization import normalize_observations as normalize_observations_of_policy
from jaxagents.policies.teams import separate_parameters
from jaxagents.types import Agent, Collector, Environment, Learner, Rollout


def rollout_agent(
    make_learner: Callable[..., Learner],
    policy: Any,
    environment: Environment,
    *,
    optimizer: Callable[..., optax.GradientTransformation],
    normalize_observations: bool = False,
    reward_discount: float | None = None,
    actor_period: int = 1,
    share_parameters: bool = True,
    around: Callable[[Learner, Callable[[], Rollout], int], Learner] | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Joins a policy with the learner of its rollouts.

    Args:
        make_learner: `(optimizer, *, num_updates, axis_name, **options) -> Learner` of rollouts.
        policy: a `Policy` that acts with the parameters of the learner.
        environment: gives the spaces and the number of agents.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        normalize_observations: standardises observations by running statistics.
        reward_discount: divides rewards by the standard deviation of returns of this discount, see `scale_rewards`;
            None leaves them as they are.
        actor_period: updates between two renewals of the parameters that act, see `with_lagged_actor`; with 1, nothing
            lags.
        share_parameters: False gives every agent of a team parameters and a learner of its own, see
            `independent_agents`; `policy` and `make_learner` are always those of one agent.
        around: `(learner, shapes, updates of the whole run) -> Learner` around that of `make_learner`; `shapes()`
            returns those of a rollout over all devices. None: nothing is around it.
        axis_name: mapped device axis over whose members rollouts are split.
        **options: further arguments of `make_learner`.

    Returns:
        The agent.

    Raises:
        ValueError: a setting is out of its range, or parameters are not shared, without a team.
    """
    require_positive("actor_period", actor_period)
    if reward_discount is not None and not 0.0 <= reward_discount <= 1.0:
        raise ValueError(f"`reward_discount` must be in [0, 1], got {reward_discount}; try null for raw rewards.")
    space, num_agents = environment.observation_space, environment.num_agents
    make: Callable[..., Learner] = partial(make_learner, axis_name=axis_name, **options)
    make(optax.identity())  # Refuses settings before anything is compiled.
    if not share_parameters:
        policy = separate_parameters(policy, num_agents)
    if normalize_observations:
        policy = normalize_observations_of_policy(policy, space)

    def make_agent_learner(collector: Collector, num_updates: int) -> Learner:
        def shapes() -> Rollout:
            rollout = rollout_shapes(collector, policy)
            return _in_float32(rollout) if normalize_observations else rollout

        num_steps = num_updates * steps_per_update(make_learner, options)
        learner = make(optimizer(num_steps), num_updates=num_updates)
        if around is not None:
            learner = around(learner, shapes, num_updates)
        if reward_discount is not None:
            shape = shapes().transition.reward.shape[1 : None if share_parameters else 2]
            learner = scale_rewards(learner, shape, discount=reward_discount, axis_name=axis_name)
        if not share_parameters:
            learner = independent_agents(learner, num_agents)
        if normalize_observations:
            learner = normalize_observations_of_learner(learner, space, axis_name=axis_name)
        return learner if actor_period == 1 else with_lagged_actor(learner, every=actor_period)

    return Agent(policy=policy, make_learner=make_agent_learner)


def _in_float32(rollout: Rollout) -> Rollout:
    """Returns the shapes of a rollout whose observations are normalised."""
    seen = rollout.transition.observation, rollout.transition.next_observation
    seen = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), seen)
    return rollout.replace(transition=rollout.transition.replace(observation=seen[0], next_observation=seen[1]))

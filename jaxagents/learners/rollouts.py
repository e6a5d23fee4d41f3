"""Agents that learn from each rollout when it arrives."""

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
    """Combines a policy with a learner of its rollouts.

    Args:
        make_learner: `(optimizer, *, num_updates, axis_name, **options) -> Learner` of rollouts.
        policy: `Policy` that acts with the parameters of the learner.
        environment: environment that defines the spaces and the number of agents.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        normalize_observations: whether to standardise observations by running statistics.
        reward_discount: discount of the returns by whose standard deviation rewards are divided, see `scale_rewards`;
            None: rewards are not scaled.
        actor_period: number of updates between two renewals of the acting parameters, see `with_lagged_actor`; with 1,
            there is no lag.
        share_parameters: whether the agents of a team share parameters and a learner; else see `independent_agents`.
            `policy` and `make_learner` are always those of one agent.
        around: `(learner, shapes, number of updates of the run) -> Learner`, which wraps that of `make_learner`;
            `shapes()` returns those of a rollout over all devices. None: no wrapper.
        axis_name: mapped device axis over which rollouts are split.
        **options: further arguments of `make_learner`.

    Returns:
        The agent.

    Raises:
        ValueError: a setting is out of its range, or parameters are not shared, but there is no team.
    """
    require_positive("actor_period", actor_period)
    if reward_discount is not None and not 0.0 <= reward_discount <= 1.0:
        raise ValueError(f"`reward_discount` must be in [0, 1], got {reward_discount}; try null for raw rewards.")
    space, num_agents = environment.observation_space, environment.num_agents
    make: Callable[..., Learner] = partial(make_learner, axis_name=axis_name, **options)
    make(optax.identity())  # Refuses invalid settings before anything is compiled.
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

"""Agents that learn from every rollout as it comes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.learners.independent import independent_agents
from jaxagents.learners.lagged import with_lagged_actor
from jaxagents.learners.normalization import normalize_observations as normalize_observations_of_learner
from jaxagents.learners.normalization import scale_rewards
from jaxagents.learners.replay import rollout_shapes
from jaxagents.ops.checks import require_positive
from jaxagents.policies.normalization import normalize_observations as normalize_observations_of_policy
from jaxagents.policies.teams import separate_parameters
from jaxagents.types import Agent, Collector, Learner, Policy, PyTree, Rollout


def make_rollout_agent(
    policy: Policy,
    make_rollout_learner: Callable[[Callable[[], Rollout], int], Learner],
    observation_space: PyTree,
    *,
    normalize_observations: bool = False,
    reward_discount: float | None = None,
    actor_period: int = 1,
    separate_agents: int | None = None,
    axis_name: str | None = None,
) -> Agent:
    """Joins a policy with the learner of its rollouts.

    Args:
        policy: acts with the parameters of the learner.
        make_rollout_learner: `(shapes, updates of the whole run) -> Learner` of rollouts; `shapes()` returns those of a
            rollout over all devices.
        observation_space: of the environment.
        normalize_observations: standardises observations by running statistics.
        reward_discount: divides rewards by the standard deviation of returns of this discount, see `scale_rewards`;
            None leaves them as they are.
        actor_period: updates between two renewals of the parameters that act, see `with_lagged_actor`; with 1, nothing
            lags.
        separate_agents: number of the agents that have parameters and a learner each, see `independent_agents`; policy
            and learner are then those of one agent. None for one agent, or a team that shares parameters.
        axis_name: mapped device axis over whose members rollouts are split.

    Returns:
        The agent.

    Raises:
        ValueError: `actor_period` or `separate_agents` is not positive, or `reward_discount` is out of [0, 1].
    """
    require_positive("actor_period", actor_period)
    if reward_discount is not None and not 0.0 <= reward_discount <= 1.0:
        raise ValueError(f"`reward_discount` must be in [0, 1], got {reward_discount}; try null for raw rewards.")
    if separate_agents is not None:
        policy = separate_parameters(policy, separate_agents)
    if normalize_observations:
        policy = normalize_observations_of_policy(policy, observation_space)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        def shapes() -> Rollout:
            rollout = rollout_shapes(collector, jax.eval_shape(policy.init, jax.random.key(0)))
            return _in_float32(rollout) if normalize_observations else rollout

        learner = make_rollout_learner(shapes, num_updates)
        if reward_discount is not None:
            shape = shapes().transition.reward.shape[1 : None if separate_agents is None else 2]
            learner = scale_rewards(learner, shape, discount=reward_discount, axis_name=axis_name)
        if separate_agents is not None:
            learner = independent_agents(learner, separate_agents)
        if normalize_observations:
            learner = normalize_observations_of_learner(learner, observation_space, axis_name=axis_name)
        return learner if actor_period == 1 else with_lagged_actor(learner, every=actor_period)

    return Agent(policy=policy, make_learner=make_learner)


def _in_float32(rollout: Rollout) -> Rollout:
    """Returns the shapes of a rollout whose observations are normalised."""
    seen = rollout.transition.observation, rollout.transition.next_observation
    seen = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), seen)
    return rollout.replace(transition=rollout.transition.replace(observation=seen[0], next_observation=seen[1]))

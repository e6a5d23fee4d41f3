"""Rollouts of practice without resets."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxagents.environments.reset_free import Attempt, Onward, reset_free
from jaxagents.ops.returns import discounted_returns
from jaxagents.policies.actor_critic import as_policy
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.types import (
    ActorCritic,
    Array,
    Carry,
    Collector,
    Count,
    Environment,
    Mean,
    Metrics,
    Params,
    Policy,
    PolicyInput,
    Rollout,
    State,
)


def make_reset_free_collector(
    environment: Environment,
    policy: Policy | ActorCritic,
    *,
    first: Onward,
    second: Onward,
    judge: Callable[[Array], Array] | None = None,
    reset_every: int | None = None,
    discount: float = 0.99,
    num_envs: int,
    num_steps: int,
) -> Collector:
    """Makes a collector of attempts at two tasks in turn, without resets in between.

    For the learner, attempts end like episodes: nothing follows a success, and an attempt that was given up bootstraps
    from the state that it reached under its own task.

    Args:
        environment: see `reset_free`; evaluations play it unchanged.
        policy: policy that acts, without memory of the previous step.
        first: see `reset_free`.
        second: see `reset_free`.
        judge: see `reset_free`.
        reset_every: see `reset_free`.
        discount: discount of `extras["return_to_go"]`, the rewards up to the end of the attempt or of the rollout.
        num_envs: see `make_rollout_collector`.
        num_steps: see `make_rollout_collector`.

    Returns:
        The collector. Metrics, over the attempts that ended: `success_rate`, those with a success at the end according
        to the world, and, over those that ended as successes, `false_positives`, those without one according to the
        world.
    """
    practice = reset_free(environment, first, second, judge=judge, reset_every=reset_every)
    acting: Policy = as_policy(policy) if isinstance(policy, ActorCritic) else policy

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        seen: Attempt = inputs.observation
        begins = inputs.first | seen.terminated | seen.truncated
        return acting.apply(params, carry, inputs.replace(observation=seen.observation, first=begins))

    inner = make_rollout_collector(practice, acting._replace(apply=apply), num_envs=num_envs, num_steps=num_steps)

    def collect(state: State, params: Params, key: Array) -> tuple[State, Rollout, Metrics]:
        state, rollout, counts = inner.collect(state, params, key)
        transition = rollout.transition
        before: Attempt = transition.observation
        after: Attempt = transition.next_observation
        truncated = after.truncated | (transition.truncated & ~after.terminated)
        ends, nothing = (after.terminated, truncated), jnp.zeros_like(transition.reward)
        returns = discounted_returns(transition.reward, *ends, nothing, discount=discount)
        transition = transition.replace(
            observation=before.observation,
            next_observation=after.successor,
            terminated=after.terminated,
            truncated=truncated,
            first=transition.first | before.terminated | before.truncated,
            extras={**transition.extras, "return_to_go": returns},
        )
        over, wrong = after.terminated | truncated, after.terminated & ~after.success
        metrics = {
            "success_rate": Mean(total=_count(over & after.success), count=_count(over)),
            "false_positives": Mean(total=_count(wrong), count=_count(after.terminated)),
            "env_steps": counts["env_steps"],
            "episodes": Count(jnp.sum(over, dtype=jnp.int32)),
        }
        return state, rollout.replace(transition=transition), metrics

    return inner._replace(collect=collect)


def _count(marks: Array) -> Array:
    return jnp.sum(marks, dtype=jnp.float32)

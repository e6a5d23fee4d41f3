"""Policy gradients at the temperature at which the episodes were sampled."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxagents.learners import policy_gradient
from jaxagents.policies.temperatures import at_temperature
from jaxagents.types import Agent, Array, Collector, Environment, Episode, LanguagePolicy, Learner, Metrics, State


def with_temperature(learner_at: Callable[[Array | float], Learner]) -> Learner:
    """Makes a learner that scores the policy at the temperature that comes with the episodes.

    Args:
        learner_at: `(temperature) -> Learner` for the policy at this temperature.

    Returns:
        The learner, for batches with `extras["temperature"]` `[B]`, equal in all rows; when traced, its update refuses
        others with a `ValueError`.
    """

    def update(state: State, key: Array, episode: Episode) -> tuple[State, Metrics]:
        if "temperature" not in episode.extras:
            raise ValueError("`collector` must tell its temperature for learner=tempered; try collector=tempered.")
        temperature = jnp.max(episode.extras["temperature"])
        return learner_at(temperature).update(state, key, episode)

    return learner_at(1.0)._replace(update=update)


def make_agent(environment: Environment, *, policy: Callable[[Environment], LanguagePolicy], **options: Any) -> Agent:
    """Assembles a policy-gradient agent that learns at the temperature at which it samples.

    Args:
        environment: text world.
        policy: `(environment) -> LanguagePolicy`.
        **options: further arguments of `learners.policy_gradient.make_agent`; `temperature` must be None.

    Returns:
        The agent, for `language.temperatures.make_tempered_collector`. It is evaluated at temperature 1 or greedily.
    """
    actor = policy(environment)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        sampled = collector._replace(tempering={})  # The collector samples as the learner scores.

        def learner_at(temperature: Array | float) -> Learner:
            tempered = at_temperature(actor, temperature)
            agent = policy_gradient.make_agent(environment, policy=lambda _: tempered, **options)
            return agent.make_learner(sampled, num_updates)

        return with_temperature(learner_at)

    return Agent(policy=actor, make_learner=make_learner)

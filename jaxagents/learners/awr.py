"""Advantage-weighted regression: imitation of the better actions of a replay buffer."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxagents.learners.ppo import PPOState, make_ppo
from jaxagents.learners.replay import make_replay_agent
from jaxagents.policies.actor_critic import as_policy
from jaxagents.types import ActorCritic, Agent, Array, Environment, Learner, Metrics, Rollout, Sample


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., ActorCritic],
    optimizer: Callable[..., optax.GradientTransformation],
    buffer: Any,
    updates_per_rollout: int = 1,
    num_minibatches: int = 1,
    normalize_observations: bool = False,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles AWR for an environment: `make_ppo` over sequences of a buffer.

    Args:
        environment: gives the spaces; discrete or bounded continuous actions.
        policy: `(observation_space, action_space) -> ActorCritic`, feed-forward.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        buffer: `data.buffers.Buffer` of sequences, over which values are lambda-returns; uniform.
        updates_per_rollout: see `with_replay`.
        num_minibatches: optimiser steps for every sample of the buffer.
        normalize_observations: standardises observations by running statistics of the samples.
        axis_name: see `make_ppo`.
        **options: further arguments of `make_ppo`, its `loss` foremost: see `losses.policy_gradient`.

    Returns:
        The agent.

    Raises:
        ValueError: the policy has no critic, or a memory.

    References:
        Peng et al. (2019), Advantage-weighted regression, algorithm 1.

    Deviation: one optimiser step for policy and value together; lambda-returns end with the sequence.
    """
    actor_critic = policy(environment.observation_space, environment.action_space)
    if not isinstance(actor_critic, ActorCritic) or jax.tree.leaves(actor_critic.initial_carry((1,))):
        raise ValueError(
            f"`policy` must be an actor-critic without memory for AWR, got a {type(actor_critic).__name__}; "
            "try policy=mlp."
        )
    defaults: dict[str, Any] = {"num_epochs": 1, "num_minibatches": num_minibatches, "axis_name": axis_name}
    options = defaults | options
    make_ppo(actor_critic, optax.identity(), **options)  # Refuses settings before anything is compiled.

    def make_learner(num_updates: int) -> Learner:
        num_samples = num_updates * updates_per_rollout
        ppo = make_ppo(actor_critic, optimizer(num_samples * num_minibatches), num_updates=num_samples, **options)
        carry = actor_critic.initial_carry((1,))  # Without leaves.

        def update(state: PPOState, key: Array, sample: Sample) -> tuple[PPOState, Metrics]:
            return ppo.update(state, key, Rollout(transition=sample.transition, carry=carry))

        return Learner(init=ppo.init, update=update)

    return make_replay_agent(
        as_policy(actor_critic),
        make_learner,
        buffer,
        environment.observation_space,
        updates_per_rollout=updates_per_rollout,
        normalize_observations=normalize_observations,
        axis_name=axis_name,
    )

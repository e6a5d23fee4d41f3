"""AWR (Peng et al., 2019), advantage-weighted regression: imitates the better actions in a replay buffer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

from jaxagents.learners.ppo import PPOState, make_ppo
from jaxagents.learners.replay import replay_agent
from jaxagents.policies.actor_critic import as_policy
from jaxagents.types import ActorCritic, Agent, Array, Environment, Learner, Metrics, Rollout, Sample


def make_awr(
    actor_critic: ActorCritic,
    optimizer: optax.GradientTransformation,
    *,
    num_epochs: int = 1,
    num_minibatches: int = 1,
    **options: Any,
) -> Learner:
    """Makes AWR: `make_ppo` over `Sample` batches of sequences, with lambda-returns as value targets.

    Args:
        actor_critic: feed-forward actor-critic.
        optimizer: an optax transformation.
        num_epochs: number of passes over every sample.
        num_minibatches: number of minibatches, with one optimiser step each, per pass.
        **options: further arguments of `make_ppo`, especially its `loss`: see `losses.policy_gradient`.

    Returns:
        The learner.

    Raises:
        ValueError: the policy has no critic, or it has a memory; see also `make_ppo`.

    References:
        Peng et al. (2019), Advantage-weighted regression, algorithm 1.

    Deviation: one optimiser step for policy and value together; lambda-returns end with the sequence.
    """
    if not isinstance(actor_critic, ActorCritic) or jax.tree.leaves(actor_critic.initial_carry((1,))):
        raise ValueError(
            f"`policy` must be an actor-critic without memory for AWR, got a {type(actor_critic).__name__}; "
            "try policy=mlp."
        )
    ppo = make_ppo(actor_critic, optimizer, num_epochs=num_epochs, num_minibatches=num_minibatches, **options)
    carry = actor_critic.initial_carry((1,))  # Has no leaves.

    def update(state: PPOState, key: Array, sample: Sample) -> tuple[PPOState, Metrics]:
        return ppo.update(state, key, Rollout(transition=sample.transition, carry=carry))

    return ppo._replace(update=update)


def make_agent(environment: Environment, *, policy: Callable[..., ActorCritic], **options: Any) -> Agent:
    """Assembles AWR for an environment.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> ActorCritic`.
        **options: further arguments of `make_awr` and of `replay_agent`.
    """
    actor_critic = policy(environment.observation_space, environment.action_space)
    return replay_agent(partial(make_awr, actor_critic), as_policy(actor_critic), environment, **options)

"""Demonstrations in array worlds: fixed sets of experience, determined by a seed, and an expert's labels."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.ops.distributions import Categorical, Mixture, TanhNormal, is_bounded
from jaxagents.policies.actor_critic import as_policy
from jaxagents.policies.scripted import Behavior
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.types import (
    ActorCritic,
    Array,
    Box,
    Carry,
    Collector,
    Discrete,
    Environment,
    Metrics,
    Params,
    Policy,
    PolicyInput,
    Rollout,
    State,
    Transition,
    input_of,
)


def make_demonstrations(
    environment: Environment,
    behavior: Behavior,
    *,
    num_rows: int,
    num_steps: int,
    noise: float | Sequence[float] = 0.0,
    seed: int = 0,
    level: int | None = None,
) -> Callable[[], Transition]:
    """Makes a function that lets a policy play, always the same episodes.

    Args:
        environment: array environment, single instance.
        behavior: policy that plays: a scripted expert of `policies.scripted`, or a checkpoint from
            `training.load.load_policy`.
        num_rows: E, number of parallel environments.
        num_steps: T, number of steps in each of them, across episode ends; the last episode of a row may be cut.
        noise: probability per step of a random action instead of the policy's: 0 gives experts, about 0.5 medium
            players, 1 random ones; rows cycle through a list, which gives mixed data.
        seed: seed of tasks and actions.
        level: difficulty of the tasks.

    Returns:
        `() -> Transition` with leaves `[T, E, ...]`; continuous actions are unsquashed. It can be traced.

    Raises:
        ValueError: a size is not positive, `noise` is not a probability, or continuous actions have no bounds.
    """
    shares = [float(noise)] if isinstance(noise, int | float) else [float(share) for share in noise]
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise ValueError(f"`noise` must be in [0, 1], one number or a list, got {noise}; try 0.3.")
    share = jnp.resize(jnp.asarray(shares, jnp.float32), (num_rows,))
    policy = _with_random_actions(behavior.policy, environment.action_space, share)
    collector = make_rollout_collector(environment, policy, num_envs=num_rows, num_steps=num_steps, level=level)

    def play() -> Transition:
        init_key, play_key = jax.random.split(jax.random.key(seed))
        state = collector.init(init_key, behavior.params)
        _, rollout, _ = collector.collect(state, behavior.params, play_key)
        return rollout.transition.replace(noise=None, previous_action=None, previous_reward=None)

    return play


def make_labelled_collector(
    environment: Environment, policy: Policy, *, expert: Behavior, num_envs: int, num_steps: int
) -> Collector:
    """Makes a collector in which the policy acts, and an expert labels each step with its action (DAgger).

    Args:
        environment: single instance.
        policy: policy that acts.
        expert: feed-forward behaviour, whose modes are the actions of the batches.
        num_envs: see `make_rollout_collector`.
        num_steps: see `make_rollout_collector`.

    Returns:
        The collector; its batches are `Rollout`s whose `action` is the expert's.

    References:
        Ross, Gordon and Bagnell (2011), A reduction of imitation learning to no-regret online learning, algorithm 3.1.

    Deviation: the learner acts from the first round on (the paper's beta is 0), the best choice in the paper's
        experiments.
    """
    inner = make_rollout_collector(environment, policy, num_envs=num_envs, num_steps=num_steps)
    labels = as_policy(expert.policy) if isinstance(expert.policy, ActorCritic) else expert.policy

    def collect(state: State, params: Params, key: Array) -> tuple[State, Rollout, Metrics]:
        state, rollout, metrics = inner.collect(state, params, key)
        transition = rollout.transition
        carry = labels.initial_carry(transition.terminated.shape[1:])
        _, distribution = labels.apply(expert.params, carry, input_of(transition).replace(noise=None))
        return state, rollout.replace(transition=transition.replace(action=distribution.mode())), metrics

    return inner._replace(collect=collect)


def _with_random_actions(policy: Policy, action_space: Discrete | Box, share: Array) -> Policy:
    """Makes a policy for rows in which a share of the actions is random.

    Raises:
        ValueError: the actions have no bounds between which to draw.
    """
    if isinstance(action_space, Box) and not is_bounded(action_space):
        raise ValueError(f"`action_space` must be Discrete or a bounded Box for random actions, got {action_space}.")
    policy = as_policy(policy) if isinstance(policy, ActorCritic) else policy

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Mixture]:
        carry, main = policy.apply(params, carry, inputs)
        leading = inputs.first.shape
        if isinstance(action_space, Box):
            zeros = jnp.zeros((*leading, *action_space.shape))
            other: Any = TanhNormal(
                loc=zeros, scale=zeros + 1.0, low=float(action_space.low), high=float(action_space.high)
            )
        else:
            other = Categorical(logits=jnp.zeros((*leading, action_space.num_values))).mask(inputs.action_mask)
        return carry, Mixture(main=main, other=other, share=jnp.broadcast_to(share, leading))

    return policy._replace(apply=apply)

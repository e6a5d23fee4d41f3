"""GAIL (Ho and Ermon, 2016) and AIRL (Fu et al., 2018): rewards from a discriminator of demonstrations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import start_of_inner, wrap, wrapper_agent
from jaxagents.learners.optimizers import apply_updates
from jaxagents.losses.imitation import discriminator_loss, gail_reward
from jaxagents.ops.checks import check_counts
from jaxagents.types import (
    REPLICATED,
    Agent,
    Array,
    Collector,
    Environment,
    Learner,
    Metrics,
    Params,
    Policy,
    PyTree,
    Rollout,
    Transition,
    input_of,
)
from jaxagents.values.discriminator import Discriminator


@struct.dataclass
class AdversarialState:
    """State of the learner.

    Attributes:
        inner: state of the learner that learns from the rewards.
        discriminator: parameters of the discriminator.
        opt_state: state of its optimiser.
        demonstrations: state of the collector of demonstrations, split over devices.
    """

    inner: Any
    discriminator: Params
    opt_state: optax.OptState
    demonstrations: PyTree

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


def with_discriminator(
    learner: Learner,
    discriminator: Discriminator,
    optimizer: optax.GradientTransformation,
    demonstrations: Collector,
    policy: Policy,
    *,
    num_steps: int = 1,
    reward: Callable[[Array], Array] = gail_reward,
    absorbing_discount: float | None = None,
    pay: Callable[[Discriminator, Params, Transition], Array] | None = None,
    frozen: bool = False,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner whose rewards measure how similar its rollouts are to demonstrations.

    An update takes `num_steps` steps of the discriminator, each on the whole rollout and a batch of demonstrations, and
    then passes the rollout on with the new rewards.

    If episodes end early, the sign of the rewards decides whether an end pays off: with non-negative rewards it never
    does, and with rewards of both signs, such as AIRL's, a policy that is distinguished from the demonstrator ends
    episodes as soon as possible. `absorbing_discount` removes this bias: an end is followed by an absorbing state for
    ever, which is judged, and counts as the `discount / (1 - discount)` steps that it is worth.

    Args:
        learner: learner for rollouts.
        discriminator: discriminator of single steps.
        optimizer: optimiser of the discriminator.
        demonstrations: collector from `data.datasets.make_dataset_collector`.
        policy: policy with the same parameters, which gives log-probabilities of demonstrated actions if they are
            needed.
        num_steps: number of steps of the discriminator per update.
        reward: `(logit [T, B]) -> [T, B]`, such as `gail_reward`; AIRL pays the logit itself, `airl_reward`.
        absorbing_discount: discount per step in the absorbing state, that of the inner learner; None: nothing follows
            an end.
        pay: `(discriminator, params, transition [T, B]) -> [T, B]`, which replaces `reward`, see `learners.mt_csirl`.
        frozen: whether the discriminator comes from the previous stage and stays fixed, while all inside it starts
            afresh.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner.

    Raises:
        ValueError: `num_steps` is not positive, `absorbing_discount` is not in [0, 1), or log-probabilities are needed
            of a policy with a memory.

    References:
        Ho and Ermon (2016), Generative adversarial imitation learning, algorithm 1; Fu, Luo and Levine (2018), Learning
        robust rewards with adversarial inverse reinforcement learning, algorithm 1; Kostrikov et al. (2019),
        Discriminator-actor-critic, section 4.2.

    Deviation: the policy is trained by the inner learner, not by TRPO.
    Deviation: the steps in the absorbing state are a weight and a sum at the end, not steps of a replay buffer.
    """
    check_counts(num_steps=num_steps)
    if absorbing_discount is not None and not 0.0 <= absorbing_discount < 1.0:
        raise ValueError(f"`absorbing_discount` must be in [0, 1), got {absorbing_discount}; try 0.99, or null.")
    after = 0.0 if absorbing_discount is None else absorbing_discount / (1.0 - absorbing_discount)
    paid = partial(_reward, reward=reward, after=after) if pay is None else pay
    if discriminator.asks_policy and jax.tree.leaves(policy.initial_carry((1,))):
        raise ValueError("`policy` must be feed-forward for demonstrations of single steps; leave out its `memory`.")

    def mean_with_absorbing(of_steps: Array, of_absorbing: Array, absorbed: Array) -> Array:
        """Returns the mean over steps and those in the absorbing state that follow them."""
        count = jnp.mean(1.0 + absorbed)
        count = count if axis_name is None else jax.lax.pmean(count, axis_name)
        return jnp.mean(of_steps + absorbed * of_absorbing) / count

    def objective(params: Params, acting: Params, played: Transition, expert: Transition) -> tuple[Array, Metrics]:
        likelihood = _log_prob(policy, acting, expert) if discriminator.asks_policy else None
        pairs = (expert, likelihood), (played, played.behavior_log_prob)
        logits = [discriminator.apply(params, *pair) for pair in pairs]
        of_steps = discriminator_loss(*logits)
        of_absorbing = discriminator_loss(*[discriminator.absorbing(params)] * 2)
        absorbed = [after * step.terminated for step in (expert, played)]
        loss: Any = sum(map(mean_with_absorbing, of_steps, of_absorbing, absorbed))
        right = 0.5 * (jnp.mean(logits[0] > 0.0) + jnp.mean(logits[1] < 0.0))
        return loss, {"discriminator_loss": loss, "discriminator_accuracy": right}

    def init(key: Array, start: AdversarialState | Params | None = None) -> AdversarialState:
        inner_key, own_key, data_key = jax.random.split(key, 3)
        params = discriminator.init(own_key)
        if frozen and isinstance(start, AdversarialState):
            params, start = start.discriminator, None
        inner = learner.init(inner_key, start_of_inner(start, AdversarialState))
        return AdversarialState(
            inner=inner,
            discriminator=params,
            opt_state=optimizer.init(params),
            demonstrations=demonstrations.init(data_key, inner.params),
        )

    def update(state: AdversarialState, key: Array, batch: Rollout) -> tuple[AdversarialState, Metrics]:
        inner_key, own_key = jax.random.split(key)

        def step(carry: tuple[Params, optax.OptState], key: Array) -> tuple[tuple[Params, optax.OptState], Metrics]:
            params, opt_state = carry
            _, sample, _ = demonstrations.collect(state.demonstrations, state.inner.params, key)
            arguments = state.inner.params, batch.transition, sample.transition
            grads, metrics = jax.grad(objective, has_aux=True)(params, *arguments)
            params, opt_state, _ = apply_updates(grads, params, opt_state, optimizer, axis_name=axis_name)
            return (params, opt_state), metrics if axis_name is None else jax.lax.pmean(metrics, axis_name)

        params, opt_state = state.discriminator, state.opt_state
        metrics: Metrics = {}
        if not frozen:
            keys = jax.random.split(own_key, num_steps)
            (params, opt_state), metrics = jax.lax.scan(step, (params, opt_state), keys)
        rewards = jax.lax.stop_gradient(paid(discriminator, params, batch.transition))
        judged = batch.replace(transition=batch.transition.replace(reward=rewards))
        inner, inner_metrics = learner.update(state.inner, inner_key, judged)
        own = jax.tree.map(jnp.mean, metrics)
        return state.replace(inner=inner, discriminator=params, opt_state=opt_state), {**inner_metrics, **own}

    def partition(state: AdversarialState, of_inner: PyTree) -> AdversarialState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated.replace(inner=of_inner, demonstrations=jax.tree.map(lambda leaf: 0, state.demonstrations))

    return wrap(learner, init, update, partition=partition)


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    discriminator: Callable[..., Discriminator],
    optimizer: Callable[..., optax.GradientTransformation],
    demonstrations: Callable[..., Collector],
    num_steps: int = 1,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles adversarial imitation for an environment.

    Args:
        environment: environment that defines the spaces; its rewards are not used for learning.
        inner: `(environment, *, axis_name) -> Agent`, which learns from the rewards.
        discriminator: `(observation_space, action_space) -> Discriminator`.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation` for the discriminator.
        demonstrations: `(environment, policy) -> Collector` of `Sample`s.
        num_steps: see `with_discriminator`.
        axis_name: see `with_discriminator`.
        **options: further arguments of `with_discriminator`.
    """
    check_counts(num_steps=num_steps)
    agent = inner(environment, axis_name=axis_name)
    judge = discriminator(environment.observation_space, environment.action_space)
    data = demonstrations(environment, agent.policy)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        arguments = judge, optimizer(num_updates * num_steps), data, agent.policy
        return with_discriminator(learner, *arguments, num_steps=num_steps, axis_name=axis_name, **options)

    return wrapper_agent(agent, change)


def _log_prob(policy: Policy, params: Params, transition: Transition) -> Array:
    """Returns log-probabilities of the taken actions, for a policy without memory."""
    carry = policy.initial_carry(transition.terminated.shape[1:])
    return policy.apply(params, carry, input_of(transition))[1].log_prob(transition.action)


def _reward(
    discriminator: Discriminator,
    params: Params,
    transition: Transition,
    *,
    reward: Callable[[Array], Array],
    after: float,
) -> Array:
    """Computes the rewards of steps, and of the absorbing state that follows an end."""
    logit = discriminator.apply(params, transition, transition.behavior_log_prob)
    return reward(logit) + after * transition.terminated * reward(discriminator.absorbing(params))

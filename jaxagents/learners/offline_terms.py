"""Losses of actor-critics that learn from fixed data, with the slots of `learners.offline`."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.actor_critic_terms import choose_actions, distribution_of, sample_alone, sample_keys
from jaxagents.learners.replay import first_step, gather_step
from jaxagents.learners.settings import Bound, Settings
from jaxagents.losses.imitation import squared_distance
from jaxagents.losses.offline import ActorView, SampledView, TargetView
from jaxagents.ops.distributions import unsquash
from jaxagents.ops.returns import n_step_transition
from jaxagents.types import Array, Box, Metrics, Params, Policy, PyTree, Sample
from jaxagents.values.q_function import TwinQ
from jaxagents.values.state_value import StateValue


class Parts(NamedTuple):
    """Static functions that the losses of an offline actor-critic share; see `learners.offline`."""

    policy: Policy
    twin_q: TwinQ
    state_value: StateValue | None
    optimizers: dict[str, optax.GradientTransformation]
    action_space: Box
    settings: Settings
    num_sampled: int
    policy_period: int
    num_updates: int
    axis_name: str | None


def value_loss_of(
    parts: Parts, bound: Mapping[str, Bound], state: Any, batch: Sample, value: Params
) -> tuple[Array, tuple[Metrics, PyTree]]:
    """Computes the loss of the state values, and `(metrics, summaries)`."""
    observation, action = first_step((batch.transition.observation, batch.transition.action))
    q = jnp.min(parts.twin_q.apply(state.target_critic, observation, action), axis=0)
    values = parts.state_value.apply(value, observation)
    losses, summary = bound["value_loss"](values, q)
    loss = jnp.mean(batch.weight * losses)
    return loss, ({"value_loss": loss, "value": jnp.mean(values)}, summary)


def critic_loss_of(
    parts: Parts,
    bound: Mapping[str, Bound],
    state: Any,
    value: Params,
    discount: Array,
    keys: dict[str, Array],
    batch: Sample,
    critic: Params,
) -> tuple[Array, tuple[Metrics, PyTree]]:
    """Computes the loss of the critics, and `(metrics, summaries)` with the metric `priority` of shape `[B]`."""
    transition = batch.transition
    reward, discount, index = n_step_transition(
        transition.reward, transition.terminated, transition.truncated, discount=discount
    )
    observation, action = first_step((transition.observation, transition.action))
    next_observation = gather_step(transition.next_observation, index)
    choose = partial(choose_actions, parts.policy, bound["next_action"], parts.axis_name)
    next_action, _ = choose(state.target_params, keys["target"], next_observation)
    next_value = None if parts.state_value is None else parts.state_value.apply(value, next_observation)
    next_q = parts.twin_q.apply(state.target_critic, next_observation, next_action)
    target, summary = bound["target"](
        TargetView(reward=reward, discount=discount, next_q=next_q, next_value=next_value)
    )
    target = jax.lax.stop_gradient(target)
    q = parts.twin_q.apply(critic, observation, action)
    losses, metrics = 0.5 * jnp.sum(jnp.square(q - target[None]), axis=0), {}
    if "critic_term" in bound:
        sampled = _sample(parts, state.params, critic, keys["sampled"], observation, next_observation)
        sampled = sampled.replace(q=q, return_to_go=first_step(transition.extras["return_to_go"]))
        term, summary_of_term = bound["critic_term"](sampled)
        losses, summary, metrics = losses + term, summary | summary_of_term, {"critic_term": jnp.mean(term)}
    loss, priority = jnp.mean(batch.weight * losses), jnp.mean(jnp.abs(q - target[None]), axis=0)
    return loss, (metrics | {"critic_loss": loss, "q": jnp.mean(q), "priority": priority}, summary)


def _sample(
    parts: Parts, params: Params, critic: Params, key: Array, observation: PyTree, next_observation: PyTree
) -> SampledView:
    """Evaluates actions at the observation: uniform ones, the policy's, and those that it takes at the successor."""
    space, count, size = parts.action_space, parts.num_sampled, jax.tree.leaves(observation)[0].shape[0]
    uniform_key, *policy_keys = jax.random.split(key, 3)
    rows = sample_keys(uniform_key, size, parts.axis_name, count).reshape(count, size)
    draw = partial(jax.random.uniform, shape=space.shape, minval=space.low, maxval=space.high)
    log_volume = space.shape[0] * math.log(space.high - space.low)
    actions = [unsquash(jax.vmap(jax.vmap(draw))(rows), low=space.low, high=space.high)]
    densities = [jnp.full((count, size), -log_volume)]
    choose = jax.vmap(partial(choose_actions, parts.policy, sample_alone, parts.axis_name, params), (0, None))
    for key, seen in zip(policy_keys, (observation, next_observation), strict=True):
        drawn, log_prob = choose(jax.random.split(key, count), seen)
        actions.append(drawn)
        densities.append(log_prob)
    action, log_density = jax.lax.stop_gradient((jnp.concatenate(actions), jnp.concatenate(densities)))
    sampled_q = jax.vmap(lambda action: parts.twin_q.apply(critic, observation, action), out_axes=-1)(action)
    return SampledView(
        q=None,
        sampled_q=sampled_q,
        log_density=log_density.T,
        from_policy=jnp.arange(3 * count) >= count,
        return_to_go=None,
    )


def policy_loss_of(
    parts: Parts,
    bound: Mapping[str, Bound],
    state: Any,
    critic: Params,
    value: Params,
    key: Array,
    batch: Sample,
    params: Params,
) -> tuple[Array, tuple[Metrics, PyTree]]:
    """Computes the loss of the policy, and `(metrics, summaries)`."""
    observation, action = first_step((batch.transition.observation, batch.transition.action))
    distribution = distribution_of(parts.policy, params, observation)
    own_action, own_log_prob = choose_actions(parts.policy, bound["action"], parts.axis_name, params, key, observation)
    own_q = parts.twin_q.apply(critic, observation, own_action)
    if parts.state_value is None:  # Both parts of the advantage come from the same critics: a common error cancels.
        judge, values = critic, jnp.min(own_q, axis=0)
    else:
        judge, values = state.target_critic, parts.state_value.apply(value, observation)
    view = ActorView(
        log_prob=distribution.log_prob(action),
        distance=squared_distance(distribution, action),
        own_q=own_q,
        own_log_prob=own_log_prob,
        q=jnp.min(parts.twin_q.apply(judge, observation, action), axis=0),
        value=jax.lax.stop_gradient(values),
        q_magnitude=jax.lax.stop_gradient(_weighted_mean(jnp.abs(own_q[0]), batch.weight, parts.axis_name)),
    )
    losses, summary = bound["policy_loss"](view)
    loss = jnp.mean(batch.weight * losses)
    metrics = {"policy_loss": loss, "entropy": -jnp.mean(own_log_prob), "log_prob": jnp.mean(view.log_prob)}
    return loss, (metrics, summary)


def _weighted_mean(values: Array, weight: Array, axis_name: str | None) -> Array:
    """Computes the mean of `[B]` over the rows of all devices; rows without weight do not count."""
    sums = jnp.sum(weight * values), jnp.sum(weight)
    total, count = sums if axis_name is None else jax.lax.psum(sums, axis_name)
    return total / jnp.maximum(count, 1e-6)

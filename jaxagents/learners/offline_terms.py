"""Losses of actor-critics of fixed data with the slots of `learners.offline`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.actor_critic_terms import choose_actions, distribution_of
from jaxagents.learners.replay import first_step, gather_step
from jaxagents.learners.slots import Number, Slot
from jaxagents.losses.imitation import squared_distance
from jaxagents.losses.offline import ActorView, TargetView
from jaxagents.ops.returns import n_step_transition
from jaxagents.types import Array, Metrics, Params, Policy, PyTree, Sample
from jaxagents.values.q_function import TwinQ
from jaxagents.values.state_value import StateValue

Bound = Mapping[str, Callable[..., tuple[Array, dict[str, PyTree]]]]
"""Slots with their numbers and memories, see `learners.slots.bind`."""


class Parts(NamedTuple):
    """What the functions of an offline actor-critic share, static; see `learners.offline`."""

    policy: Policy
    twin_q: TwinQ
    state_value: StateValue | None
    optimizers: dict[str, optax.GradientTransformation]
    hyperparameters: dict[str, Number]
    slots: dict[str, Slot]
    policy_period: int
    num_updates: int
    axis_name: str | None


def value_loss_of(
    parts: Parts, bound: Bound, state: Any, batch: Sample, value: Params
) -> tuple[Array, tuple[Metrics, PyTree]]:
    """Computes the loss of the value of states; besides `(metrics, summaries)`."""
    observation, action = first_step((batch.transition.observation, batch.transition.action))
    q = jnp.min(parts.twin_q.apply(state.target_critic, observation, action), axis=0)
    values = parts.state_value.apply(value, observation)
    losses, noted = bound["value_loss"](values, q)
    loss = jnp.mean(batch.weight * losses)
    return loss, ({"value_loss": loss, "value": jnp.mean(values)}, noted)


def critic_loss_of(
    parts: Parts,
    bound: Bound,
    state: Any,
    value: Params,
    discount: Array,
    key: Array,
    batch: Sample,
    critic: Params,
) -> tuple[Array, tuple[Metrics, PyTree]]:
    """Computes the loss of the critics; besides `(metrics, summaries)`, of which `priority` is `[B]`."""
    transition = batch.transition
    reward, discount, index = n_step_transition(
        transition.reward, transition.terminated, transition.truncated, discount=discount
    )
    observation, action = first_step((transition.observation, transition.action))
    next_observation = gather_step(transition.next_observation, index)
    choose = partial(choose_actions, parts.policy, bound["next_action"], parts.axis_name)
    next_action, _ = choose(state.target_params, key, next_observation)
    next_value = None if parts.state_value is None else parts.state_value.apply(value, next_observation)
    next_q = parts.twin_q.apply(state.target_critic, next_observation, next_action)
    target, noted = bound["target"](TargetView(reward=reward, discount=discount, next_q=next_q, next_value=next_value))
    target = jax.lax.stop_gradient(target)
    q = parts.twin_q.apply(critic, observation, action)
    losses = 0.5 * jnp.sum(jnp.square(q - target[None]), axis=0)
    loss, priority = jnp.mean(batch.weight * losses), jnp.mean(jnp.abs(q - target[None]), axis=0)
    return loss, ({"critic_loss": loss, "q": jnp.mean(q), "priority": priority}, noted)


def policy_loss_of(
    parts: Parts,
    bound: Bound,
    state: Any,
    critic: Params,
    value: Params,
    key: Array,
    batch: Sample,
    params: Params,
) -> tuple[Array, tuple[Metrics, PyTree]]:
    """Computes the loss of the policy; besides `(metrics, summaries)`."""
    observation, action = first_step((batch.transition.observation, batch.transition.action))
    distribution = distribution_of(parts.policy, params, observation)
    own_action, own_log_prob = choose_actions(parts.policy, bound["action"], parts.axis_name, params, key, observation)
    own_q = parts.twin_q.apply(critic, observation, own_action)
    magnitude = jnp.mean(jnp.abs(own_q[0]))
    magnitude = magnitude if parts.axis_name is None else jax.lax.pmean(magnitude, parts.axis_name)
    values = jnp.min(own_q, axis=0) if parts.state_value is None else parts.state_value.apply(value, observation)
    view = ActorView(
        log_prob=distribution.log_prob(action),
        distance=squared_distance(distribution, action),
        own_q=own_q,
        q=jnp.min(parts.twin_q.apply(state.target_critic, observation, action), axis=0),
        value=jax.lax.stop_gradient(values),
        q_magnitude=jax.lax.stop_gradient(magnitude),
    )
    losses, noted = bound["policy_loss"](view)
    loss = jnp.mean(batch.weight * losses)
    told = {"policy_loss": loss, "entropy": -jnp.mean(own_log_prob), "log_prob": jnp.mean(view.log_prob)}
    return loss, (told, noted)

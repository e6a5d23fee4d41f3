"""Actions, targets and losses of off-policy actor-critics with the slots of `learners.sac`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.learners.replay import first_step, gather_step
from jaxagents.losses.q import sac_temperature_loss
from jaxagents.ops.returns import n_step_transition
from jaxagents.policies.actor_critic import act
from jaxagents.types import Array, Params, Policy, PolicyInput, PyTree, Sample
from jaxagents.values.q_function import TwinQ

Bound = Callable[..., tuple[Array, dict[str, PyTree]]]
"""A slot with its numbers and its memory, see `learners.slots.bind`."""


def critic_loss_of(
    twin_q: TwinQ, critic_loss: Bound, critic: Params, batch: Sample, target: Array
) -> tuple[Array, tuple[tuple[dict[str, Array], Array], dict[str, PyTree]]]:
    """Computes the loss of both critics; besides `((metrics, priority [B]), summaries)`."""
    q = twin_q.apply(critic, first_step(batch.transition.observation), first_step(batch.transition.action))
    losses, noted = critic_loss(q, target)
    loss = jnp.mean(batch.weight * losses)
    metrics, priority = {"critic_loss": loss, "q": jnp.mean(q)}, jnp.mean(jnp.abs(q - target[None]), axis=0)
    return loss, ((metrics, priority), noted)


def policy_loss_of(
    choose_actions: Callable[..., tuple[Array, Array]],
    twin_q: TwinQ,
    actor_loss: Bound,
    critic: Params,
    temperature: Array,
    key: Array,
    batch: Sample,
    params: Params,
) -> tuple[Array, tuple[tuple[dict[str, Array], Array], dict[str, PyTree]]]:
    """Computes the loss of the policy; besides `((metrics, log_prob [B]), summaries)`."""
    observation = first_step(batch.transition.observation)
    action, log_prob = choose_actions(params, key, observation)
    losses, noted = actor_loss(twin_q.apply(critic, observation, action), log_prob, temperature)
    loss = jnp.mean(losses)
    return loss, (({"policy_loss": loss, "entropy": -jnp.mean(log_prob)}, log_prob), noted)


def temperature_loss_of(
    log_prob: Array, target_entropy: Array, log_temperature: Array
) -> tuple[Array, tuple[tuple[()], dict[str, PyTree]]]:
    """Computes the loss of the logarithm of the temperature."""
    return jnp.mean(sac_temperature_loss(log_temperature, log_prob, target_entropy)), ((), {})


def choose_actions(
    policy: Policy, choose: Bound, axis_name: str | None, params: Params, key: Array, observation: PyTree
) -> tuple[Array, Array]:
    """Chooses unsquashed actions `[B, A]` with log-probabilities `[B]`, one stream per global index of the sample."""
    batch_size = jax.tree.leaves(observation)[0].shape[0]
    carry, first = policy.initial_carry((batch_size,)), jnp.ones(batch_size, bool)
    _, distribution = act(policy, params, carry, PolicyInput(observation=observation, first=first))
    start = 0 if axis_name is None else jax.lax.axis_index(axis_name) * batch_size
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, start + jnp.arange(batch_size))
    action = jax.vmap(lambda distribution, key: choose(distribution, key)[0])(distribution, keys)
    return action, distribution.log_prob(action)


def targets_of(
    choose_actions: Callable[..., tuple[Array, Array]],
    twin_q: TwinQ,
    target: Bound,
    params: Params,
    target_critic: Params,
    discount: Array,
    temperature: Array,
    key: Array,
    batch: Sample,
) -> tuple[Array, dict[str, PyTree]]:
    """Computes the targets of the critics, float32 `[B]`, and summaries."""
    transition = batch.transition
    reward, discount, index = n_step_transition(
        transition.reward, transition.terminated, transition.truncated, discount=discount
    )
    next_observation = gather_step(transition.next_observation, index)
    next_action, next_log_prob = choose_actions(params, key, next_observation)
    next_q = twin_q.apply(target_critic, next_observation, next_action)
    return target(reward, discount, next_q, next_log_prob, temperature)

"""Actions, targets and losses of off-policy actor-critics, with the slots of `learners.sac`."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.learners.checks import check_positive
from jaxagents.learners.replay import first_step, gather_step
from jaxagents.learners.settings import Bound, Number
from jaxagents.losses.mpo import ImprovementView
from jaxagents.losses.q import sac_temperature_loss
from jaxagents.ops.returns import n_step_transition
from jaxagents.ops.rows import first_row
from jaxagents.policies.actor_critic import act
from jaxagents.types import Array, Box, Params, Policy, PolicyInput, PyTree, Sample
from jaxagents.values.q_function import TwinQ


class Successor(NamedTuple):
    """The inputs of a target, besides the critics' values.

    Attributes:
        reward: float32 `[B]`, one reward or the sum of several.
        discount: float32 `[B]`.
        observation: leaves `[B, ...]`.
        action: `[K, B, D]`, drawn from the policy.
        log_prob: float32 `[K, B]`.
    """

    reward: Array
    discount: Array
    observation: PyTree
    action: Array
    log_prob: Array


def successor_of(
    choose_actions: Callable[..., tuple[Array, Array]], params: Params, discount: Array, keys: Array, batch: Sample
) -> Successor:
    """Draws actions for the successors of a batch, one for each key."""
    transition = batch.transition
    reward, discount, index = n_step_transition(
        transition.reward, transition.terminated, transition.truncated, discount=discount
    )
    observation = gather_step(transition.next_observation, index)
    action, log_prob = jax.vmap(choose_actions, (None, 0, None))(params, keys, observation)
    return Successor(reward, discount, observation, action, log_prob)


def critic_loss_of(
    twin_q: TwinQ,
    critic_loss: Bound,
    target: Bound,
    target_critic: Params | None,
    temperature: Array,
    key: Array,
    axis_name: str | None,
    successor: Successor,
    batch: Sample,
    critic: Params,
) -> tuple[Array, tuple[tuple[dict[str, Array], Array, PyTree], dict[str, PyTree]]]:
    """Computes the loss of all critics, and returns `((metrics, priority [B], statistics), summaries)` with it.

    Without target critics, one pass over a batch and its successors computes values and targets.
    """
    observation, action = first_step(batch.transition.observation), first_step(batch.transition.action)
    num_actions, rows = successor.log_prob.shape
    key, next_key = jax.random.split(key)
    following = repeat(successor.observation, num_actions)
    next_action = successor.action.reshape(num_actions * rows, -1)
    statistics = None
    if target_critic is None:
        both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), (observation, action), (following, next_action))
        q, statistics = twin_q.fit(critic, *both, axis_name)
        q, next_q = q[:, :rows], q[:, rows:]
    else:
        q = values_of(twin_q, critic, observation, action, sample_keys(key, rows, axis_name))
        next_keys = sample_keys(next_key, rows, axis_name, num_actions)
        next_q = values_of(twin_q, target_critic, following, next_action, next_keys)
    next_q = next_q.reshape(-1, num_actions, rows)
    reward, discount = (jnp.broadcast_to(x[None], (num_actions, rows)) for x in (successor.reward, successor.discount))
    targets, summary = target(reward, discount, next_q, successor.log_prob, temperature)
    targets = jnp.mean(targets, axis=0)
    losses, summary_of_loss = critic_loss(q, targets)
    loss = jnp.mean(batch.weight * losses)
    metrics, priority = {"critic_loss": loss, "q": jnp.mean(q)}, jnp.mean(jnp.abs(q - targets[None]), axis=0)
    return loss, ((metrics, priority, statistics), summary | summary_of_loss)


def policy_loss_of(
    choose_actions: Callable[..., tuple[Array, Array]],
    twin_q: TwinQ,
    actor_loss: Bound,
    critic: Params,
    temperature: Array,
    keys: tuple[Array, Array],
    axis_name: str | None,
    batch: Sample,
    params: Params,
) -> tuple[Array, tuple[tuple[dict[str, Array], Array], dict[str, PyTree]]]:
    """Computes the policy loss, with keys for actions and dropout, and `((metrics, log_prob), summaries)`."""
    observation = first_step(batch.transition.observation)
    action, log_prob = choose_actions(params, keys[0], observation)
    dropout = sample_keys(keys[1], log_prob.shape[0], axis_name)
    losses, summary = actor_loss(values_of(twin_q, critic, observation, action, dropout), log_prob, temperature)
    loss = jnp.mean(batch.weight * losses)
    return loss, (({"policy_loss": loss, "entropy": -jnp.mean(log_prob)}, log_prob), summary)


def temperature_loss_of(
    weight: Array, target_entropy: Array, log_prob: Array, log_temperature: Array
) -> tuple[Array, tuple[tuple[()], dict[str, PyTree]]]:
    """Computes the loss of the log-temperature, with the weights `[B]` of the batch."""
    return jnp.mean(weight * sac_temperature_loss(log_temperature, log_prob, target_entropy)), ((), {})


def improvement_loss_of(
    policy: Policy,
    twin_q: TwinQ,
    improve: Bound,
    temperature: PyTree,
    keys: Array,
    axis_name: str | None,
    target_params: Params,
    target_critic: Params,
    batch: Sample,
    params: Params,
) -> tuple[Array, tuple[tuple[dict[str, Array], ImprovementView], dict[str, PyTree]]]:
    """Computes the loss of a policy that fits an improvement of its target, and `((metrics, view), summaries)`.

    The actions are drawn from the target policy, one for each key, and the values are those of the target critics.
    """
    observation = first_step(batch.transition.observation)
    distribution, former = (distribution_of(policy, each, observation) for each in (params, target_params))
    action = jax.vmap(lambda key: draw(sample_alone, former, key, axis_name))(keys)
    count, rows = action.shape[:2]
    q = twin_q.apply(target_critic, repeat(observation, count), action.reshape(count * rows, -1))
    view = ImprovementView(distribution, former, action, q.reshape(-1, count, rows))
    (losses, _), summary = improve(view, temperature)
    loss = jnp.mean(batch.weight * losses)
    return loss, (({"policy_loss": loss, "entropy": jnp.mean(distribution.entropy())}, view), summary)


def dual_loss_of(
    improve: Bound, weight: Array, view: ImprovementView, log_temperature: PyTree
) -> tuple[Array, tuple[tuple[()], dict[str, PyTree]]]:
    """Computes the loss of the logarithms of the temperature and of the prices of constraints, with weights `[B]`."""
    (_, losses), _ = improve(jax.lax.stop_gradient(view), jax.tree.map(jnp.exp, log_temperature))
    return jnp.mean(weight * losses), ((), {})


def choose_actions(
    policy: Policy, choose: Bound, axis_name: str | None, params: Params, key: Array, observation: PyTree
) -> tuple[Array, Array]:
    """Chooses unsquashed actions `[B, A]` and their log-probabilities `[B]`, one random stream per global index."""
    distribution = distribution_of(policy, params, observation)
    action = draw(choose, distribution, key, axis_name)
    return action, distribution.log_prob(action)


def distribution_of(policy: Policy, params: Params, observation: PyTree) -> Any:
    """Returns the distributions `[B]` of a feed-forward policy."""
    batch_size = jax.tree.leaves(observation)[0].shape[0]
    carry, first = policy.initial_carry((batch_size,)), jnp.ones(batch_size, bool)
    return act(policy, params, carry, PolicyInput(observation=observation, first=first))[1]


def draw(choose: Bound, distribution: Any, key: Array, axis_name: str | None) -> Array:
    """Draws from distributions `[B]`, with one random stream per global index of the sample."""
    keys = sample_keys(key, jax.tree.leaves(distribution)[0].shape[0], axis_name)
    return jax.vmap(lambda distribution, key: choose(distribution, key)[0])(distribution, keys)


def sample_alone(distribution: Any, key: Array) -> tuple[Array, dict[str, PyTree]]:
    """Draws from a distribution, in the form of a slot without memory."""
    return distribution.sample(key), {}


def values_of(twin_q: TwinQ, critic: Params, observation: PyTree, action: Array, keys: Array) -> Array:
    """Computes the values `[E, B]` with which critics are trained, with dropout if they have it."""
    if twin_q.drop_out is None:
        return twin_q.apply(critic, observation, action)
    return twin_q.drop_out(critic, observation, action, keys)


def sample_keys(key: Array, rows: int, axis_name: str | None, repeats: int = 1) -> Array:
    """Returns a key for each row of this device, `[repeats * rows]`, by its index among the rows of all devices."""
    index = first_row(rows, axis_name) + jnp.arange(rows)
    if repeats == 1:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, index)
    keys = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, index))(jax.random.split(key, repeats))
    return keys.reshape(-1)


def some_critics(params: Params, count: int | None, key: Array) -> Params:
    """Draws some of the critics without replacement; None selects all."""
    if count is None:
        return params
    chosen = jax.random.permutation(key, jax.tree.leaves(params)[0].shape[0])[:count]
    return jax.tree.map(lambda leaf: leaf[chosen], params)


def repeat(tree: PyTree, count: int) -> PyTree:
    """Repeats all rows of leaves `[B, ...]` as a block, `[count * B, ...]`."""
    return jax.tree.map(lambda leaf: jnp.tile(leaf, (count,) + (1,) * (leaf.ndim - 1)), tree)


def entropy_of_paper(action_space: Box) -> float:
    """Returns `D (log((high - low) / 2) - 1)` nats for D dimensions: `-D` for actions in `[-1, 1]`."""
    return math.prod(action_space.shape) * (math.log(0.5 * (action_space.high - action_space.low)) - 1.0)


def check_actor_critic(
    policy: Policy,
    twin_q: TwinQ,
    action_space: Box,
    target_update_rate: Number,
    initial_temperature: float | Mapping[str, float],
    num_target_critics: int | None,
) -> None:
    """Refuses settings with which an off-policy actor-critic cannot learn; the arguments are those of `make_sac`."""
    check_positive(target_update_rate=target_update_rate)
    if isinstance(initial_temperature, Mapping):
        check_positive(**initial_temperature)
    else:
        check_positive(initial_temperature=initial_temperature)
    if not isinstance(action_space, Box) or not math.isfinite(action_space.high - action_space.low):
        raise ValueError(f"`action_space` must be a bounded Box, got {action_space}; try `make_dqn`.")
    if jax.tree.leaves(policy.initial_carry((1,))):
        raise ValueError("`policy` must be feed-forward, got one with a carry; leave out its `memory`.")
    num_critics = jax.tree.leaves(jax.eval_shape(twin_q.init, jax.random.key(0)))[0].shape[0]
    if num_target_critics is not None and (num_target_critics > num_critics or twin_q.fit is not None):
        raise ValueError(
            f"`num_target_critics` must be at most the {num_critics} critics that have targets, got "
            f"{num_target_critics}; try null, or more `num_critics` without batch normalisation."
        )

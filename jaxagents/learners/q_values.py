"""Action values along sampled sequences, with the memory and the noise of a network."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.learners.agents import per_agent
from jaxagents.learners.replay import gather_step
from jaxagents.ops.returns import n_step_transition
from jaxagents.ops.value_distributions import Values
from jaxagents.policies.actor_critic import act
from jaxagents.types import (
    Array,
    Carry,
    Params,
    PolicyInput,
    PyTree,
    QView,
    Sample,
    Transition,
    input_of,
    input_of_successor,
)
from jaxagents.values.q_function import QFunction


def values_of_sample(
    q_function: QFunction,
    network: Params,
    target_network: Params,
    batch: Sample,
    key: Array,
    *,
    discount: Array,
    num_steps: int | None,
    burn_in: int,
    axis_name: str | None,
) -> tuple[Values, QView]:
    """Computes the values of the steps to learn from, and the inputs of their targets.

    Sequences of S steps have `L = S - burn_in - num_steps + 1` steps to learn from, after the first `burn_in` steps,
    which warm up the memory from the stored carry; each has an n-step target.

    Args:
        q_function: Q-function for a discrete space.
        network: parameters of the online network.
        target_network: parameters of the target network.
        batch: leaves `[S, B, ...]`, or `[S, B, N, ...]` with agents.
        key: PRNG key of the noise.
        discount: gamma, per step.
        num_steps: n; None uses all steps after the burn-in.
        burn_in: number of first steps from which nothing is learned.
        axis_name: mapped axis over which the batch is spread.

    Returns:
        The values of the online network, `[L, B, ...]`, and the view for the targets.

    Raises:
        ValueError: the sequences are too short.

    References:
        Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning, section 3.
    """
    transition = batch.transition
    length, batch_size = transition.terminated.shape
    num_steps = length - burn_in if num_steps is None else num_steps
    num_learned = length - burn_in - num_steps + 1
    if min(num_learned, num_steps) < 1:
        raise ValueError(
            f"`sequence_length` must be at least `burn_in + num_steps`, got {length} for {burn_in} and {num_steps}; "
            f"try {burn_in + max(num_steps, 1)}."
        )
    learned = jax.tree.map(lambda leaf: leaf[burn_in : burn_in + num_learned], transition)
    later = jax.tree.map(lambda leaf: leaf[burn_in:], transition)
    reward, bootstrap_discount, successor = _n_step(later, discount, num_steps)
    learning = q_function.draw_learning_noise or q_function.draw_noise
    draw = _make_draw(learning, key, batch_size, axis_name)
    draw_to_choose = _make_draw(q_function.draw_noise, key, batch_size, axis_name)

    def unroll(params: Params, number: int) -> tuple[Carry, Values]:
        carry = _burn_in(q_function, params, batch, burn_in, draw(4 + number, burn_in))
        inputs = input_of(later if jax.tree.leaves(carry) else learned)
        inputs = inputs.replace(noise=draw(number, inputs.first.shape[0]))
        carries, values = _unroll(q_function, params, carry, inputs)
        return carries, jax.tree.map(lambda leaf: leaf[:num_learned], values)

    def at_successors(params: Params, carries: Carry, noise: PyTree) -> Values:
        inputs = input_of_successor(last).replace(noise=noise)
        size = (1, num_learned * batch_size)  # One batch of single steps.
        inputs = jax.tree.map(lambda leaf: leaf.reshape(*size, *leaf.shape[2:]), inputs)
        carry = jax.tree.map(lambda leaf: leaf.reshape(size[1], *leaf.shape[2:]), gather_step(carries, successor))
        _, values = q_function.apply(params, carry, inputs)
        return jax.tree.map(lambda leaf: leaf.reshape(num_learned, batch_size, *leaf.shape[2:]), values)

    last = gather_step(later, successor)
    carries, values = unroll(network, 0)
    target_carries, target_values = unroll(target_network, 1)
    own_choice = None
    if q_function.draw_learning_noise is not None:
        own_choice = at_successors(target_network, target_carries, draw_to_choose(6, num_learned))
    view = QView(
        action=learned.action,
        reward=reward,
        discount=bootstrap_discount,
        target_values=target_values,
        next_values=at_successors(target_network, target_carries, draw(2, num_learned)),
        next_selector=at_successors(network, carries, draw_to_choose(3, num_learned)),
        next_target_selector=own_choice,
        action_mask=learned.action_mask,
        next_action_mask=last.extras.get("next_action_mask"),
        transition=learned,
        last=last,
        num_steps=num_steps,
    )
    return values, jax.lax.stop_gradient(view)


def discount_per_step(transition: Transition, discount: Array) -> Array:
    """Returns the discount of every step, `[n, B]`, negative if the opponent values the successor."""
    return jnp.broadcast_to(discount * transition.extras.get("perspective", 1.0), transition.terminated.shape)


def _n_step(later: Transition, discount: Array, num_steps: int) -> tuple[Array, Array, Array]:
    """Returns returns, bootstrap discounts and the steps before the successors, for every window of n steps."""
    start = jnp.arange(later.terminated.shape[0] - num_steps + 1)
    steps = jnp.arange(num_steps)[:, None] + start[None]
    reward = later.reward
    flags = (per_agent(flag, reward) for flag in (later.terminated, later.truncated))
    columns = (reward, *flags, per_agent(discount_per_step(later, discount), reward))
    reward, terminated, truncated, discounts = (column[steps] for column in columns)
    reward, bootstrap_discount, index = n_step_transition(reward, terminated, truncated, discount=discounts)
    # Agents share the ends of their episodes.
    index = index if index.ndim == 2 else index[..., 0]
    return reward, bootstrap_discount, start[:, None] + index


def _make_draw(
    draw_noise: Callable[[Array, int], PyTree] | None, key: Array, batch_size: int, axis_name: str | None
) -> Callable[[int, int], PyTree]:
    """Makes `(number, num_steps) -> noise [num_steps, B, ...]`, with a random stream per number and sequence.

    The noise is a network's input besides the observation; None if it needs none.
    """
    start = 0 if axis_name is None else jax.lax.axis_index(axis_name) * batch_size

    def draw(number: int, num_steps: int) -> PyTree:
        if draw_noise is None:
            return None
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, number), start + jnp.arange(batch_size))
        return jax.vmap(lambda key: draw_noise(key, num_steps), out_axes=1)(keys)

    return draw


def _burn_in(q_function: QFunction, params: Params, batch: Sample, num_steps: int, noise: PyTree) -> Carry:
    """Returns the carry after the first steps, from the stored one; no gradient flows through it."""
    if not jax.tree.leaves(batch.carry) or not num_steps:
        return batch.carry
    inputs = input_of(jax.tree.map(lambda leaf: leaf[:num_steps], batch.transition)).replace(noise=noise)
    carry, _ = q_function.apply(params, batch.carry, inputs)
    return jax.lax.stop_gradient(carry)


def _unroll(q_function: QFunction, params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Values]:
    """Returns the carry after every step, `[T, B, ...]`, and the values."""
    if not jax.tree.leaves(carry):
        return q_function.apply(params, carry, inputs)

    def step(carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        carry, values = act(q_function, params, carry, inputs)
        return carry, (carry, values)

    return jax.lax.scan(step, carry, inputs)[1]

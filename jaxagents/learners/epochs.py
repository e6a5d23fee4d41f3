"""Several passes of minibatches of sequences over one rollout."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.optimizers import Trainable, apply_updates, take_if
from jaxagents.types import Array, Params, PyTree, Rollout


def sequence_length_of(rollout: Rollout, sequence_length: int | None) -> int:
    """Returns how many steps stay together: those asked for, or else 1 without memory, the whole rollout with it.

    Raises:
        ValueError: it does not divide the steps of the rollout.
    """
    num_steps = rollout.transition.terminated.shape[0]
    length = sequence_length or (num_steps if jax.tree.leaves(rollout.carry) else 1)
    if num_steps % length:
        raise ValueError(f"`sequence_length` must divide the {num_steps} steps of a rollout, got {length}.")
    return length


def to_sequences(batch: PyTree, length: int) -> PyTree:
    """Cuts `[T, B, ...]` into `[B * T / length, length, ...]`, item = environment * (T / length) + sequence.

    Args:
        batch: a record with a field `carry`, before every step, of which the first of a sequence stays.
        length: divides T.
    """

    def cut(leaf: Array) -> Array:
        steps, envs, *rest = leaf.shape
        leaf = leaf.reshape(steps // length, length, envs, *rest)
        return jnp.moveaxis(leaf, 2, 0).reshape(envs * (steps // length), length, *rest)

    sequences = jax.tree.map(cut, batch)
    return sequences.replace(carry=jax.tree.map(lambda leaf: leaf[:, 0], sequences.carry))


def update_in_minibatches(
    objective: Callable[[Params, PyTree], tuple[Array, tuple[dict[str, Array], PyTree]]],
    params: Params,
    opt_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    sequences: PyTree,
    indices: Array,
    *,
    stop: Callable[[dict[str, Array]], Array] | None = None,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> tuple[Params, optax.OptState, dict[str, Array], PyTree]:
    """Takes an optimiser step for every minibatch.

    Args:
        objective: `(params, minibatch) -> (loss, (metrics, summaries))`; leaves of the minibatch are `[S, n, ...]`.
        params: all parameters.
        opt_state: of the optimiser.
        optimizer: an optax transformation.
        sequences: of `to_sequences`.
        indices: int32 `[minibatches, n]`, see `ops.minibatches`.
        stop: says by the metrics of a minibatch that neither it nor those after it count, but for schedules; None
            never does.
        trainable: see `apply_updates`.
        axis_name: mapped device axis to average gradients and metrics over.

    Returns:
        Parameters, optimiser state, means of the metrics, and sums of the summaries of this device.
    """

    def step(carry: tuple[Params, optax.OptState, Array], index: Array) -> tuple[Any, Any]:
        params, opt_state, stopped = carry
        grads, (metrics, summary) = jax.grad(objective, has_aux=True)(params, _take(sequences, index))
        *new, gradient_norm = apply_updates(
            grads, params, opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        metrics = metrics if axis_name is None else jax.lax.pmean(metrics, axis_name)
        metrics = metrics | {"gradient_norm": gradient_norm}
        if stop is not None:
            stopped = stopped | stop(metrics)
            new = take_if(~stopped, new, [params, opt_state])
            metrics["stopped"] = stopped.astype(jnp.float32)
        return (*new, stopped), (metrics, summary)

    start = (params, opt_state, jnp.zeros((), bool))
    (params, opt_state, _), (metrics, summary) = jax.lax.scan(step, start, indices)
    summary = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), summary)
    return params, opt_state, jax.tree.map(jnp.mean, metrics), summary


def _take(sequences: PyTree, index: Array) -> PyTree:
    """Gathers items and puts time first."""
    taken = jax.tree.map(lambda leaf: leaf[index], sequences)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), taken.replace(carry=())).replace(carry=taken.carry)

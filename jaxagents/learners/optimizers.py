"""Optimisers whose learning rate is an array in their state: another number is the same program."""

import optax


def make_adam(
    num_updates: int | None = None,
    *,
    learning_rate: float = 2.5e-4,
    anneal: bool = False,
    max_gradient_norm: float | None = None,
    epsilon: float = 1e-5,
    weight_decay: float = 0.0,
    flatten: bool = False,
) -> optax.GradientTransformation:
    """Makes Adam with optional clipping by global norm, decoupled weight decay and a linear decay to zero.

    Args:
        num_updates: optimiser steps of the whole run; needed by `anneal` only.
        learning_rate: at the start.
        anneal: decays the learning rate linearly to zero over `num_updates`.
        max_gradient_norm: rescales larger gradients to this global norm; null does not.
        epsilon: of Adam's denominator.
        weight_decay: fraction of the parameters subtracted per step, times the learning rate.
        flatten: works on one vector of all parameters: fewer kernels, faster for small networks on one device.

    Returns:
        The transformation.

    Raises:
        ValueError: `anneal` without `num_updates`.

    References:
        Kingma & Ba (2015), "Adam"; Loshchilov & Hutter (2019), "Decoupled Weight Decay Regularization".
    """
    if anneal and not num_updates:
        raise ValueError(f"`num_updates` must be positive when `anneal` is true, got {num_updates}.")
    steps = [optax.scale_by_adam(eps=epsilon)]
    if max_gradient_norm is not None:
        steps.insert(0, optax.clip_by_global_norm(max_gradient_norm))
    if weight_decay:
        steps.append(optax.add_decayed_weights(weight_decay))
    if anneal:
        steps.append(optax.scale_by_schedule(optax.linear_schedule(1.0, 0.0, num_updates)))
    steps.append(optax.inject_hyperparams(optax.scale_by_learning_rate)(learning_rate=learning_rate))
    optimizer = optax.chain(*steps)
    return optax.flatten(optimizer) if flatten else optimizer

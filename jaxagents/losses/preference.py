"""Losses of pairs of which one is preferred: `(margin, *, ...) -> loss per pair`, to be minimised.

`margin = log(policy / reference)(winner) - log(policy / reference)(loser)`, sums over the tokens of each.
"""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def dpo(margin: Array, *, coefficient: Array | float = 0.1) -> Array:
    """Computes `log(1 + exp(-coefficient margin))`, the logistic loss of DPO and of SPIN.

    Args:
        margin: any shape.
        coefficient: of the KL divergence from the reference that the preference trades reward against; SPIN's lambda.

    Returns:
        The loss, of the shape of `margin`.

    References:
        Rafailov et al. (2023), "Direct Preference Optimization", eq. 7. Chen et al. (2024), "Self-Play Fine-Tuning
        Converts Weak Language Models to Strong Language Models", eq. 4.7.
    """
    return jax.nn.softplus(-coefficient * margin)


def ipo(margin: Array, *, coefficient: Array | float = 0.1) -> Array:
    """Computes `(margin - 1 / (2 coefficient))^2`: the margin is pulled to a finite value, however sure the pair is.

    Args:
        margin: any shape.
        coefficient: of the KL divergence from the reference, positive.

    Returns:
        The loss, of the shape of `margin`.

    References:
        Azar et al. (2024), "A General Theoretical Paradigm to Understand Learning from Human Preferences", eq. 17.
    """
    return jnp.square(margin - 0.5 / coefficient)

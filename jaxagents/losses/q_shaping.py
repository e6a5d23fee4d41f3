"""Q-shaping (Wu, 2024): terms of an action-value loss, such as temporal differences and the values of a script.

Besides temporal differences, there are terms for actions missing from the data, a heuristic, and overseer labels.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.value_distributions import mask_q, select_action
from jaxagents.types import Array, Transition


@struct.dataclass
class QTermView:
    """The inputs of loss terms: L steps of B sequences.

    Attributes:
        q: float32 `[L, B, A]`, values of the online network.
        td_loss: float32 `[L, B]`, loss of the taken actions' values against their targets.
        transition: leaves `[L, B, ...]`; `extras` are those that the term's collector adds.
        num_updates: int32 `[L, B]`, number of updates so far, equal everywhere.
    """

    q: Array
    td_loss: Array
    transition: Transition
    num_updates: Array


def temporal_difference(view: QTermView, *, coefficient: float = 1.0, after: int = 0) -> Array:
    """Computes `coefficient` times the loss of temporal differences.

    Args:
        view: view of the steps; those with `extras["td_mask"]` False do not count.
        coefficient: non-negative weight.
        after: number of updates before it counts, in which the other terms initialise the values.

    Returns:
        `[L, B]`.
    """
    mask = view.transition.extras.get("td_mask", True) & (view.num_updates >= after)
    return coefficient * jnp.where(mask, view.td_loss, 0.0)


def heuristic_values(view: QTermView, *, coefficient: float = 1.0, until: int) -> Array:
    """Computes `coefficient mean_a (Q(s, a) - Q_h(s, a))^2` in the first updates, and 0 from then on.

    From then on only Q-learning continues, whose fixed point does not depend on the heuristic.

    Args:
        view: view of the steps; `extras["heuristic_values"]` are Q_h, float32 `[L, B, A]`, NaN for actions about which
            the heuristic says nothing.
        coefficient: non-negative weight.
        until: number of updates in which it counts.

    Returns:
        `[L, B]`.

    References:
        Wu (2024), "From Reward Shaping to Q-Shaping: Achieving Unbiased Learning with LLM-Guided Knowledge".
    """
    wanted = _read(view, "heuristic_values", "collector=advised")
    known = ~jnp.isnan(wanted)
    error = jnp.square(view.q - jnp.where(known, wanted, 0.0))
    mean = jnp.sum(jnp.where(known, error, 0.0), axis=-1) / jnp.maximum(jnp.sum(known, axis=-1), 1)
    return jnp.where(view.num_updates < until, coefficient * mean, 0.0)


def conservative_term(view: QTermView, *, coefficient: float = 1.0) -> Array:
    """Computes `coefficient (log sum_a exp Q(s, a) - Q(s, a_data))`, which lowers actions that are not in the data.

    Args:
        view: view of the steps.
        coefficient: alpha, in units of the value.

    Returns:
        `[L, B]`, non-negative.

    References:
        Kumar et al. (2020), Conservative Q-learning for offline reinforcement learning, equation 4.
    """
    allowed = mask_q(view.q, view.transition.action_mask)
    return coefficient * (jax.nn.logsumexp(allowed, axis=-1) - select_action(view.q, view.transition.action))


def _read(view: QTermView, name: str, way_out: str) -> Array:
    if name not in view.transition.extras:
        raise ValueError(f"`extras` of transitions must have {name!r}, got {[*view.transition.extras]}; try {way_out}.")
    return view.transition.extras[name]

"""Q-shaping (Wu, 2024): terms of the loss of action values, temporal differences and the values of a script.

Beside temporal differences stand what a data set lacks, values of a heuristic, or the labels of an overseer.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.value_distributions import mask_q, select_action
from jaxagents.types import Array, Transition


@struct.dataclass
class QTermView:
    """What terms see of L steps of B sequences.

    Attributes:
        q: float32 `[L, B, A]`, of the online network.
        td_loss: float32 `[L, B]`, of the values of the actions against their targets.
        transition: leaves `[L, B, ...]`; `extras` are those that the collector of a term adds.
        num_updates: int32 `[L, B]`, updates done, the same everywhere.
    """

    q: Array
    td_loss: Array
    transition: Transition
    num_updates: Array


def temporal_difference(view: QTermView, *, coefficient: float = 1.0, after: int = 0) -> Array:
    """Computes `coefficient` times the loss of temporal differences.

    Args:
        view: of the steps; where `extras["td_mask"]` is False, nothing is learned from what followed.
        coefficient: not below 0.
        after: updates before it counts, in which the other terms initialise the values.

    Returns:
        `[L, B]`.
    """
    mask = view.transition.extras.get("td_mask", True) & (view.num_updates >= after)
    return coefficient * jnp.where(mask, view.td_loss, 0.0)


def heuristic_values(view: QTermView, *, coefficient: float = 1.0, until: int) -> Array:
    """Computes `coefficient mean_a (Q(s, a) - Q_h(s, a))^2` in the first updates, and 0 from then on.

    Q-learning goes on alone from there, whose fixed point owes nothing to the heuristic.

    Args:
        view: of the steps; `extras["heuristic_values"]` are Q_h, float32 `[L, B, A]`, NaN for actions on which the
            heuristic has nothing to say.
        coefficient: not below 0.
        until: updates in which it counts.

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
    """Computes `coefficient (log sum_a exp Q(s, a) - Q(s, a_data))`, which lowers actions that the data lack.

    Args:
        view: of the steps.
        coefficient: alpha, in units of the value.

    Returns:
        `[L, B]`, not negative.

    References:
        Kumar et al. (2020), Conservative Q-learning for offline reinforcement learning, equation 4.
    """
    allowed = mask_q(view.q, view.transition.action_mask)
    return coefficient * (jax.nn.logsumexp(allowed, axis=-1) - select_action(view.q, view.transition.action))


def _read(view: QTermView, name: str, way_out: str) -> Array:
    if name not in view.transition.extras:
        raise ValueError(f"`extras` of transitions must have {name!r}, got {[*view.transition.extras]}; try {way_out}.")
    return view.transition.extras[name]

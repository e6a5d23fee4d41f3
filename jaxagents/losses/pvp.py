"""PVP (Peng et al., 2023): values of 1 and -1 for the overseer's actions and the actions that it overrode."""

import jax.numpy as jnp

from jaxagents.losses.q_shaping import QTermView
from jaxagents.types import Array


def proxy_values(view: QTermView, *, bound: float = 1.0, negative: bool = True) -> Array:
    """Computes `I (Q(s, a) - B)^2 + I [a != a_n] (Q(s, a_n) + B)^2` with the action `a_n` of the novice.

    I is 1 in steps in which the overseer acted. Its action gets the value B, and the overridden one -B. Additional
    temporal differences without rewards spread these values to steps without an intervention.

    Args:
        view: view of the steps; `extras` are `novice_action` (int32 `[L, B]`) and `intervened` (bool `[L, B]`).
        bound: B, positive.
        negative: whether to include the term of overridden actions.

    Returns:
        `[L, B]`.

    Raises:
        ValueError: the bound is not positive, or the steps have no overseer.

    References:
        Peng, Mo, Duan, Li and Zhou (2023), "Learning from Active Human Involvement through Proxy Value Propagation",
        equation 4.
    """
    if bound <= 0.0:
        raise ValueError(f"`bound` must be positive, got {bound}; try 1.")
    extras = view.transition.extras
    if "intervened" not in extras or "novice_action" not in extras:
        raise ValueError(
            f"`extras` of transitions must have 'intervened' and 'novice_action', got {[*extras]}; "
            "try collector=overseen."
        )
    action, novice_action, intervened = view.transition.action, extras["novice_action"], extras["intervened"]
    value_of = [jnp.take_along_axis(view.q, taken[..., None], axis=-1)[..., 0] for taken in (action, novice_action)]
    total = jnp.where(intervened, jnp.square(value_of[0] - bound), 0.0)
    if negative:
        total += jnp.where(intervened & (action != novice_action), jnp.square(value_of[1] + bound), 0.0)
    return total

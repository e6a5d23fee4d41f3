"""EPO (Xu et al., 2025): keeps the entropy near its mean over earlier updates."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, Stateful, TokenView


@struct.dataclass
class EntropyHistory:
    """Mean entropies of the updates so far.

    Attributes:
        total: float32 `[K]`, sum over updates of the mean entropy of the tokens of turn k, in nats.
        count: float32 `[K]`, number of updates in which turn k had tokens.
        update: float32, number of updates so far.
        num_updates: float32, number of updates of the whole run.
    """

    total: Array
    count: Array
    update: Array
    num_updates: Array


def make_entropy_smoothing(
    *,
    coefficient: float,
    lower: float = 0.8,
    upper: float = 1.2,
    penalty: float = 0.05,
    hinge: bool = True,
    num_turns: int = 50,
) -> Stateful:
    """Makes the smoothing regulariser of EPO, which keeps entropies within a band around their history.

    Args:
        coefficient: coefficient, in units of the loss (paper: that of the entropy bonus, 0.001).
        lower: lower end of the band, relative to the mean of the history (code: 0 or 0.8).
        upper: upper end of the band, relative to the mean of the history (code: 2 or 1.2).
        penalty: kappa, weight of the penalty (paper: 0.05 or 0.1).
        hinge: see `entropy_smoothing`.
        num_turns: K, number of turns with a separate history; further turns share the last one (paper: 50).

    Returns:
        A slot of `learners.policy_gradient`, for use with `losses.regularizers.entropy_bonus`.

    Raises:
        ValueError: the band is empty or `num_turns` is not positive.

    References:
        Xu et al. (2025), "EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning".

    Deviation: it applies to all batches; the released code leaves out those without a turn in the second half of K.
    """
    if not 0.0 <= lower < upper:
        raise ValueError(f"`lower` must be in [0, `upper`), got {lower} and {upper}; try 0.8 and 1.2.")
    if num_turns < 1:
        raise ValueError(f"`num_turns` must be at least 1, got {num_turns}; try 50.")

    def init(num_updates: int) -> EntropyHistory:
        return EntropyHistory(
            total=jnp.zeros(num_turns),
            count=jnp.zeros(num_turns),
            update=jnp.zeros(()),
            num_updates=jnp.float32(num_updates),
        )

    numbers = {"coefficient": coefficient, "lower": lower, "upper": upper, "penalty": penalty}
    numbers = {name: float(value) for name, value in numbers.items()}
    return Stateful(init=init, apply=partial(entropy_smoothing, hinge=hinge, **numbers), update=add_to_history)  # type: ignore[arg-type]


def entropy_smoothing(
    history: EntropyHistory,
    view: TokenView,
    *,
    coefficient: Array | float,
    lower: Array | float,
    upper: Array | float,
    penalty: Array | float,
    hinge: bool,
) -> tuple[Array, dict[str, Array]]:
    """Computes `coefficient w P` with the weight w of the training phase and the penalty P of a token of turn k.

    With H the entropy of the token and B_k the mean of the history of its turn,
    `P = penalty (max(H - upper B_k, 0) + max(lower B_k - H, 0)) / B_k`, zero if there is no history.

    Args:
        history: history of all earlier updates.
        view: view of the tokens; reads `entropy` and `turn`.
        coefficient: coefficient, in units of the loss.
        lower: lower end of the band, relative to B_k.
        upper: upper end of the band, relative to B_k.
        penalty: kappa, weight of the penalty.
        hinge: whether P grows with the distance from the band. False: `P = penalty` outside the band and 0 inside, as
            in the released code. That is piecewise constant: its gradient is zero, so that the method is a plain
            entropy bonus.

    Returns:
        The term `[n, t, S]`, and the sums of entropies and tokens by turn, `[K]` each.

    References:
        See `make_entropy_smoothing`.
    """
    num_turns = history.count.shape[0]
    entropy, mask = view.entropy, view.mask
    index = jnp.clip(view.turn, 0, num_turns - 1)
    mean = (history.total / jnp.maximum(history.count, 1.0))[index]
    known = mask & (history.count[index] > 0) & (mean > 0.0)
    mean = jnp.where(known, mean, 1.0)
    excess = jnp.maximum(entropy - upper * mean, 0.0) + jnp.maximum(lower * mean - entropy, 0.0)
    amount = excess / mean if hinge else (excess > 0.0).astype(jnp.float32)
    weight = coefficient * phase_weight(history.update / history.num_updates)
    counted = jnp.where(mask, jax.lax.stop_gradient(entropy), 0.0).reshape(-1)
    summary = {
        "entropy": jnp.zeros(num_turns).at[index.reshape(-1)].add(counted),
        "tokens": jnp.zeros(num_turns).at[index.reshape(-1)].add(mask.reshape(-1).astype(jnp.float32)),
    }
    return weight * penalty * jnp.where(known, amount, 0.0), summary


def add_to_history(history: EntropyHistory, summary: dict[str, Array]) -> EntropyHistory:
    """Adds the mean entropies of an update; turns without tokens keep their history."""
    seen = summary["tokens"] > 0
    mean = summary["entropy"] / jnp.maximum(summary["tokens"], 1.0)
    return history.replace(
        total=history.total + jnp.where(seen, mean, 0.0),
        count=history.count + seen,
        update=history.update + 1.0,
    )


def phase_weight(progress: Array) -> Array:
    """Computes the weight of the penalty: `1 - 0.2 (1 - exp(-2 p))` in the first half, `0.8 exp(-3 p)` in the second.

    Args:
        progress: fraction of the run that is done, in [0, 1]; p goes from 0 to 1 in each half of it.

    Returns:
        The weight, from 1 down to 0.04.
    """
    half = 2.0 * jnp.clip(progress, 0.0, 1.0)
    first = 1.0 - 0.2 * (1.0 - jnp.exp(-2.0 * half))
    return jnp.where(half < 1.0, first, 0.8 * jnp.exp(-3.0 * (half - 1.0)))

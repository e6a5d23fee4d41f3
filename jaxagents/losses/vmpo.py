"""V-MPO (Song et al., 2020), on-policy MPO: the policy loss, which also learns its temperature and price."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.losses.policy_gradient import approximate_kl
from jaxagents.types import Array, Stateful


@struct.dataclass
class VMPOState:
    """Memory of V-MPO; its numbers are arrays, so that changing them does not require compiling again.

    Attributes:
        log_temperature: float32, logarithm of eta, which is in units of the advantage.
        log_price: float32, logarithm of alpha, the price of a nat of divergence.
        rate: float32, greatest change of both per update.
    """

    log_temperature: Array
    log_price: Array
    rate: Array


def vmpo(
    *,
    epsilon: float = 0.1,
    epsilon_kl: float = 0.01,
    initial_temperature: float = 1.0,
    initial_price: float = 5.0,
    rate: float = 0.1,
) -> Stateful:
    """Makes the loss `-w log_prob + alpha KL` for the better half of a minibatch, for the slot `loss` of PPO.

    Weights `w = softmax(A / eta)` are over the half of the n elements with the larger advantages, times n, so that the
    mean over the elements is the sum over that half. The divergence of the policy from the one that acted is estimated
    per element and counts everywhere. The temperature and the price minimise `eta (epsilon + log mean exp(A / eta))`
    and `alpha (epsilon_kl - KL)`; they move in the direction of the slope's sign.

    Args:
        epsilon: bound on the divergence of the weights from equal ones, in nats. Paper: 0.01 to 0.1.
        epsilon_kl: bound on the divergence of the policy from the one that acted, in nats. Paper: 0.001 to 0.1.
        initial_temperature: initial eta, in units of the advantage. Paper: 1.
        initial_price: initial alpha. Paper: 5.
        rate: greatest change of both logarithms after every rollout.

    Returns:
        The slot; it needs advantages without normalisation (`normalize_advantages` is false).

    Raises:
        ValueError: a number is not positive.

    References:
        Song et al. (2020), V-MPO: on-policy maximum a posteriori policy optimization for discrete and continuous
        control, equations 5 to 8.

    Deviation: the logarithms of temperature and price change by `rate clip(divergence / epsilon - 1, -1, 1)` after
        every rollout, instead of Adam; the divergence is the k3 estimate for taken actions; the half is that of a
        minibatch on one device.
    """
    numbers = {"epsilon": epsilon, "epsilon_kl": epsilon_kl, "initial_temperature": initial_temperature}
    for name, value in (numbers | {"initial_price": initial_price, "rate": rate}).items():
        if not value > 0.0:
            raise ValueError(f"`{name}` of V-MPO must be positive, got {value}.")

    def init(num_updates: int) -> VMPOState:
        del num_updates
        logs = jnp.log(jnp.float32(initial_temperature)), jnp.log(jnp.float32(initial_price))
        return VMPOState(*logs, jnp.float32(rate))

    def update(state: VMPOState, summary: dict[str, Array]) -> VMPOState:
        spread, kl = (jnp.clip(summary[name] / summary["count"], -1.0, 1.0) for name in ("spread", "kl"))
        return state.replace(
            log_temperature=state.log_temperature + state.rate * spread, log_price=state.log_price + state.rate * kl
        )

    return Stateful(init=init, apply=partial(_loss, epsilon=epsilon, epsilon_kl=epsilon_kl), update=update)


def better_half(advantage: Array, temperature: Array) -> tuple[Array, Array]:
    """Computes `softmax(A / temperature)` over the half of all elements with the larger advantages, zero elsewhere.

    Args:
        advantage: float `[...]`.
        temperature: float `[]`.

    Returns:
        The weights `[...]`, with sum 1 and no gradient, and their divergence from equal weights, in nats.
    """
    scaled = jax.lax.stop_gradient(advantage / temperature).reshape(-1)
    count = max(scaled.size // 2, 1)
    kept = jnp.argsort(jnp.argsort(-scaled)) < count
    weights = jax.nn.softmax(jnp.where(kept, scaled, -jnp.inf))
    divergence = jnp.sum(jnp.where(weights > 0.0, weights * jnp.log(jnp.maximum(weights, 1e-30) * count), 0.0))
    return weights.reshape(advantage.shape), divergence


def _loss(
    state: VMPOState,
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    *,
    epsilon: Array | float,
    epsilon_kl: Array | float,
) -> tuple[Array, dict[str, Array]]:
    weights, divergence = better_half(advantage, jnp.exp(state.log_temperature))
    kl = approximate_kl(log_prob, behavior_log_prob)
    loss = -log_prob.size * weights * log_prob + jnp.exp(state.log_price) * kl
    violations = {"spread": divergence / epsilon - 1.0, "kl": jnp.mean(kl) / epsilon_kl - 1.0}
    return loss, jax.lax.stop_gradient(violations | {"count": jnp.float32(1.0)})

"""MPO (Abdolmaleki et al., 2018): losses of the policy, the temperature and the prices of constraints."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.distributions import TanhNormal
from jaxagents.types import Array


@struct.dataclass
class ImprovementView:
    """The inputs of a policy improvement: B states with K actions each.

    Attributes:
        policy: distributions that are trained.
        target_policy: distributions from which the actions were drawn; no gradient flows to them.
        action: `[K, B, D]`, unsquashed actions.
        q: float32 `[E, K, B]`, values of the target critics for these actions.
    """

    policy: TanhNormal
    target_policy: TanhNormal
    action: Array
    q: Array


def mpo(
    view: ImprovementView,
    temperature: Mapping[str, Array],
    *,
    epsilon: Array | float = 0.1,
    epsilon_loc: Array | float = 2.5e-3,
    epsilon_scale: Array | float = 1e-6,
) -> tuple[Array, Array]:
    """Computes the losses of one step of MPO with separate constraints on location and scale.

    With `w_k = softmax_k(Q_k / eta)` for the actions of the target policy and the temperature eta, the loss of the
    policy is `-sum_k w_k (log pi(a_k; loc, scale') + log pi(a_k; loc', scale)) + alpha_loc C_loc + alpha_scale
    C_scale`, where primes mark the target policy and `C_loc`, `C_scale` are its divergences from `pi(loc, scale')` and
    `pi(loc', scale)`. The loss of the temperature and the prices is `eta (epsilon + log mean_k exp(Q_k / eta)) +
    alpha_loc (epsilon_loc - C_loc) + alpha_scale (epsilon_scale - C_scale)`.

    Args:
        view: view of the states; the critics are averaged.
        temperature: positive scalars named `temperature` (eta), `loc` and `scale` (alphas).
        epsilon: bound on the divergence of the weights from the target policy, in nats. Paper: 0.1.
        epsilon_loc: bound on the divergence due to the location, in nats.
        epsilon_scale: bound on the divergence due to the scale, in nats.

    Returns:
        Losses of the policy and of the temperatures, each `[B]`; neither has gradients for what the other one trains.

    Raises:
        ValueError: the temperatures have other names.

    References:
        Abdolmaleki et al. (2018a), Maximum a posteriori policy optimisation, section 4.
        Abdolmaleki et al. (2018b), Relative entropy regularized policy iteration, equations 5 to 9.
    """
    if set(temperature) != {"temperature", "loc", "scale"}:
        raise ValueError(
            "`initial_temperature` must have `temperature`, `loc` and `scale` for MPO, got "
            f"{sorted(temperature)}; try {{temperature: 1, loc: 1, scale: 10}}."
        )
    q, former = jax.lax.stop_gradient((jnp.mean(view.q, axis=0), view.target_policy))
    located, scaled = former.replace(loc=view.policy.loc), former.replace(scale=view.policy.scale)
    constant = jax.lax.stop_gradient(dict(temperature))
    weights = jax.nn.softmax(q / constant["temperature"], axis=0)
    action = jax.lax.stop_gradient(view.action)
    log_prob = jax.vmap(lambda action: located.log_prob(action) + scaled.log_prob(action))(action)
    likelihood = jnp.sum(weights * log_prob, axis=0)
    divergences = {"loc": former.kl_divergence(located), "scale": former.kl_divergence(scaled)}
    policy_loss = -likelihood + sum(constant[name] * divergences[name] for name in divergences)

    eta = temperature["temperature"]
    spread = jax.nn.logsumexp(q / eta, axis=0) - jnp.log(q.shape[0])
    slack = {"loc": epsilon_loc - divergences["loc"], "scale": epsilon_scale - divergences["scale"]}
    dual_loss = eta * (epsilon + spread) + sum(temperature[n] * jax.lax.stop_gradient(slack[n]) for n in slack)
    return policy_loss, dual_loss

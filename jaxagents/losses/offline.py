"""Targets and element-wise losses of actor-critics that learn from fixed data. No gradient flows to the targets."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.rows import smallest
from jaxagents.types import Array


@struct.dataclass
class TargetView:
    """The inputs of critic targets for B steps.

    Attributes:
        reward: float32 `[B]`, reward of one step or discounted sum over several.
        discount: float32 `[B]`, factor of the successor's value; zero if terminated.
        next_q: float32 `[2, B]`, values of the target critics for an action of the policy.
        next_value: float32 `[B]`, value of the successor by the state-value function; None without one.
    """

    reward: Array
    discount: Array
    next_q: Array
    next_value: Array | None = None


@struct.dataclass
class SampledView:
    """The inputs of terms that keep values of unseen actions low, for B steps.

    Attributes:
        q: float32 `[2, B]`, values of the actions in the data.
        sampled_q: float32 `[2, B, K]`, values of sampled actions.
        log_density: float32 `[B, K]`, log-density of the sampled actions under their sampler, in units of the
            environment.
        from_policy: bool `[K]`, whether they were drawn by the policy rather than uniformly.
        return_to_go: float32 `[B]`, discounted rewards in the data from the step on.
    """

    q: Array
    sampled_q: Array
    log_density: Array
    from_policy: Array
    return_to_go: Array


@struct.dataclass
class ActorView:
    """The inputs of policy losses for B steps; gradients flow through the first four.

    Attributes:
        log_prob: float32 `[B]`, log-probability of the action in the data.
        distance: float32 `[B]`, distance of the mode from the action in the data, see
            `losses.imitation.squared_distance`.
        own_q: float32 `[2, B]`, values of the critics for an action of the policy.
        own_log_prob: float32 `[B]`, log-probability of that action.
        q: float32 `[B]`, the smaller value of the action in the data: by the target critics if there is a state-value
            function, else by the critics of `own_q`, so that a common error cancels in `q - value`.
        value: float32 `[B]`, value of the state: by the state-value function or, without one, `min_i own_q`.
        q_magnitude: float32 `[]`, weighted mean of `|own_q_0|` over the whole batch.
    """

    log_prob: Array
    distance: Array
    own_q: Array
    own_log_prob: Array
    q: Array
    value: Array
    q_magnitude: Array


def twin_target(view: TargetView) -> Array:
    """Computes `reward + discount min_i next_q_i`.

    References:
        Fujimoto, van Hoof and Meger (2018), Addressing function approximation error, equation 10.
    """
    return view.reward + view.discount * jnp.min(view.next_q, axis=0)


def state_value_target(view: TargetView) -> Array:
    """Computes `reward + discount V(next state)`, which does not use the policy.

    References:
        Kostrikov, Nair and Levine (2022), Offline reinforcement learning with implicit Q-learning, equation 6.
    """
    return view.reward + view.discount * view.next_value


def expectile_loss(value: Array, target: Array, *, expectile: Array | float = 0.7) -> Array:
    """Computes `|expectile - [target < value]| (target - value)^2`, whose minimum is an expectile of the targets.

    Args:
        value: float `[...]`.
        target: float `[...]`; no gradient flows to it.
        expectile: number in (0, 1); 0.5 gives the mean, 1 the maximum. Paper: 0.7 for locomotion, 0.9 for mazes.

    Returns:
        float `[...]`.

    References:
        Kostrikov, Nair and Levine (2022), equation 5.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(expectile_loss(jnp.array([0.0, 0.0]), jnp.array([1.0, -1.0]), expectile=0.75))
        [0.75 0.25]
    """
    error = jax.lax.stop_gradient(target) - value
    return jnp.abs(expectile - (error < 0.0)) * jnp.square(error)


def conservative_sum(view: SampledView, *, coefficient: Array | float = 5.0) -> Array:
    """Computes `coefficient sum_i (log mean_k exp(sampled_q_ik - log_density_k) - q_i)`.

    The logarithm estimates that of the integral of `exp Q` over all actions by importance sampling. With data of a
    deterministic player the term has no minimum: no sampled action is near those in the data, whose values are raised
    by the coefficient in every step, and by up to `coefficient / (1 - discount)` in total.

    Args:
        view: view of the steps.
        coefficient: alpha. Paper: 5.

    Returns:
        float `[B]`.

    References:
        Kumar et al. (2020), Conservative Q-learning for offline reinforcement learning, equation 4 and appendix F;
        Tarasov et al. (2023), CORL, algorithms/offline/cql.py at 1254f0b (the same sum over three kinds of actions).

    Deviation: it is added to half of the squared error, as in the paper; CORL leaves out the half, so that its
        coefficient (10) is twice this one. The mean over samples instead of their sum changes no gradient.
    Deviation: CORL's options of a learned multiplier (`cql_lagrange`) and of the largest of several next actions
        (`cql_max_target_backup`) do not exist here; both are off by default there.
    """
    soft_max = jax.nn.logsumexp(view.sampled_q - view.log_density[None], axis=-1) - jnp.log(view.log_density.shape[-1])
    return coefficient * jnp.sum(soft_max - view.q, axis=0)


def calibrated_sum(view: SampledView, *, coefficient: Array | float = 5.0) -> Array:
    """Computes `conservative_sum`, but lowers values of the policy's actions only down to the returns in the data.

    Args:
        view: view of the steps.
        coefficient: alpha. Paper: 5.

    Returns:
        float `[B]`.

    References:
        Nakamoto et al. (2023), Cal-QL: calibrated offline RL pre-training, equation 5.1.
    """
    floored = jnp.maximum(view.sampled_q, view.return_to_go[None, :, None])
    return conservative_sum(
        view.replace(sampled_q=jnp.where(view.from_policy, floored, view.sampled_q)), coefficient=coefficient
    )


def calibrated_gap(view: SampledView, *, coefficient: Array | float = 1.0) -> Array:
    """Computes `coefficient sum_i (mean_k max(sampled_q_ik, return_to_go) - q_i)` over the policy's actions k.

    Values of the policy's actions are lowered down to the returns, without uniform actions or densities: for actions of
    many numbers, such as chunks, both are uninformative. Values of actions in the data rise by the coefficient in every
    step, and by up to `coefficient / (1 - discount)` in total; this should be small compared with the returns.

    Args:
        view: view of the steps.
        coefficient: alpha, in units of the value.

    Returns:
        float `[B]`.

    References:
        Nakamoto et al. (2023), Cal-QL: calibrated offline RL pre-training, equation 5.1 with the policy as `mu`; Huang
        et al. (2025), CO-RFT: efficient fine-tuning of vision-language-action models through chunked offline
        reinforcement learning, over chunks.

    Deviation: the policy's actions at the successor are also used as samples, as in `conservative_sum`.
    Deviation: CO-RFT also has a value for every prefix of a chunk.
    """
    floored = jnp.maximum(view.sampled_q, view.return_to_go[None, :, None])
    count = jnp.sum(view.from_policy)
    mean = jnp.sum(jnp.where(view.from_policy, floored, 0.0), axis=-1) / count
    return coefficient * jnp.sum(mean - view.q, axis=0)


def soft_policy_loss(view: ActorView, *, temperature: Array | float = 0.1) -> Array:
    """Computes `temperature own_log_prob - min_i own_q_i`.

    Args:
        view: view of the steps.
        temperature: value of one nat of entropy, in units of the reward.

    Returns:
        float `[B]`.

    References:
        Haarnoja et al. (2018b), Soft actor-critic algorithms and applications, equation 9.
    """
    return temperature * view.own_log_prob - smallest(view.own_q)


def behavior_cloning_policy_loss(view: ActorView, *, alpha: Array | float = 2.5) -> Array:
    """Computes `-alpha own_q_0 / q_magnitude + distance`, where the distance is a mean over the D numbers of an action.

    Args:
        view: view of the steps.
        alpha: weight of the value. Paper: 2.5.

    Returns:
        float `[B]`.

    References:
        Fujimoto and Gu (2021), A minimalist approach to offline reinforcement learning, equations 4 and 5; TD3_BC.py of
        sfujim/TD3_BC, which also averages over the numbers of an action.

    Deviation: actions are compared in units of half their range, which are the units of the paper's tasks.
    """
    return -alpha * view.own_q[0] / jnp.maximum(view.q_magnitude, 1e-6) + view.distance


def advantage_weighted_policy_loss(
    view: ActorView, *, inverse_temperature: Array | float = 3.0, max_weight: Array | float = 100.0
) -> Array:
    """Computes `-min(exp(inverse_temperature (q - value)), max_weight) log_prob`.

    Args:
        view: view of the steps.
        inverse_temperature: beta, per unit of the value. IQL: 3 for locomotion; AWAC: 1.
        max_weight: largest weight of a step. IQL: 100.

    Returns:
        float `[B]`; no gradient flows through the weights.

    References:
        Peng et al. (2019), Advantage-weighted regression, equation 6; Nair et al. (2020), AWAC, equation 13, and
        `_actor_loss` of CORL, algorithms/offline/awac.py; Kostrikov, Nair and Levine (2022), equation 7.

    Deviation: in its released code, AWAC normalises its weights over the batch.
    """
    # The bound is applied before the exponential, which may be infinite.
    exponent = jnp.minimum(inverse_temperature * (view.q - view.value), jnp.log(max_weight))
    return -jax.lax.stop_gradient(jnp.exp(exponent)) * view.log_prob

"""Targets and element-wise losses of action values. No gradient flows to the targets.

Targets of Q-learning are functions of a `QView`; values are expectations or distributions of returns, see
`ops.value_distributions`.
"""

import jax
import jax.numpy as jnp

from jaxagents.losses.value import huber_loss
from jaxagents.ops.rows import smallest
from jaxagents.ops.value_distributions import (
    CategoricalValues,
    QuantileValues,
    Values,
    backup,
    expected_values,
    mask_q,
    select_action,
)
from jaxagents.types import Array, QView


def q_target(view: QView) -> Array:
    """Computes `reward + discount max_a next_values(a)`; for IQN, other fractions choose the action.

    Args:
        view: view of the steps.

    Returns:
        The target: float `[L, B]`; for distributions, see `backup`.

    References:
        Mnih et al. (2015), algorithm 1; Bellemare, Dabney and Munos (2017), algorithm 1; Dabney et al. (2018), Implicit
        quantile networks, equation 3.
    """
    selector = view.next_values if view.next_target_selector is None else view.next_target_selector
    return double_q_target(view.replace(next_selector=selector))


def double_q_target(view: QView) -> Array:
    """Computes `reward + discount next_values(argmax_a next_selector(a))`, with actions compared by expectation.

    Args:
        view: view of the steps.

    Returns:
        See `q_target`.

    References:
        Van Hasselt, Guez and Silver (2016), equation 4.
    """
    next_action = jnp.argmax(mask_q(expected_values(view.next_selector), view.next_action_mask), axis=-1)
    return backup(select_action(view.next_values, next_action), view.reward, view.discount)


def rescaled_q_target(view: QView, *, epsilon: Array | float = 1e-3) -> Array:
    """Computes `h(reward + discount h^-1(next_values(argmax_a next_selector(a))))`, if values are h of returns.

    Args:
        view: view of the steps; values are expectations.
        epsilon: epsilon of `rescale`.

    Returns:
        float `[L, B]`.

    References:
        Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning, section 2.3.
    """
    returns = view.replace(next_values=unscale(view.next_values, epsilon=epsilon))
    return rescale(double_q_target(returns), epsilon=epsilon)


def munchausen_target(
    view: QView, *, temperature: Array | float = 0.03, bonus: Array | float = 0.9, floor: Array | float = -1.0
) -> Array:
    """Computes a soft target with the scaled log-policy of the action added to the reward.

    `reward + bonus clip(t log pi(a | s), floor, 0) + discount sum_b pi(b | s') (next_values(b) - t log pi(b | s'))`
    with the temperature t and `pi = softmax(values / t)` of the target network.

    Args:
        view: view of single steps; with several, there would be a bonus for each.
        temperature: t, in units of the value. Paper: 0.03.
        bonus: alpha, in [0, 1). Paper: 0.9.
        floor: lower bound of the log-policy term, in units of the value. Paper: -1.

    Returns:
        See `q_target`; not for `CategoricalValues`.

    Raises:
        ValueError: the values are `CategoricalValues`, whose mixtures do not lie on their atoms, or span several steps.

    References:
        Vieillard, Pietquin and Geist (2020), Munchausen reinforcement learning, equation 1 and appendix B.
    """
    if isinstance(view.next_values, CategoricalValues):
        raise ValueError(
            "`target` must not be `munchausen_target` for values on atoms, got CategoricalValues; try quantiles."
        )
    if view.num_steps != 1:
        raise ValueError(
            f"`num_steps` must be 1 for `munchausen_target`, got {view.num_steps}; try learner.num_steps=1, or "
            "learner.buffer.sequence_length=1."
        )
    log_policy = _log_policy(view.target_values, view.action_mask, temperature)
    chosen = jnp.clip(temperature * select_action(log_policy, view.action), floor, 0.0)
    next_log_policy = _log_policy(view.next_values, view.next_action_mask, temperature)
    is_quantiles = isinstance(view.next_values, QuantileValues)
    values = view.next_values.quantiles if is_quantiles else view.next_values[..., None]
    share = jnp.exp(next_log_policy)[..., None]
    # `where` instead of a product: forbidden actions have probability zero and an infinite logarithm.
    soft = jnp.where(share > 0.0, share * (values - temperature * next_log_policy[..., None]), 0.0).sum(-2)
    soft = view.next_values.replace(quantiles=soft) if is_quantiles else soft[..., 0]
    return backup(soft, view.reward + bonus * chosen, view.discount)


def q_loss(value: Values, target: Array, *, delta: Array | float = 1.0) -> Array:
    """Computes the loss for the kind of values.

    Args:
        value: value of the chosen actions.
        target: target of the same kind, see `backup`.
        delta: threshold of the Huber loss, in units of the value.

    Returns:
        float `[...]`: `categorical_loss`, `quantile_huber_loss` or `huber_loss`.

    Examples:
        >>> import jax.numpy as jnp
        >>> q_loss(jnp.array([0.0, 0.0]), jnp.array([0.5, 3.0])).tolist()
        [0.125, 2.5]
    """
    if isinstance(value, CategoricalValues):
        return categorical_loss(value, target)
    if isinstance(value, QuantileValues):
        return quantile_huber_loss(value, target, delta=delta)
    return huber_loss(value, target, delta=delta)


def categorical_loss(value: CategoricalValues, target: Array) -> Array:
    """Computes `KL(target || value)` in nats.

    Args:
        value: logits `[..., Z]`.
        target: probabilities `[..., Z]`.

    Returns:
        float `[...]`.

    References:
        Bellemare, Dabney and Munos (2017), algorithm 1; Hessel et al. (2018), Rainbow, equation 3.
    """
    target = jax.lax.stop_gradient(target)
    log_target = jnp.log(jnp.where(target > 0.0, target, 1.0))
    return jnp.sum(target * (log_target - jax.nn.log_softmax(value.logits)), axis=-1)


def quantile_huber_loss(value: QuantileValues, target: Array, *, delta: Array | float = 1.0) -> Array:
    """Computes `sum_i mean_j |fraction_i - [u_ij < 0]| huber(u_ij)` with `u_ij = target_j - quantile_i`.

    Args:
        value: quantiles and fractions `[..., K]`.
        target: quantiles `[..., K']`.
        delta: threshold of the Huber loss, in units of the value.

    Returns:
        float `[...]`.

    References:
        Dabney et al. (2018), Distributional reinforcement learning with quantile regression, equation 10.
    """
    quantiles, target = value.quantiles[..., :, None], target[..., None, :]
    weight = jnp.abs(value.fractions[..., :, None] - (jax.lax.stop_gradient(target - quantiles) < 0.0))
    loss = huber_loss(quantiles, target, delta=delta)
    total = jnp.einsum("...ij,...ij->...", weight, loss, precision=jax.lax.Precision.HIGHEST)
    return total / target.shape[-1]


def rescale(value: Array, *, epsilon: Array | float = 1e-3) -> Array:
    """Computes `h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x`, which compresses large values, per element.

    References:
        Pohlen et al. (2018), Observe and look further, proposition A.2.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(rescale(jnp.array([0.0, 3.0, -8.0])))
        [ 0.     1.003 -2.008]
    """
    return jnp.sign(value) * (jnp.sqrt(jnp.abs(value) + 1.0) - 1.0) + epsilon * value


def unscale(value: Array, *, epsilon: Array | float = 1e-3) -> Array:
    """Computes the inverse of `rescale`, per element.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(unscale(rescale(jnp.array([100.0]))))
        [100.000015]
    """
    shifted = jnp.abs(value) + 1.0 + epsilon
    # Not `(root - 1) / (2 epsilon)`, which loses digits if epsilon is small.
    ratio = 2.0 * shifted / (jnp.sqrt(1.0 + 4.0 * epsilon * shifted) + 1.0)
    return jnp.sign(value) * (jnp.square(ratio) - 1.0)


def soft_q_target(reward: Array, discount: Array, next_q: Array, next_log_prob: Array, temperature: Array) -> Array:
    """Computes `reward + discount (min_i next_q_i - temperature next_log_prob)`.

    Args:
        reward: float `[...]`, one reward or the sum of several.
        discount: float `[...]`.
        next_q: float `[2, ...]`, values of the target networks for an action of the policy.
        next_log_prob: float `[...]`, log-probability of that action.
        temperature: float `[]`, value of one nat of entropy in units of the reward.

    Returns:
        float `[...]`, without gradient.

    References:
        Haarnoja et al. (2018b), equation 6.
        Fujimoto, van Hoof and Meger (2018), equation 10.

    Examples:
        >>> import jax.numpy as jnp
        >>> next_q, reward, discount = jnp.array([[2.0], [3.0]]), jnp.array([1.0]), jnp.array([0.5])
        >>> soft_q_target(reward, discount, next_q, jnp.array([-4.0]), jnp.array(0.25)).tolist()  # 1 + 0.5 (2 + 1)
        [2.5]
    """
    next_value = jnp.min(next_q, axis=0) - temperature * next_log_prob
    return jax.lax.stop_gradient(reward + discount * next_value)


def sac_critic_loss(q: Array, target: Array) -> Array:
    """Computes `0.5 sum_i (q_i - target)^2`.

    Args:
        q: float `[2, ...]`.
        target: float `[...]`.

    Returns:
        float `[...]`.

    References:
        Haarnoja et al. (2018b), equation 5.

    Examples:
        >>> import jax.numpy as jnp
        >>> sac_critic_loss(jnp.array([[1.0], [2.0]]), jnp.array([3.0])).tolist()
        [2.5]
    """
    return 0.5 * jnp.sum(jnp.square(q - jax.lax.stop_gradient(target)[None]), axis=0)


def sac_actor_loss(q: Array, log_prob: Array, temperature: Array) -> Array:
    """Computes `temperature log_prob - min_i q_i` for a reparameterised action of the policy.

    Args:
        q: float `[2, ...]`; gradients flow through it to the action.
        log_prob: float `[...]`.
        temperature: float `[]`; no gradient flows to it.

    Returns:
        float `[...]`.

    References:
        Haarnoja et al. (2018b), equation 9.

    Examples:
        >>> import jax.numpy as jnp
        >>> sac_actor_loss(jnp.array([[1.0], [2.0]]), jnp.array([-4.0]), jnp.array(0.25)).tolist()
        [-2.0]
    """
    return jax.lax.stop_gradient(temperature) * log_prob - smallest(q)


def twin_q_target(reward: Array, discount: Array, next_q: Array, next_log_prob: Array, temperature: Array) -> Array:
    """Computes `reward + discount min_i next_q_i`, without entropy; the arguments are those of `soft_q_target`.

    References:
        Fujimoto, van Hoof and Meger (2018), Addressing function approximation error, equation 10.
    """
    del next_log_prob, temperature
    return jax.lax.stop_gradient(reward + discount * jnp.min(next_q, axis=0))


def single_q_target(reward: Array, discount: Array, next_q: Array, next_log_prob: Array, temperature: Array) -> Array:
    """Computes `reward + discount next_q_0`, with the first of two critics; arguments as in `soft_q_target`.

    References:
        Lillicrap et al. (2016), Continuous control with deep reinforcement learning, algorithm 1.
    """
    return twin_q_target(reward, discount, next_q[:1], next_log_prob, temperature)


def single_critic_loss(q: Array, target: Array) -> Array:
    """Computes `0.5 (q_0 - target)^2` for the first of two critics; the arguments are those of `sac_critic_loss`."""
    return sac_critic_loss(q[:1], target)


def deterministic_actor_loss(q: Array, log_prob: Array, temperature: Array) -> Array:
    """Computes `-q_0` for the action of the policy; the arguments are those of `sac_actor_loss`.

    References:
        Silver et al. (2014), Deterministic policy gradient algorithms, equation 9.
    """
    del log_prob, temperature
    return -q[0]


def mean_actor_loss(q: Array, log_prob: Array, temperature: Array) -> Array:
    """Computes `temperature log_prob - mean_i q_i` over all critics; the arguments are those of `sac_actor_loss`.

    References:
        Chen et al. (2021), Randomized ensembled double Q-learning, algorithm 1, line 13.
    """
    return sac_actor_loss(jnp.mean(q, axis=0, keepdims=True), log_prob, temperature)


def sac_temperature_loss(log_temperature: Array, log_prob: Array, target_entropy: Array | float) -> Array:
    """Computes `-temperature (log_prob + target_entropy)`, which raises the temperature of an overconfident policy.

    Args:
        log_temperature: float `[]`.
        log_prob: float `[...]`, log-probability of actions of the policy; no gradient flows to it.
        target_entropy: target of the entropy, in nats.

    Returns:
        float `[...]`.

    References:
        Haarnoja et al. (2018b), equation 18.
    """
    return -jnp.exp(log_temperature) * jax.lax.stop_gradient(log_prob + target_entropy)


def _log_policy(values: Values, action_mask: Array | None, temperature: Array | float) -> Array:
    """Returns `log softmax(values / temperature)` of the target network, `[..., A]`."""
    return jax.nn.log_softmax(mask_q(expected_values(values) / temperature, action_mask))

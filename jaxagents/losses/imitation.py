"""Element-wise losses for imitating the actions of another agent."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def negative_log_likelihood(distribution: Any, action: Array) -> Array:
    """Computes `-log pi(action)`.

    Args:
        distribution: distribution of the policy, `[...]`.
        action: action of another agent, discrete or unsquashed continuous.

    Returns:
        float `[...]`, in nats.

    References:
        Pomerleau (1991), Efficient training of artificial neural networks for autonomous navigation.

    Examples:
        >>> import jax.numpy as jnp
        >>> from jaxagents.ops.distributions import Categorical
        >>> policy = Categorical(logits=jnp.log(jnp.array([[0.25, 0.75]])))
        >>> print(negative_log_likelihood(policy, jnp.array([0])))
        [1.3862944]
    """
    return -distribution.log_prob(action)


def search_cross_entropy(distribution: Any, weights: Array, candidates: Array | None = None) -> Array:
    """Computes `-sum_i w_i log pi(a_i)`, over all discrete actions or those that a search sampled.

    Args:
        distribution: distribution of the policy, `[...]`: categorical, or over unsquashed continuous actions.
        weights: weights of the improved policy, float `[..., A]`.
        candidates: unsquashed continuous actions `[..., A, D]` to which the weights belong; None: all discrete actions.

    Returns:
        float `[...]`, in nats.

    References:
        Silver et al. (2018), AlphaZero, equation 1; Hubert et al. (2021), Learning and planning in complex action
        spaces, section 4.
    """
    if candidates is None:
        return -jnp.sum(weights * distribution.log_probs(), axis=-1)
    each = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, weights.ndim - 1), distribution)
    return -jnp.sum(weights * each.log_prob(candidates), axis=-1)


def squared_distance(distribution: Any, action: Array) -> Array:
    """Computes `mean_d (tanh(mode_d) - tanh(action_d))^2`, in units of half the range of an action.

    Args:
        distribution: distribution over unsquashed continuous actions, `[...]`.
        action: unsquashed action, `[..., D]`.

    Returns:
        float `[...]`.
    """
    return jnp.mean(jnp.square(jnp.tanh(distribution.mode()) - jnp.tanh(action)), axis=-1)


def discriminator_loss(demonstrated: Array, played: Array) -> tuple[Array, Array]:
    """Computes `-log sigmoid(demonstrated)` and `-log(1 - sigmoid(played))`.

    Args:
        demonstrated: float `[...]`, logits of the demonstrator's steps.
        played: float `[...]`, logits of the policy's steps.

    Returns:
        Both cross-entropies, per element.

    References:
        Ho and Ermon (2016), Generative adversarial imitation learning, algorithm 1, with the labels swapped.
    """
    return jax.nn.softplus(-demonstrated), jax.nn.softplus(played)


def gail_reward(logit: Array) -> Array:
    """Computes `-log(1 - sigmoid(logit))`, which is non-negative.

    References:
        Ho and Ermon (2016), Generative adversarial imitation learning, algorithm 1, with the labels swapped.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(gail_reward(jnp.array([0.0, 5.0])))
        [0.6931472 5.0067153]
    """
    return jax.nn.softplus(logit)


def airl_reward(logit: Array) -> Array:
    """Computes `log sigmoid(logit) - log(1 - sigmoid(logit))`, which equals the logit.

    References:
        Fu, Luo and Levine (2018), Learning robust rewards with adversarial inverse reinforcement learning, section 3.

    Examples:
        >>> import jax.numpy as jnp
        >>> airl_reward(jnp.array([0.5, -2.0])).tolist()
        [0.5, -2.0]
    """
    return logit

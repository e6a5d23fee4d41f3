"""Losses for batches with both own episodes and demonstrations: `(view, *, ...) -> [n, t, S]`.

`view.demonstrated` marks demonstrations; the expert's probabilities are unknown and not read. `p = exp(log_prob)`, A is
the advantage, and `sg` stops gradients. Own tokens have the clipped surrogate loss, and without a mask all tokens are
own; losses are zero if `view.mask` is False.
"""

import jax
import jax.numpy as jnp

from jaxagents.losses.token_policy_gradient import ppo_clip
from jaxagents.types import Array, TokenView


def luffy(view: TokenView, *, clip_epsilon: Array | float = 0.2, gamma: Array | float = 0.1) -> Array:
    """Computes `-A p / (p + gamma)` for demonstrated tokens, whose gradient in `log p` is `-A gamma p / (p + gamma)^2`.

    Unlikely tokens of an expert count more than with the ratio p itself; those with `p = gamma` count most.

    Args:
        view: view of the tokens.
        clip_epsilon: half width of the trust interval for own tokens.
        gamma: positive number that is added to p.

    Returns:
        `[n, t, S]`.

    References:
        Yan et al. (2025), "Learning to Reason under Off-Policy Guidance" (LUFFY), section 3.2 (policy shaping, 0.1).
    """
    probability = jnp.exp(_log_prob(view))
    return _by_source(view, clip_epsilon, -_advantage(view) * probability / (probability + gamma))


def chord(
    view: TokenView,
    *,
    clip_epsilon: Array | float = 0.2,
    certainty: Array | float = 1.0,
    doubt: Array | float = 1.0,
) -> Array:
    """Computes `-A sg(p^certainty (1 - p)^doubt) log p` for demonstrated tokens.

    With 1 and 1, nearly certain and very improbable tokens are hardly trained (CHORD-phi); 0 and 0 give plain
    likelihood; 1 and 0 give importance sampling from an expert of probability 1 (DFT).

    Args:
        view: view of the tokens.
        clip_epsilon: half width of the trust interval for own tokens.
        certainty: exponent of p, non-negative.
        doubt: exponent of 1 - p, non-negative.

    Returns:
        `[n, t, S]`.

    References:
        Zhang et al. (2025), "On-Policy RL Meets Off-Policy Experts: Harmonizing Supervised Fine-Tuning and
        Reinforcement Learning via Dynamic Weighting" (CHORD), section 3.3; Wu et al. (2025), "On the Generalization of
        SFT: A Reinforcement Learning Perspective with Reward Rectification" (DFT).
    """
    log_prob = _log_prob(view)
    probability = jax.lax.stop_gradient(jnp.exp(log_prob))
    weight = jnp.power(probability, certainty) * jnp.power(1.0 - probability, doubt)
    return _by_source(view, clip_epsilon, -_advantage(view) * weight * log_prob)


def adversarial_imitation(
    view: TokenView, *, clip_epsilon: Array | float = 0.2, coefficient: Array | float = 0.2
) -> Array:
    """Computes `-coefficient log sigmoid(-(log p - log p_reference))` for demonstrated tokens, which are to be avoided.

    The gradient in `log p` is `coefficient sigmoid(log p - log p_reference)`: it vanishes once a token is less likely
    than under the reference, so that training does not diverge as it does with plain unlikelihood.

    Args:
        view: view of the tokens; reads `reference_log_prob`.
        clip_epsilon: half width of the trust interval for own tokens.
        coefficient: gamma, weight of the loss.

    Returns:
        `[n, t, S]`.

    Raises:
        ValueError: there is no reference.

    References:
        Sun et al. (2025), "SEAgent: Self-Evolving Computer Use Agent with Autonomous Learning from Experience" (0.2).
    """
    if view.demonstrated is None:
        return ppo_clip(view, clip_epsilon=clip_epsilon)
    if view.reference_log_prob is None:
        raise ValueError("`learner.reference` must be true for what is pushed below a reference, got false.")
    excess = jnp.where(view.mask, view.log_prob - jax.lax.stop_gradient(view.reference_log_prob), 0.0)
    return _by_source(view, clip_epsilon, jnp.where(view.mask, coefficient * jax.nn.softplus(excess), 0.0))


def _by_source(view: TokenView, clip_epsilon: Array | float, of_demonstrations: Array) -> Array:
    own = ppo_clip(view, clip_epsilon=clip_epsilon)
    return own if view.demonstrated is None else jnp.where(view.demonstrated, of_demonstrations, own)


def _log_prob(view: TokenView) -> Array:
    return jnp.where(view.mask, view.log_prob, 0.0)


def _advantage(view: TokenView) -> Array:
    return jax.lax.stop_gradient(jnp.where(view.mask, view.advantage, 0.0))

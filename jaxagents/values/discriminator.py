"""Discriminators of single steps: was it the policy or the demonstrator?"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagents.networks.heads import ValueHead
from jaxagents.ops.distributions import is_bounded, require_vector
from jaxagents.types import Array, Box, Discrete, Params, Transition


class Discriminator(NamedTuple):
    """A function that gives a logit for a step.

    Attributes:
        init: `(key) -> params`.
        apply: `(params, transition [...], log_prob [...]) -> [...]`, the logit of "a demonstrator did this"; actions
            are unsquashed, and `log_prob` is their log-probability under the policy.
        absorbing: `(params) -> []`, the logit of a step in the absorbing state after the end of an episode.
        asks_policy: whether it reads `log_prob`.
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Transition, Array | None], Array]
    absorbing: Callable[[Params], Array]
    asks_policy: bool = False


def make_discriminator(observation_space: Box, action_space: Discrete | Box, *, encoder: nn.Module) -> Discriminator:
    """Makes a discriminator of observations and actions, joined in one vector.

    Args:
        observation_space: space of a vector.
        action_space: discrete space, or that of a bounded vector.
        encoder: `[..., D + A + 1]` -> features `[..., F]`; the last number is 1 in the absorbing state, in which all
            others are 0.

    Returns:
        The discriminator, with parameters `{"encoder", "head"}`.

    Raises:
        ValueError: the observations are not a vector, or the actions are not bounded.

    References:
        Kostrikov et al. (2019), Discriminator-actor-critic, section 4.2 (the number that marks the absorbing state).
    """
    require_vector("observation_space", observation_space, "flatten it")
    discrete = isinstance(action_space, Discrete)
    if not discrete and not (is_bounded(action_space) and len(action_space.shape) == 1):
        raise ValueError(f"`action_space` must be Discrete or a bounded Box of rank 1, got {action_space}.")
    size = action_space.num_values if isinstance(action_space, Discrete) else action_space.shape[0]
    head, num_inputs = ValueHead(), observation_space.shape[0] + size + 1

    def judge(params: Params, inputs: Array) -> Array:
        return head.apply(params["head"], encoder.apply(params["encoder"], inputs))

    def init(key: Array) -> Params:
        encoder_key, head_key = jax.random.split(key)
        inputs = jnp.zeros((1, num_inputs))
        features, params = encoder.init_with_output(encoder_key, inputs)
        return {"encoder": params, "head": head.init(head_key, features)}

    def apply(params: Params, transition: Transition, log_prob: Array | None) -> Array:
        del log_prob
        action = jax.nn.one_hot(transition.action, size) if discrete else jnp.tanh(transition.action)
        alive = jnp.zeros((*action.shape[:-1], 1))
        return judge(params, jnp.concatenate([transition.observation.astype(jnp.float32), action, alive], axis=-1))

    def absorbing(params: Params) -> Array:
        return judge(params, jnp.zeros(num_inputs).at[-1].set(1.0))

    return Discriminator(init=init, apply=apply, absorbing=absorbing)


def make_reward_discriminator(
    observation_space: Box, action_space: Discrete | Box, *, encoder: nn.Module, discount: float = 0.99
) -> Discriminator:
    """Makes the discriminator of AIRL, `g(s, a) + discount h(s') - h(s) - log pi(a | s)`.

    At the optimum, g is a reward that the demonstrator maximises, and h is its value up to a constant.

    Args:
        observation_space: space of a vector.
        action_space: discrete space, or that of a bounded vector.
        encoder: encoder of g `[..., D + A + 1]` and, with separate parameters, of h `[..., D]` -> features `[..., F]`.
        discount: discount per step; h of the absorbing state, which follows a terminal step, is 0: g can compensate for
            it.

    Returns:
        The discriminator, with parameters `{"reward", "shaping"}`.

    Raises:
        ValueError: see `make_discriminator`.

    References:
        Fu, Luo and Levine (2018), Learning robust rewards with adversarial inverse reinforcement learning, equation 4.

    Deviation: the reward also sees the action; the paper's reward transfers to other dynamics only if it does not.
    """
    reward, head = make_discriminator(observation_space, action_space, encoder=encoder), ValueHead()

    def init(key: Array) -> Params:
        reward_key, encoder_key, head_key = jax.random.split(key, 3)
        features, params = encoder.init_with_output(encoder_key, jnp.zeros((1, observation_space.shape[0])))
        return {
            "reward": reward.init(reward_key),
            "shaping": {"encoder": params, "head": head.init(head_key, features)},
        }

    def potential(params: Params, observation: Array) -> Array:
        return head.apply(params["head"], encoder.apply(params["encoder"], observation.astype(jnp.float32)))

    def apply(params: Params, transition: Transition, log_prob: Array | None) -> Array:
        shaping = params["shaping"]
        goes_on = discount * (1.0 - transition.terminated.astype(jnp.float32))
        following = goes_on * potential(shaping, transition.next_observation)
        worth = reward.apply(params["reward"], transition, None) + following
        return worth - potential(shaping, transition.observation) - jax.lax.stop_gradient(log_prob)

    def absorbing(params: Params) -> Array:
        return reward.absorbing(params["reward"])

    return Discriminator(init=init, apply=apply, absorbing=absorbing, asks_policy=True)

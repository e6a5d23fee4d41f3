"""Squashed Gaussian policies with a state-dependent scale, as off-policy learners need."""

import flax.linen as nn

from jaxagents.networks.heads import TanhNormalHead
from jaxagents.ops.distributions import require_vector
from jaxagents.policies.actor_critic import make_policy
from jaxagents.types import Box, Policy, PyTree


def make_tanh_normal_policy(
    observation_space: PyTree, action_space: Box, *, encoder: nn.Module, initial_scale: float = 1.0
) -> Policy:
    """Makes a feed-forward policy `low..high` of `tanh(N(loc(s), scale(s)^2))`.

    Args:
        observation_space: observation space of one agent.
        action_space: space of a bounded vector.
        encoder: observation `[..., *shape]` -> features `[..., F]`.
        initial_scale: initial scale, before squashing.

    Returns:
        The policy.

    Raises:
        ValueError: the actions are not a bounded vector.

    References:
        Haarnoja et al. (2018a), appendix C.
    """
    hint = "try algorithm=ppo or algorithm=dqn, which take discrete actions, or world=pendulum"
    require_vector("action_space", action_space, hint)
    head = TanhNormalHead(action_dim=action_space.shape[0], state_dependent_scale=True, initial_scale=initial_scale)
    return make_policy(observation_space, action_space, encoder=encoder, head=head)

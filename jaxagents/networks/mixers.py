"""Mixers: from the values of the agents' actions to the value of the team's action, non-decreasing in each of them.

Every mixer is called as `mixer(q [..., N], state [..., S]) -> [...]`. Because it is non-decreasing in every value,
the actions that are best for the agents are best for the team.
"""

import jax.numpy as jnp
from flax import linen as nn

from jaxagents.types import Array


class SumMixer(nn.Module):
    """The sum `q_team = sum_i q_i`, for any state.

    References:
        Sunehag et al. (2018), "Value-Decomposition Networks for Cooperative Multi-Agent Learning", equation 2.
    """

    @nn.compact
    def __call__(self, q: Array, state: Array) -> Array:
        """Computes `[...]` of values `[..., N]`; see the module's docstring."""
        del state
        return jnp.sum(q, axis=-1)


class MonotonicMixer(nn.Module):
    """A two-layer network whose weights are absolute values of functions of the state.

    `q_team = |w_2(s)| . elu(q |W_1(s)| + b_1(s)) + b_2(s)`, where `W_1`, `b_1` and `w_2` are linear in the state and
    `b_2` has a hidden layer.

    Attributes:
        embedding_size: number of units of the hidden layer.

    References:
        Rashid et al. (2018), "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement
        Learning", section 4.1 and figure 2.
    """

    embedding_size: int = 32

    @nn.compact
    def __call__(self, q: Array, state: Array) -> Array:
        """Computes `[...]` of values `[..., N]` and states `[..., S]`; see the module's docstring."""
        num_agents, size = q.shape[-1], self.embedding_size
        weights = jnp.abs(nn.Dense(num_agents * size, name="weights_1")(state))
        weights = weights.reshape(*state.shape[:-1], num_agents, size)
        # A product and a sum: batched products of such small matrices are slow on CPUs.
        hidden = jnp.sum(q[..., None] * weights, axis=-2) + nn.Dense(size, name="bias_1")(state)
        outer = jnp.abs(nn.Dense(size, name="weights_2")(state))
        bias = nn.Dense(1, name="bias_2")(nn.relu(nn.Dense(size, name="bias_2_hidden")(state)))
        return jnp.sum(nn.elu(hidden) * outer, axis=-1) + bias[..., 0]

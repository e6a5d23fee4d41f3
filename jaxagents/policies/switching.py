"""A team that acts by one of two policies, chosen by a switch."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, Carry, Params, Policy, PolicyInput


@struct.dataclass
class Switched:
    """The mixture of two policies of a team, one of which is drawn for all agents together.

    Action `a` belongs to `independent`, action `A + a` to `team`: the action reveals which policy chose it.
    Probabilities are those of each agent alone, `p(g) p_g(a_i | o_i)`; given the switch `g`, agents act independently.

    Attributes:
        switch: distribution of `g` in {0, 1}, `[...]`.
        independent: distribution of `A` actions if `g = 0`, `[..., N]`.
        team: distribution of `A` actions if `g = 1`, `[..., N]`.
    """

    switch: Any
    independent: Any
    team: Any

    def mask(self, action_mask: Array | None) -> "Switched":
        """Returns the mixture restricted to `action_mask` (bool `[..., N, 2 A]`; None: all actions).

        A half that is forbidden to all agents is not drawn; both halves allow the same actions of the world.
        """
        if action_mask is None:
            return self
        world_mask, switch_mask = split_mask(action_mask)
        return Switched(
            switch=self.switch.mask(switch_mask),
            independent=self.independent.mask(world_mask),
            team=self.team.mask(world_mask),
        )

    def noise(self, key: Array) -> dict[str, Array]:
        """Draws the noise of the switch and that of the agents, who act by one policy only."""
        switch_key, agents_key = jax.random.split(key)
        return {"switch": self.switch.noise(switch_key), "agents": self.independent.noise(agents_key)}

    def transform(self, noise: dict[str, Array]) -> Array:
        """Returns the actions int32 `[..., N]` that correspond to `noise`."""
        return self._join(
            self.switch.transform(noise["switch"]),
            self.independent.transform(noise["agents"]),
            self.team.transform(noise["agents"]),
        )

    def sample(self, key: Array) -> Array:
        """Draws actions, int32 `[..., N]`."""
        return self.transform(self.noise(key))

    def log_probs(self) -> Array:
        """Returns log-probabilities of all actions of each agent, `[..., N, 2 A]`."""
        switch = self.switch.log_probs()[..., None, None, :]
        halves = [switch[..., 0] + self.independent.log_probs(), switch[..., 1] + self.team.log_probs()]
        return jnp.concatenate(halves, axis=-1)

    def log_prob(self, action: Array) -> Array:
        """Returns the log-probability of each agent's `action` (int `[..., N]`), float32 `[..., N]`."""
        log_probs = self.log_probs()
        chosen = jax.nn.one_hot(action, log_probs.shape[-1], dtype=bool)
        return jnp.sum(jnp.where(chosen, log_probs, 0.0), axis=-1)

    def entropy(self) -> Array:
        """Returns the entropy of each agent's action in nats, `[..., N]`."""
        log_probs = self.log_probs()
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def mode(self) -> Array:
        """Returns the modes of the policy chosen by the switch's mode, int32 `[..., N]`."""
        return self._join(self.switch.mode(), self.independent.mode(), self.team.mode())

    def _join(self, call: Array, alone: Array, together: Array) -> Array:
        num_actions = self.independent.log_probs().shape[-1]
        return jnp.where(call[..., None] > 0, num_actions + together, alone).astype(jnp.int32)


def split_mask(action_mask: Array) -> tuple[Array, Array]:
    """Splits a mask of doubled actions, bool `[..., N, 2 A]`.

    Returns:
        The mask of the world's actions, bool `[..., N, A]`, and that of the switch, bool `[..., 2]`.
    """
    alone, together = jnp.split(action_mask, 2, axis=-1)
    return alone | together, jnp.stack([jnp.any(alone, axis=(-2, -1)), jnp.any(together, axis=(-2, -1))], axis=-1)


def make_switched(independent: Policy, team: Policy, switch: Policy) -> Policy:
    """Makes the policy of a team that acts by `independent` or by `team`, as decided by `switch`.

    Args:
        independent: policy of the agents, with `A` actions.
        team: policy of the agents, with the same `A` actions.
        switch: policy with two actions, one decision for all agents; its observation has the agent axis, like theirs.

    Returns:
        The policy with `2 A` actions and parameters `{"independent", "team", "switch"}`, for `environments.calls`.
    """
    parts = {"independent": independent, "team": team, "switch": switch}

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(parts))
        return {name: part.init(part_key) for (name, part), part_key in zip(parts.items(), keys, strict=True)}

    def initial_carry(batch_shape: tuple[int, ...]) -> Carry:
        return {
            name: part.initial_carry(batch_shape[:-1] if name == "switch" else batch_shape)
            for name, part in parts.items()
        }

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Switched]:
        unmasked = inputs.replace(action_mask=None)
        applied = {name: part.apply(params[name], carry[name], unmasked) for name, part in parts.items()}
        distribution = Switched(**{name: distribution for name, (_, distribution) in applied.items()})
        return {name: carry for name, (carry, _) in applied.items()}, distribution.mask(inputs.action_mask)

    return Policy(init=init, initial_carry=initial_carry, apply=apply)

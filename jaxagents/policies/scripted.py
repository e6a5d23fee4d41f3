"""Scripted policies that solve array worlds without learning, for demonstrations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxagents.ops.distributions import Categorical, TanhNormal, unsquash
from jaxagents.types import Array, Carry, Params, Policy, PolicyInput

_SHARPNESS = 50.0  # Scale of the logits: other actions are very improbable.
_SCALE = 0.02  # Scale of the noise before squashing.
_MAX_TORQUE = 2.0  # Bound of the actions of Pendulum-v1, in N m.


class Behavior(NamedTuple):
    """A policy and its parameters; the results of `training.load.load_policy` have the same fields.

    Attributes:
        policy: policy that acts.
        params: parameters of the policy.
    """

    policy: Policy
    params: Params


def make_cartpole_expert() -> Behavior:
    """Makes a player that pushes the cart of CartPole-v1 in the direction of a linear controller.

    Returns:
        The behaviour; it balances the pole for the 500 steps of an episode.
    """
    gains = jnp.array([0.5, 1.0, 15.0, 3.0])

    def choose(observation: Array) -> Categorical:
        push = _SHARPNESS * (observation @ gains)
        return Categorical(logits=jnp.stack([-push, push], axis=-1))

    return _behavior(choose)


def make_pendulum_expert() -> Behavior:
    """Makes a player that swings up the pendulum of Pendulum-v1 by its energy, and holds it with a linear controller.

    Returns:
        The behaviour; its returns are about those of trained agents, -150 on average.

    References:
        Astrom and Furuta (2000), Swinging up a pendulum by energy control.
    """

    def choose(observation: Array) -> TanhNormal:
        cosine, sine, velocity = observation[..., 0], observation[..., 1], observation[..., 2]
        # For a rod of 1 kg and 1 m with gravity 10 m / s^2; the energy is 5 J at rest at the top.
        energy = jnp.square(velocity) / 6.0 + 5.0 * cosine
        swing = _MAX_TORQUE * jnp.sign(velocity) * jnp.sign(5.0 - energy)
        hold = -(10.0 * sine + 2.0 * velocity)
        torque = jnp.clip(jnp.where((cosine > 0.8) & (jnp.abs(velocity) < 4.0), hold, swing), -_MAX_TORQUE, _MAX_TORQUE)
        loc = unsquash(torque, low=-_MAX_TORQUE, high=_MAX_TORQUE)[..., None]
        return TanhNormal(loc=loc, scale=jnp.full_like(loc, _SCALE), low=-_MAX_TORQUE, high=_MAX_TORQUE)

    return _behavior(choose)


def _behavior(choose: Callable[[Array], Any]) -> Behavior:
    """Makes a behaviour whose distribution depends on the observation alone."""

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        del params
        return carry, choose(jnp.asarray(inputs.observation, jnp.float32)).mask(inputs.action_mask)

    policy = Policy(init=lambda key: (), initial_carry=lambda batch_shape: (), apply=apply)
    return Behavior(policy=policy, params=())

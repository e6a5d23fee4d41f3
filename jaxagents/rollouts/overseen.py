"""Rollouts in which an overseer takes over when the policy would act badly."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import as_policy
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.types import (
    ActorCritic,
    Array,
    Carry,
    Collector,
    Discrete,
    Environment,
    Mean,
    Metrics,
    Params,
    Policy,
    PolicyInput,
    Rollout,
    State,
)

_SURE = 50.0  # Logit of the executed action, so that no other one is drawn.


@struct.dataclass
class Oversight:
    """Memory of an overseer, and what it did in the previous step.

    Attributes:
        novice: carry of the policy.
        in_control: bool `[B]`, whether the overseer also acts in the next step of the episode.
        streak: int32 `[B]`, number of consecutive good proposals of the policy since the overseer took over.
        novice_action: int32 `[B]`, action that the policy proposed.
        intervened: bool `[B]`, whether the overseer acted.
        started: bool `[B]`, whether the overseer acted but had not acted in the previous step.
    """

    novice: Carry
    in_control: Array
    streak: Array
    novice_action: Array
    intervened: Array
    started: Array


def make_overseen_collector(
    environment: Environment,
    policy: Policy | ActorCritic,
    *,
    cost_to_go: Callable[[Array], Array],
    tolerance: float = 0.5,
    release: int = 3,
    keep_rewards: bool = False,
    num_envs: int,
    num_steps: int,
    reset_pool: int | None = None,
    level: int | None = None,
) -> Collector:
    """Makes a collector in which an overseer acts when the policy would act badly, and for a while afterwards.

    The policy proposes the mode of its distribution. The overseer takes over if the proposal costs more than
    `tolerance` above the least cost, and returns control once proposals have been good `release` times in a row. It
    takes the action of least cost, or the proposal if that is as cheap. Evaluations are not overseen.

    Args:
        environment: single instance with discrete actions.
        policy: policy to be overseen, the novice.
        cost_to_go: `(observation [T, B, ...]) -> float32 [T, B, A]`, least cost of each action and everything after it.
        tolerance: tolerance, in units of the cost; below 0, the overseer acts in every step.
        release: number of good proposals in a row after which control is returned, at least 1.
        keep_rewards: whether the learner sees the rewards of the world.
        num_envs: see `make_rollout_collector`.
        num_steps: see `make_rollout_collector`.
        reset_pool: see `make_rollout_collector`.
        level: see `make_rollout_collector`.

    Returns:
        The collector. Actions in its `Rollout`s are the executed ones; `extras` are `novice_action` (int32 `[T, B]`),
        `intervened` and `td_mask` (bool `[T, B]`), which is False in the first step of every intervention, so that the
        policy does not attribute the results of the overseer's action to its own. Metrics are those of rollouts and
        `overseer_rate`, the share of steps in which the overseer acted.

    Raises:
        ValueError: actions are not discrete, costs are not one number for each of them, or `release` is below 1.

    References:
        Peng, Mo, Duan, Li and Zhou (2023), "Learning from Active Human Involvement through Proxy Value Propagation",
        section 3.1.

    Deviation: the overseer is a script that knows the costs, not a person.
    """
    space = environment.action_space
    if not isinstance(space, Discrete) or environment.num_agents:
        raise ValueError(
            f"`environment` must have one agent and Discrete actions for an overseer, got {space} in "
            f"{environment.name!r}."
        )
    if release < 1:
        raise ValueError(f"`release` must be at least 1, got {release}; try 3.")
    row = jax.tree.map(lambda box: jax.ShapeDtypeStruct((1, 1, *box.shape), box.dtype), environment.observation_space)
    extras = jax.eval_shape(cost_to_go, row)
    if extras.shape != (1, 1, space.num_values):
        raise ValueError(
            f"`cost_to_go` must be one number per action, {space.num_values}, got the shape {extras.shape[2:]}."
        )
    novice = as_policy(policy) if isinstance(policy, ActorCritic) else policy
    overseen = _overseen(novice, space.num_values, cost_to_go, tolerance, release)
    inner = make_rollout_collector(
        environment, overseen, num_envs=num_envs, num_steps=num_steps, reset_pool=reset_pool, level=level
    )

    def collect(state: State, params: Params, key: Array) -> tuple[State, Rollout, Metrics]:
        state, rollout, metrics = inner.collect(state, params, key)
        done = jax.tree.map(lambda leaf: leaf[1:], rollout.carry)
        transition, extras = rollout.transition, {"novice_action": done.novice_action, "intervened": done.intervened}
        transition = transition.replace(extras={**transition.extras, **extras, "td_mask": ~done.started})
        if not keep_rewards:
            transition = transition.replace(reward=jnp.zeros_like(transition.reward))
        rate = Mean(total=jnp.sum(done.intervened, dtype=jnp.float32), count=jnp.float32(done.intervened.size))
        return state, Rollout(transition=transition, carry=rollout.carry.novice), {**metrics, "overseer_rate": rate}

    return inner._replace(collect=collect)


def _overseen(
    novice: Policy, num_actions: int, cost_to_go: Callable[[Array], Array], tolerance: float, release: int
) -> Policy:
    """Makes the policy of the executed actions, for the single steps of rollouts."""

    def initial_carry(batch_shape: tuple[int, ...]) -> Oversight:
        no, zero = jnp.zeros(batch_shape, bool), jnp.zeros(batch_shape, jnp.int32)
        return Oversight(
            novice=novice.initial_carry(batch_shape),
            in_control=no,
            streak=zero,
            novice_action=zero,
            intervened=no,
            started=no,
        )

    def apply(params: Params, carry: Oversight, inputs: PolicyInput) -> tuple[Oversight, Any]:
        novice_carry, distribution = novice.apply(params, carry.novice, inputs)
        proposal = distribution.mode()[0].astype(jnp.int32)
        cost, allowed = cost_to_go(inputs.observation)[0], inputs.action_mask
        cost = cost if allowed is None else jnp.where(allowed[0], cost, jnp.inf)
        excess = jnp.take_along_axis(cost, proposal[:, None], axis=-1)[:, 0] - jnp.min(cost, axis=-1)
        bad = excess > tolerance
        going_on = carry.in_control & ~inputs.first[0]
        intervened = going_on | bad
        streak = jnp.where(intervened & ~bad, jnp.where(going_on, carry.streak, 0) + 1, 0)
        own = jnp.argmin(cost, axis=-1).astype(jnp.int32)
        action = jnp.where(intervened & (excess > 0.0), own, proposal)
        following = Oversight(
            novice=novice_carry,
            in_control=intervened & (streak < release),
            streak=streak,
            novice_action=proposal,
            intervened=intervened,
            started=intervened & ~going_on,
        )
        return following, Categorical(logits=_SURE * jax.nn.one_hot(action, num_actions)[None])

    return Policy(init=novice.init, initial_carry=initial_carry, apply=apply, draw_noise=novice.draw_noise)

"""On-policy experience: a policy acts in a batch of environments inside one scan."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.squashing import squash_actions
from jaxagents.environments.teams import require_agents
from jaxagents.environments.vectorized import vectorize
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.ops.checks import check_counts
from jaxagents.ops.packing import pack_rows, unpack_rows
from jaxagents.ops.rows import clear_first
from jaxagents.policies.actor_critic import act
from jaxagents.types import (
    Array,
    Carry,
    Collector,
    Count,
    Environment,
    Mean,
    Metrics,
    Params,
    Policy,
    PolicyInput,
    PyTree,
    Rollout,
    State,
    TimeStep,
    Transition,
)


@struct.dataclass
class RolloutState:
    """State of B environments; every leaf has the environment axis first.

    Attributes:
        environment: states of the environments.
        timestep: last time steps, whose observations are the ones to act on.
        carry: recurrent carry of the policy.
        first: bool `[B]`, whether the observation is the first of an episode.
        previous_action: action of the previous step, even of another episode.
        index: int32 `[B]`, global index of each environment, from which its random stream is derived.
    """

    environment: State
    timestep: TimeStep
    carry: Carry
    first: Array
    previous_action: Array
    index: Array


def make_rollout_collector(
    environment: Environment,
    policy: Policy,
    *,
    num_envs: int,
    num_steps: int,
    reset_pool: int | None = None,
    level: int | None = None,
) -> Collector:
    """Makes a collector whose batches are `Rollout`s of `num_steps` steps in `num_envs` environments.

    Args:
        environment: single instance; batching, automatic resets and episode statistics are added here.
        policy: policy that acts; its carry continues between rollouts.
        num_envs: B, number of environments over all devices.
        num_steps: T, number of steps.
        reset_pool: see `vectorize`; at most the number of steps, so that short rollouts do not draw unused resets.
        level: difficulty of the tasks.

    Returns:
        The collector. Metrics, over the episodes that ended: `episode_return`, `episode_length` and, if the world
        reports them, `success_rate` and the entries of `info["metrics"]`; counts: `episodes` that ended and
        `env_steps`.

    Raises:
        ValueError: a size is not positive, the game has several players and is not `alternating` or `against`, or
            observations, rewards or masks do not fit the number of agents.
    """
    check_counts(num_envs=num_envs, num_steps=num_steps)
    if environment.num_players > 1:
        raise ValueError(
            f"`environment` must have one stream of rewards, got {environment.num_players} players in "
            f"{environment.name!r}; wrap it in `alternating` or `against`."
        )
    require_agents(environment)
    reset_pool = None if reset_pool is None else min(reset_pool, num_envs * num_steps)
    batch = vectorize(episode_statistics(squash_actions(environment)), reset_pool=reset_pool, level=level)
    agents = (environment.num_agents,) if environment.num_agents else ()
    space = environment.action_space

    def init(key: Array, params: Params) -> RolloutState:
        del params
        start = batch.reset(key, jnp.arange(num_envs, dtype=jnp.int32))
        action = jnp.zeros((num_envs, *agents, *space.shape), space.dtype)
        return begin_rollout(*start, policy.initial_carry((num_envs, *agents)), action)

    def collect(state: RolloutState, params: Params, key: Array) -> tuple[RolloutState, Rollout, Metrics]:
        draw_key, noise_key = jax.random.split(key)
        draws, shared = batch.draw(draw_key, state.index, num_steps)
        noise = draw_action_noise(policy, params, state, noise_key, num_steps)
        policy_noise = draw_policy_noise(policy, state, noise_key, num_steps)

        def step(state: PyTree, inputs: tuple[PyTree, PyTree, PyTree]):
            state = unpack_rows(state)
            draws_t, noise_t, policy_noise_t = inputs
            before = state.timestep
            policy_input = _policy_input(state, policy_noise_t)
            carry, distribution = act(policy, params, state.carry, policy_input)
            action = distribution.transform(noise_t)
            environments, after = batch.step(state.environment, action, draws_t, shared)
            following = state.replace(
                environment=environments,
                timestep=after,
                carry=carry,
                first=after.terminated | after.truncated,
                previous_action=action,
            )
            masks = {"agent_mask": before.info["agent_mask"]} if "agent_mask" in before.info else {}
            acted = (policy_input, action, distribution, masks)
            # Everything of the time step that is read below, except what the next input holds.
            result = after.replace(observation=None, action_mask=None)
            return pack_rows(following, num_axes=1), pack_rows((acted, state.carry, result), num_axes=1)

        final, steps = jax.lax.scan(step, pack_rows(state, num_axes=1), (draws, noise, policy_noise))
        final = unpack_rows(final)
        (inputs, action, distribution, masks), carry, after = unpack_rows(steps)
        transition = make_transition(inputs, action, distribution.log_prob(action), after, **masks)
        carry = jax.tree.map(lambda steps, last: jnp.concatenate([steps, last[None]]), carry, final.carry)
        return final, Rollout(transition=transition, carry=carry), episode_metrics(after) | _count_experience(after)

    return Collector(init=init, collect=collect, steps_per_collect=num_envs * num_steps)


def begin_rollout(environment: PyTree, timestep: TimeStep, carry: Carry, previous_action: Array) -> RolloutState:
    """Returns the state of a collector before its first rollout, in which all environments begin an episode."""
    num_envs = previous_action.shape[0]
    return RolloutState(
        environment=environment,
        timestep=timestep,
        carry=carry,
        first=jnp.ones(num_envs, bool),
        previous_action=previous_action,
        index=jnp.arange(num_envs, dtype=jnp.int32),
    )


def make_transition(inputs: PolicyInput, action: Array, log_prob: Array, after: TimeStep, **extras: Any) -> Transition:
    """Makes the record of a step: the policy's input, its action, and the result."""
    names = ("perspective", "next_action_mask", "next_agent_mask")
    return Transition(
        observation=inputs.observation,
        action=action,
        behavior_log_prob=log_prob,
        reward=after.reward,
        terminated=after.terminated,
        truncated=after.truncated,
        next_observation=after.info["next_observation"],
        first=inputs.first,
        action_mask=inputs.action_mask,
        previous_action=inputs.previous_action,
        previous_reward=inputs.previous_reward,
        noise=inputs.noise,
        extras={name: after.info[name] for name in names if name in after.info} | extras,
    )


def make_policy_input(
    timestep: TimeStep, first: Array, previous_action: Array, noise: PyTree | None = None
) -> PolicyInput:
    """Makes the policy input for the next step of the environments, leaves `[B, ...]`."""
    action, reward = clear_first(first, (previous_action, timestep.reward))
    return PolicyInput(
        observation=timestep.observation,
        first=first,
        action_mask=timestep.action_mask,
        previous_action=action,
        previous_reward=reward,
        noise=noise,
    )


def _policy_input(state: RolloutState, noise: PyTree) -> PolicyInput:
    return make_policy_input(state.timestep, state.first, state.previous_action, noise)


def draw_policy_noise(policy: Policy, state: RolloutState, key: Array, num_steps: int) -> PyTree:
    """Draws the policy's noise inputs, `[T, B, ...]`, with one stream per environment; None for most policies."""
    if policy.draw_noise is None:
        return None
    # Separate from the streams of actions, whose keys are folded from `key` itself.
    policy_key = jax.random.fold_in(key, jnp.uint32(2**32 - 1))
    keys = jax.vmap(lambda index: jax.random.fold_in(policy_key, index))(state.index)
    return jax.vmap(lambda key: policy.draw_noise(key, num_steps), out_axes=1)(keys)


def draw_action_noise(policy: Policy, params: Params, state: RolloutState, key: Array, num_steps: int) -> PyTree:
    """Draws the noise of all actions of a rollout, `[T, B, ...]`, with one stream per environment."""
    noise = draw_policy_noise(policy, state, key, 1)
    noise = jax.tree.map(lambda leaf: leaf[0], noise)
    _, distribution = jax.eval_shape(
        lambda params, state: act(policy, params, state.carry, _policy_input(state, noise)), params, state
    )
    template: Any = jax.tree.map(lambda leaf: jnp.zeros((num_steps, *leaf.shape[1:]), leaf.dtype), distribution)
    return jax.vmap(lambda index: template.noise(jax.random.fold_in(key, index)), out_axes=1)(state.index)


def _count_experience(timestep: TimeStep) -> dict[str, Count]:
    """Counts the experience in time steps with leaves `[T, B, ...]`."""
    ended = timestep.terminated | timestep.truncated
    return {"episodes": Count(jnp.sum(ended, dtype=jnp.int32)), "env_steps": Count(jnp.int32(ended.size))}


def episode_metrics(timestep: TimeStep) -> dict[str, Any]:
    """Computes exact means over the episodes that ended, from time steps with leaves `[T, B, ...]`."""
    ended = (timestep.terminated | timestep.truncated).astype(jnp.float32)
    names = {"episode_return": "episode_return", "episode_length": "episode_length", "success": "success_rate"}
    values = {label: timestep.info[key] for key, label in names.items() if key in timestep.info}
    return {
        name: Mean(total=jnp.sum(value.astype(jnp.float32) * ended), count=jnp.sum(ended))
        for name, value in {**values, **timestep.info.get("metrics", {})}.items()  # type: ignore[dict-item]
    }

"""Rollouts on given levels, each of which is played again when its episode is over."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.squashing import squash_actions
from jaxagents.environments.timesteps import restart, with_successor
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.ops.checks import check_counts
from jaxagents.ops.rows import where_rows
from jaxagents.policies.actor_critic import act
from jaxagents.rollouts.unroll import episode_metrics
from jaxagents.types import (
    Array,
    Collector,
    Count,
    Environment,
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
class LevelRolloutState:
    """Global indices of the environments of this device, int32 `[B]`: every rollout begins with new episodes."""

    index: Array


def make_level_collector(environment: Environment, policy: Policy, *, num_envs: int, num_steps: int) -> Collector:
    """Makes a collector that acts with `{"params", "levels"}` and plays level i in environment i.

    Every rollout begins with resets to its levels, and so does every episode in it; rollouts should therefore be longer
    than episodes.

    Args:
        environment: environment of one agent, without automatic resets; its tasks are the levels.
        policy: feed-forward policy.
        num_envs: B, number of environments and levels, over all devices.
        num_steps: T, number of steps.

    Returns:
        The collector. Batches are `Rollout`s with `extras["success"]`, zeros if the world does not report it, and
        `extras["metrics"]` if it reports other numbers; metrics are those of rollouts.

    Raises:
        ValueError: a size is not positive, the policy has a memory, or there are several agents or players.

    References:
        Coward, Beukman and Foerster (2024), JaxUED.
    """
    check_counts(num_envs=num_envs, num_steps=num_steps)
    if jax.tree.leaves(policy.initial_carry((1,))) or policy.draw_noise is not None:
        raise ValueError("`policy` must be feed-forward for the replay of levels; leave out its `memory`.")
    if environment.num_agents or environment.num_players > 1:
        raise ValueError(f"`environment` must have one agent for the replay of levels, got {environment.name!r}.")
    world, carry = episode_statistics(squash_actions(environment)), policy.initial_carry((1,))

    def init(key: Array, params: Params) -> LevelRolloutState:
        del key, params
        return LevelRolloutState(index=jnp.arange(num_envs, dtype=jnp.int32))

    def collect(
        state: LevelRolloutState, params: dict[str, PyTree], key: Array
    ) -> tuple[LevelRolloutState, Rollout, Metrics]:
        levels = jax.tree.map(lambda leaf: leaf[state.index], params["levels"])
        keys = jax.vmap(lambda index: jax.random.split(jax.random.fold_in(key, index), num_steps + 1), out_axes=1)(
            state.index
        )

        def step(current: tuple[State, TimeStep, Array], keys: Array) -> tuple[Any, tuple[Transition, TimeStep]]:
            environments, before, first = current
            act_keys, step_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, 3))(keys), 1, 0)
            inputs = PolicyInput(observation=before.observation, first=first, action_mask=before.action_mask)
            _, distribution = act(policy, params["params"], carry, inputs)
            noise = jax.vmap(lambda row, key: row.noise(key))(distribution, act_keys)
            action = distribution.transform(noise)
            environments, after = jax.vmap(world.step)(step_keys, environments, action)
            ended = after.terminated | after.truncated
            fresh, opened = jax.vmap(world.reset)(reset_keys, levels)
            environments, following = where_rows(ended, (fresh, restart(after, opened)), (environments, after))
            following = with_successor(following, after)
            success = after.info.get("success", jnp.zeros_like(ended)).astype(jnp.float32)
            transition = Transition(
                observation=before.observation,
                action=action,
                behavior_log_prob=distribution.log_prob(action),
                reward=after.reward,
                terminated=after.terminated,
                truncated=after.truncated,
                next_observation=after.observation,
                first=first,
                action_mask=before.action_mask,
                extras={"success": success} | {name: after.info[name] for name in ("metrics",) if name in after.info},
            )
            return (environments, following, ended), (transition, following)

        start, opened = jax.vmap(world.reset)(keys[0], levels)
        opened = with_successor(opened, opened)
        _, (transition, after) = jax.lax.scan(step, (start, opened, jnp.ones(state.index.shape, bool)), keys[1:])
        ends = jnp.sum(after.terminated | after.truncated, dtype=jnp.int32)
        counts = {"episodes": Count(ends), "env_steps": Count(jnp.int32(after.terminated.size))}
        return state, Rollout(transition=transition, carry=carry), episode_metrics(after) | counts

    return Collector(init=init, collect=collect, steps_per_collect=num_envs * num_steps)

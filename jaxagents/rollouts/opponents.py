"""Rollouts against a pool of opponents, whose parameters are frozen while they play."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.environments.opponents import Opponent, against
from jaxagents.environments.vectorized import vectorize
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.ops import opponents
from jaxagents.policies.actor_critic import act
from jaxagents.rollouts.unroll import RolloutState, make_rollout_collector
from jaxagents.types import Array, Collector, Environment, Metrics, Params, Policy, PolicyInput, PyTree, Rollout


def make_opponent(policy: Policy, params: Params) -> Opponent:
    """Turns a policy into an opponent for `against`, by drawing its actions.

    Args:
        policy: policy without memory.
        params: parameters of the policy.

    Returns:
        `(key, observation, action_mask) -> action`.

    Raises:
        ValueError: the policy has a memory, which `against` does not keep.
    """
    if jax.tree.leaves(policy.initial_carry((1,))):
        raise ValueError("`policy` of an opponent must have no memory, got a recurrent one; try policy=mlp.")

    def answer(key: Array, observation: PyTree, action_mask: Array | None) -> Array:
        inputs = PolicyInput(observation=observation, first=jnp.ones((), bool), action_mask=action_mask)
        inputs = jax.tree.map(lambda leaf: leaf[None], inputs)
        _, distribution = act(policy, params, policy.initial_carry((1,)), inputs)
        return distribution.sample(key)[0]

    return answer


def make_opponents_collector(
    environment: Environment,
    policy: Policy,
    *,
    num_envs: int,
    num_steps: int,
    num_opponents: int = 4,
    weights: Callable[[opponents.OpponentPool], Array] = opponents.uniform,
) -> Collector:
    """Makes a collector of rollouts of one player, in a random seat per game, against members of a pool.

    The environments are split into `num_opponents` groups; every rollout draws an opponent for each group, and starts
    new games, so that a game is played against one opponent. `transition.extras["opponent"]` (int32 `[T, B]`) is its
    place in the pool.

    Args:
        environment: turn-based game with two players.
        policy: policy that acts for either player, without memory.
        num_envs: B, over all devices; a multiple of `num_opponents`, as the number on each device is of `num_envs /
            num_opponents`.
        num_steps: T, number of the learner's moves; should cover several games, because games cut by the end are not
            counted.
        num_opponents: number of opponents drawn per rollout.
        weights: weights of the members of a pool, see `ops.opponents`.

    Returns:
        The collector; it acts with `{"params": of the learner, "pool": OpponentPool}`, see
        `learners.opponents.with_opponents`. Metrics are those of rollouts.

    Raises:
        ValueError: a size is not positive or does not divide, the policy has a memory, or the game is not for two
            players.
    """
    if num_opponents < 1 or num_envs % num_opponents:
        raise ValueError(
            f"`num_opponents` must be at least 1 and divide `num_envs`, got {num_opponents} and {num_envs}; try 1."
        )
    make_opponent(policy, None)
    group_size = num_envs // num_opponents

    def collector_against(opponent: Opponent | None) -> tuple[Environment, Collector]:
        world = against(environment, opponent)
        return world, make_rollout_collector(world, policy, num_envs=num_envs, num_steps=num_steps)

    def collect_group(
        state: RolloutState, params: Params, opponent: Params, index: Array, key: Array
    ) -> tuple[RolloutState, Rollout, Metrics]:
        reset_key, collect_key = jax.random.split(key)
        world, inner = collector_against(make_opponent(policy, opponent))
        games, timestep = vectorize(episode_statistics(world)).reset(reset_key, state.index)
        state = state.replace(environment=games, timestep=timestep, first=jnp.ones_like(state.first))
        state, rollout, metrics = inner.collect(state, params, collect_key)
        place = jnp.broadcast_to(index, rollout.transition.terminated.shape)
        extras = {**rollout.transition.extras, "opponent": place}
        return state, rollout.replace(transition=rollout.transition.replace(extras=extras)), metrics

    def collect(state: RolloutState, acting: PyTree, key: Array) -> tuple[RolloutState, Rollout, Metrics]:
        num_local = state.index.shape[0]
        if num_local % group_size:
            raise ValueError(
                f"`num_opponents` must leave whole groups of environments to a device, got groups of {group_size} and "
                f"{num_local} environments; try {num_envs // num_local * num_opponents}."
            )
        draw_key, collect_key = jax.random.split(key)
        groups = jax.tree.map(lambda leaf: leaf.reshape(-1, group_size, *leaf.shape[1:]), state)
        chances = weights(acting["pool"])
        numbers = groups.index[:, 0] // group_size
        indices = jax.vmap(lambda number: opponents.sample(jax.random.fold_in(draw_key, number), chances))(numbers)
        groups, rollouts, metrics = jax.vmap(collect_group, in_axes=(0, None, 0, 0, None))(
            groups, acting["params"], opponents.take(acting["pool"], indices), indices, collect_key
        )
        state = jax.tree.map(lambda leaf: leaf.reshape(num_local, *leaf.shape[2:]), groups)
        rollout = jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], num_local, *leaf.shape[3:]), rollouts
        )
        return state, rollout, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), metrics)

    own = collector_against(None)[1]
    return own._replace(collect=collect)

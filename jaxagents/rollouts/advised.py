"""Rollouts with a script's advice on the actions of every state, and with rewards made from it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.types import Array, Collector, Discrete, Environment, Metrics, Params, Policy, Rollout, State, Transition


def make_advised_collector(
    environment: Environment,
    policy: Policy,
    *,
    advice: Callable[[Array], Array] | None = None,
    shaping: Callable[[Transition], Array] | None = None,
    num_envs: int,
    num_steps: int,
    reset_pool: int | None = None,
    level: int | None = None,
) -> Collector:
    """Makes a collector in which a script gives a value for each action, besides the rewards of the world.

    Args:
        environment: single instance with discrete actions.
        policy: policy that acts, without seeing the advice.
        advice: `(observation [T, B, ...]) -> float32 [T, B, A]`, in units of the value; null: no advice.
        shaping: `(transition) -> [T, B]`, added to the rewards, see `ops.advice_rewards`; null: nothing.
        num_envs: see `make_rollout_collector`.
        num_steps: see `make_rollout_collector`.
        reset_pool: see `make_rollout_collector`.
        level: see `make_rollout_collector`.

    Returns:
        The collector. Its batches are `Rollout`s with the advice as `extras["heuristic_values"]`; metrics are those of
        the world without added rewards.

    Raises:
        ValueError: actions are not discrete, or the advice is not one number for each of them.
    """
    space = environment.action_space
    if not isinstance(space, Discrete) or environment.num_agents:
        raise ValueError(
            f"`environment` must have one agent and Discrete actions for advice, got {space} in {environment.name!r}."
        )
    if advice is not None:
        row = jax.tree.map(
            lambda box: jax.ShapeDtypeStruct((1, 1, *box.shape), box.dtype), environment.observation_space
        )
        example = jax.eval_shape(advice, row)
        if example.shape != (1, 1, space.num_values):
            raise ValueError(
                f"`advice` must be one number per action, {space.num_values}, got the shape {example.shape[2:]}."
            )
    inner = make_rollout_collector(
        environment, policy, num_envs=num_envs, num_steps=num_steps, reset_pool=reset_pool, level=level
    )

    def collect(state: State, params: Params, key: Array) -> tuple[State, Rollout, Metrics]:
        state, rollout, metrics = inner.collect(state, params, key)
        transition = rollout.transition
        if advice is not None:
            extras = {**transition.extras, "heuristic_values": jnp.asarray(advice(transition.observation))}
            transition = transition.replace(extras=extras)
        if shaping is not None:
            transition = transition.replace(reward=transition.reward + shaping(transition))
        return state, rollout.replace(transition=transition), metrics

    return inner._replace(collect=collect)

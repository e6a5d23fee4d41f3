"""Bonuses for new places: counts of hashed observations, random network distillation, and NovelD over it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from jaxagents.learners.bonuses import Bonus
from jaxagents.learners.checks import check_counts, check_positive
from jaxagents.learners.optimizers import descend
from jaxagents.ops.novelty import first_visits, hash_codes, novelty_rise
from jaxagents.ops.statistics import RunningStatistics, init_statistics, normalize, update_statistics
from jaxagents.types import REPLICATED, Array, Box, Metrics, Params, PyTree, Transition


@struct.dataclass
class CountState:
    """Random projection `[D, K]`, and how often each code was reached, float32 `[2^K]`."""

    projection: Array
    counts: Array


def make_count_bonus(
    observation_space: Box, action_space: Any, *, num_bits: int = 12, axis_name: str | None = None
) -> Bonus:
    """Makes the bonus `1 / sqrt(n)` of the n-th visit of a code, those of the same rollout included.

    Args:
        observation_space: any box; observations are flattened.
        action_space: not used.
        num_bits: K of the codes, at most 20.
        axis_name: mapped device axis over whose members rollouts are split.

    Returns:
        The bonus.

    Raises:
        ValueError: `num_bits` is not from 1 to 20.

    References:
        Tang et al. (2017), #Exploration: A study of count-based exploration for deep RL, equation 1.
    """
    del action_space
    _check_bits(num_bits)

    def init(key: Array, transition: Transition) -> CountState:
        del transition
        projection = _draw_projection(key, observation_space, num_bits)
        return CountState(projection=projection, counts=jnp.zeros(2**num_bits))

    def apply(state: CountState, transition: Transition) -> tuple[Array, CountState, Metrics]:
        codes = hash_codes(_flat(transition.next_observation, observation_space), state.projection)
        seen = jnp.zeros_like(state.counts).at[codes].add(1.0)
        counts = state.counts + (seen if axis_name is None else jax.lax.psum(seen, axis_name))
        return jax.lax.rsqrt(counts[codes]), state.replace(counts=counts), {"codes": jnp.sum(counts > 0.0)}

    return Bonus(init=init, apply=apply)


@struct.dataclass
class DistillationState:
    """State of random network distillation.

    Attributes:
        target: parameters that stay as they were drawn.
        predictor: parameters that learn to say what the target says.
        opt_state: of the optimiser.
        observations: statistics that observations are normalised with.
        bonuses: statistics of the bonuses.
        projection: `[D, K]` of NovelD, empty without.
        visited: bool `[B, 2^K]` of NovelD, codes of the running episodes; empty without.
    """

    target: Params
    predictor: Params
    opt_state: optax.OptState
    observations: RunningStatistics
    bonuses: RunningStatistics
    projection: PyTree = ()
    visited: PyTree = ()


def make_distillation_bonus(
    observation_space: Box,
    action_space: Any,
    *,
    encoder: nn.Module,
    learning_rate: float = 1e-3,
    num_steps: int = 1,
    rise: float | None = None,
    num_bits: int = 10,
    axis_name: str | None = None,
) -> Bonus:
    """Makes the bonus of random network distillation, `mean((predictor(s') - target(s'))^2)`, or of NovelD over it.

    Observations are normalised and clipped to five deviations; bonuses are divided by their running deviation. NovelD
    pays `max(novelty(s') - rise novelty(s), 0)` at the first visit of s' in its episode.

    Args:
        observation_space: any box; observations are flattened.
        action_space: not used.
        encoder: `[..., D] -> [..., F]`, of target and predictor; its last layer should be linear.
        learning_rate: of Adam.
        num_steps: of the predictor per rollout, each on all of it.
        rise: alpha of NovelD (paper: 0.5); None for random network distillation.
        num_bits: of the codes by which NovelD knows places again.
        axis_name: mapped device axis over whose members rollouts are split.

    Returns:
        The bonus. Metrics: `distillation_loss`.

    Raises:
        ValueError: a number is out of its range.

    References:
        Burda et al. (2019), Exploration by random network distillation; Zhang et al. (2021), NovelD, equation 3.

    Deviation: one stream of rewards for one value function; bonuses are divided by their own deviation rather than by
        that of their returns; NovelD knows places by random codes instead of comparing observations.
    """
    del action_space
    check_counts(num_steps=num_steps)
    check_positive(learning_rate=learning_rate)
    _check_bits(num_bits)
    if rise is not None and rise < 0.0:
        raise ValueError(f"`rise` must not be negative, got {rise}; try 0.5, or null for plain distillation.")
    optimizer, size = optax.adam(learning_rate), _size(observation_space)

    def init(key: Array, transition: Transition) -> DistillationState:
        keys = jax.random.split(key, 3)
        predictor = encoder.init(keys[1], jnp.zeros((1, size)))
        num_envs = transition.reward.shape[1]
        return DistillationState(
            target=encoder.init(keys[0], jnp.zeros((1, size))),
            predictor=predictor,
            opt_state=optimizer.init(predictor),
            observations=init_statistics(jnp.zeros(size)),
            bonuses=init_statistics(jnp.zeros(())),
            projection=() if rise is None else _draw_projection(keys[2], observation_space, num_bits),
            visited=() if rise is None else jnp.zeros((num_envs, 2**num_bits), bool),
        )

    def novelty(predictor: Params, state: DistillationState, observation: Array) -> Array:
        seen = normalize(state.observations, observation, clip=5.0)
        target = jax.lax.stop_gradient(encoder.apply(state.target, seen))
        return jnp.mean(jnp.square(encoder.apply(predictor, seen) - target), axis=-1)

    def apply(state: DistillationState, transition: Transition) -> tuple[Array, DistillationState, Metrics]:
        reached = _flat(transition.next_observation, observation_space)
        statistics = update_statistics(state.observations, reached, axis_name=axis_name)
        state = state.replace(observations=statistics)
        bonus, visited = novelty(state.predictor, state, reached), state.visited
        if rise is not None:
            before = novelty(state.predictor, state, _flat(transition.observation, observation_space))
            codes = hash_codes(reached, state.projection)
            new, visited = first_visits(codes, transition.first, state.visited)
            bonus = novelty_rise(bonus, before, scale=rise) * new
        bonuses = update_statistics(state.bonuses, bonus, axis_name=axis_name)

        def loss(predictor: Params) -> Array:
            return jnp.mean(novelty(predictor, state, reached))

        def step(carry: tuple[Params, optax.OptState], _: Any) -> tuple[tuple[Params, optax.OptState], Array]:
            value, grads = jax.value_and_grad(loss)(carry[0])
            predictor, opt_state, _ = descend(grads, *carry, optimizer, axis_name=axis_name)
            return (predictor, opt_state), value

        learned, losses = jax.lax.scan(step, (state.predictor, state.opt_state), None, num_steps)
        state = state.replace(predictor=learned[0], opt_state=learned[1], bonuses=bonuses, visited=visited)
        return bonus * jax.lax.rsqrt(bonuses.variance + 1e-8), state, {"distillation_loss": losses[0]}

    def partition(state: DistillationState) -> DistillationState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated if rise is None else replicated.replace(visited=0)

    return Bonus(init=init, apply=apply, partition=partition)


def _size(space: Box) -> int:
    return math.prod(space.shape)


def _flat(observation: Array, space: Box) -> Array:
    return observation.astype(jnp.float32).reshape((*observation.shape[: observation.ndim - len(space.shape)], -1))


def _draw_projection(key: Array, space: Box, num_bits: int) -> Array:
    return jax.random.normal(key, (_size(space), num_bits))


def _check_bits(num_bits: int) -> None:
    if not 1 <= num_bits <= 20:
        raise ValueError(f"`num_bits` must be from 1 to 20, got {num_bits}; try 12.")

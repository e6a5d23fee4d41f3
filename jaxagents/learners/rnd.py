"""RND (Burda et al., 2019), NovelD (Zhang et al., 2021), counts (Tang et al., 2017): bonuses for new observations."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from jaxagents.learners.bonuses import Bonus, flatten
from jaxagents.learners.checks import check_positive
from jaxagents.learners.optimizers import apply_updates
from jaxagents.ops.checks import check_counts
from jaxagents.ops.novelty import hash_codes, novelty_rise, visit_counts
from jaxagents.ops.statistics import RunningStatistics, init_statistics, normalize, update_statistics
from jaxagents.types import REPLICATED, Array, Box, Metrics, Params, PyTree, Transition


@struct.dataclass
class CountState:
    """State of the visit counts.

    Attributes:
        projection: float32 `[D, K]`, random.
        counts: number of visits to each code, float32 `[2^K]`; int32 `[B, 2^K]` for the running episodes.
    """

    projection: Array
    counts: Array


def make_count_bonus(
    observation_space: Box,
    action_space: Any,
    *,
    num_bits: int = 12,
    episodic: bool = False,
    planes: Sequence[int] | None = None,
    axis_name: str | None = None,
) -> Bonus:
    """Makes the bonus `1 / sqrt(n)` for the n-th visit to a code, including visits in the same rollout.

    The initial state of an episode also counts as a visit, but earns no bonus.

    Args:
        observation_space: any box; observations are flattened.
        action_space: not used.
        num_bits: K, number of bits of the codes, at most 20.
        episodic: whether only visits in the running episode count.
        planes: indices on the last axis of observations that distinguish places, such as that of the agent's cell on a
            grid; None: the whole observation.
        axis_name: mapped device axis over which rollouts are split.

    Returns:
        The bonus. Metrics: `codes`, the number of codes that were reached; with `episodic`, the mean over running
            episodes.

    Raises:
        ValueError: `num_bits` is not from 1 to 20, or observations do not have these planes.

    References:
        Tang et al. (2017), #Exploration: A study of count-based exploration for deep RL, algorithm 1; Henaff, Jiang and
        Raileanu (2023), A study of global and episodic bonuses for exploration in contextual MDPs, section 3 (episodic
        counts, places by selected parts of an observation).
    """
    del action_space
    _check_bits(num_bits)
    kept = None if planes is None else _check_planes(planes, observation_space)

    def place(observation: Array) -> Array:
        return flatten(observation if kept is None else observation[..., kept], observation_space)

    def init(key: Array, transition: Transition) -> CountState:
        size = place(jnp.zeros((1, *observation_space.shape))).shape[1]
        projection = _draw_projection(key, size, num_bits)
        rows = jnp.zeros((transition.reward.shape[1], 2**num_bits), jnp.int32)
        return CountState(projection=projection, counts=rows if episodic else jnp.zeros(2**num_bits))

    def apply(state: CountState, transition: Transition) -> tuple[Array, CountState, Metrics]:
        seen = (transition.next_observation, transition.observation)
        codes, before = (hash_codes(place(observation), state.projection) for observation in seen)
        if episodic:
            visits, counts = visit_counts(codes, before, transition.first, state.counts)
            metrics = {"codes": jnp.mean(jnp.sum(counts > 0, axis=1, dtype=jnp.float32))}
            return jax.lax.rsqrt(visits.astype(jnp.float32)), state.replace(counts=counts), metrics
        visits = jnp.zeros_like(state.counts).at[codes].add(1.0).at[before].add(transition.first.astype(jnp.float32))
        counts = state.counts + (visits if axis_name is None else jax.lax.psum(visits, axis_name))
        return jax.lax.rsqrt(counts[codes]), state.replace(counts=counts), {"codes": jnp.sum(counts > 0.0)}

    def partition(state: CountState) -> CountState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated.replace(counts=0) if episodic else replicated

    return Bonus(init=init, apply=apply, partition=partition)


@struct.dataclass
class DistillationState:
    """State of random network distillation.

    Attributes:
        target: fixed random parameters.
        predictor: parameters that are trained to predict the target's output.
        opt_state: state of the optimiser.
        observations: statistics that normalise observations.
        bonuses: statistics of the bonuses.
        projection: `[D, K]` for NovelD, else empty.
        visited: int32 `[B, 2^K]` for NovelD, visits to codes in the running episodes; else empty.
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
    once_per_episode: bool = True,
    axis_name: str | None = None,
) -> Bonus:
    """Makes the bonus of random network distillation, `mean((predictor(s') - target(s'))^2)`, or NovelD's from it.

    Observations are normalised and clipped to five standard deviations; bonuses are divided by their running deviation.
    NovelD's bonus is `max(novelty(s') - rise novelty(s), 0)` for the first visit to s' in its episode, with the norm as
    the novelty, `|predictor(s) - target(s)|`.

    Args:
        observation_space: any box; observations are flattened.
        action_space: not used.
        encoder: `[..., D] -> [..., F]`, for target and predictor; its last layer should be linear.
        learning_rate: learning rate of Adam.
        num_steps: number of steps of the predictor per rollout, each on the whole rollout.
        rise: alpha of NovelD (paper: 0.5); None for random network distillation.
        num_bits: number of bits of the codes by which NovelD recognises states.
        once_per_episode: whether NovelD's bonus is for first visits only; False if another bonus counts visits in
            episodes.
        axis_name: mapped device axis over which rollouts are split.

    Returns:
        The bonus. Metrics: `distillation_loss`.

    Raises:
        ValueError: a number is out of its range.

    References:
        Burda et al. (2019), Exploration by random network distillation; Zhang et al. (2021), NovelD, equation 3, and
        the official code, src/algos/bebold.py (norm, first visits).

    Deviation: there is one reward stream for one value function; bonuses are divided by their own deviation instead of
        that of their returns; NovelD recognises states by random codes instead of comparing observations.
    """
    del action_space
    check_counts(num_steps=num_steps)
    check_positive(learning_rate=learning_rate)
    _check_bits(num_bits)
    if rise is not None and rise < 0.0:
        raise ValueError(f"`rise` must not be negative, got {rise}; try 0.5, or null for plain distillation.")
    optimizer, size = optax.adam(learning_rate), math.prod(observation_space.shape)

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
            projection=() if rise is None else _draw_projection(keys[2], size, num_bits),
            visited=() if rise is None else jnp.zeros((num_envs, 2**num_bits), jnp.int32),
        )

    def difference(predictor: Params, state: DistillationState, observation: Array) -> Array:
        seen = normalize(state.observations, observation, clip=5.0)
        return encoder.apply(predictor, seen) - jax.lax.stop_gradient(encoder.apply(state.target, seen))

    def apply(state: DistillationState, transition: Transition) -> tuple[Array, DistillationState, Metrics]:
        reached = flatten(transition.next_observation, observation_space)
        statistics = update_statistics(state.observations, reached, axis_name=axis_name)
        state = state.replace(observations=statistics)
        visited, error = state.visited, difference(state.predictor, state, reached)
        if rise is None:
            bonus = jnp.mean(jnp.square(error), axis=-1)
        else:
            left = flatten(transition.observation, observation_space)
            codes, before = (hash_codes(observation, state.projection) for observation in (reached, left))
            visits, visited = visit_counts(codes, before, transition.first, state.visited)
            error_before = difference(state.predictor, state, left)
            bonus = novelty_rise(*(jnp.linalg.norm(each, axis=-1) for each in (error, error_before)), scale=rise)
            bonus = bonus * (visits == 1) if once_per_episode else bonus
        bonuses = update_statistics(state.bonuses, bonus, axis_name=axis_name)

        def loss(predictor: Params) -> Array:
            return jnp.mean(jnp.square(difference(predictor, state, reached)))

        def step(carry: tuple[Params, optax.OptState], _: Any) -> tuple[tuple[Params, optax.OptState], Array]:
            value, grads = jax.value_and_grad(loss)(carry[0])
            predictor, opt_state, _ = apply_updates(grads, *carry, optimizer, axis_name=axis_name)
            return (predictor, opt_state), value

        learned, losses = jax.lax.scan(step, (state.predictor, state.opt_state), None, num_steps)
        state = state.replace(predictor=learned[0], opt_state=learned[1], bonuses=bonuses, visited=visited)
        return bonus * jax.lax.rsqrt(bonuses.variance + 1e-8), state, {"distillation_loss": losses[0]}

    def partition(state: DistillationState) -> DistillationState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated if rise is None else replicated.replace(visited=0)

    return Bonus(init=init, apply=apply, partition=partition)


def _draw_projection(key: Array, size: int, num_bits: int) -> Array:
    return jax.random.normal(key, (size, num_bits))


def _check_planes(planes: Sequence[int], space: Box) -> Array:
    count = space.shape[-1] if space.shape else 0
    if not planes or not all(0 <= plane < count for plane in planes):
        raise ValueError(
            f"`planes` must be indices from 0 to {count - 1} of observations {list(space.shape)}, got {list(planes)}."
        )
    return jnp.asarray(planes)


def _check_bits(num_bits: int) -> None:
    if not 1 <= num_bits <= 20:
        raise ValueError(f"`num_bits` must be from 1 to 20, got {num_bits}; try 12.")

"""Normalisation of observations and rewards, as combinators of learners."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import params_of, start_of_inner, wrap
from jaxagents.ops.statistics import RunningStatistics, init_statistics, normalize, update_statistics
from jaxagents.types import REPLICATED, Array, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class NormalizationState:
    """State of a learner and the statistics of the observations.

    Attributes:
        inner: state of the learner.
        statistics: statistics of the raw observations of all batches so far.
    """

    inner: Any
    statistics: RunningStatistics

    @property
    def params(self) -> Params:
        """Returns the parameters of `policies.normalization.normalize_observations`."""
        return {"params": self.inner.params, "statistics": self.statistics}


def normalize_observations(
    learner: Learner, observation_space: PyTree, *, clip: float = 10.0, axis_name: str | None = None
) -> Learner:
    """Makes a learner that sees normalised observations.

    A batch is normalised with the statistics with which its collector acted; afterwards they are updated with it. In
    teams, observations of dead agents (`extras["agent_mask"]`) are left out.

    Args:
        learner: learner of the policy without normalisation; its batches have a `transition`.
        observation_space: observation space of the raw observations; booleans and integers become float32.
        clip: largest magnitude, in standard deviations; the same as in the policy.
        axis_name: mapped axis over which a batch is spread.

    Returns:
        The learner, with `state.params = {"params", "statistics"}`.

    Raises:
        ValueError: `clip` is not positive.
    """
    if clip <= 0.0:
        raise ValueError(f"`clip` must be positive, got {clip}; try 10.")

    def init(key: Array, start: NormalizationState | Params | None = None) -> NormalizationState:
        if start is None:
            return NormalizationState(inner=learner.init(key), statistics=init_statistics(observation_space))
        params = params_of(start)
        inner = start.inner if isinstance(start, NormalizationState) else params["params"]
        return NormalizationState(inner=learner.init(key, inner), statistics=params["statistics"])

    def update(state: NormalizationState, key: Array, batch: PyTree) -> tuple[NormalizationState, Metrics]:
        raw = batch.transition
        transition = raw.replace(
            observation=normalize(state.statistics, raw.observation, clip=clip),
            next_observation=normalize(state.statistics, raw.next_observation, clip=clip),
        )
        inner, metrics = learner.update(state.inner, key, batch.replace(transition=transition))
        statistics = update_statistics(
            state.statistics, raw.observation, mask=raw.extras.get("agent_mask"), axis_name=axis_name
        )
        return NormalizationState(inner=inner, statistics=statistics), metrics

    return wrap(learner, init, update, acting=lambda state, own: {"params": own, "statistics": state.statistics})


@struct.dataclass
class RewardScaleState:
    """State of a learner and the statistics that scale its rewards.

    Attributes:
        inner: state of the learner.
        returns: float32 `[B, ...]`, discounted sum of rewards so far in every running episode.
        statistics: statistics of all such sums.
    """

    inner: Any
    returns: Array
    statistics: RunningStatistics

    @property
    def params(self) -> Params:
        """Returns the parameters of the learner."""
        return self.inner.params


def scale_rewards(
    learner: Learner, shape: tuple[int, ...], *, discount: float, clip: float = 10.0, axis_name: str | None = None
) -> Learner:
    """Makes a learner that sees rewards in units of the standard deviation of returns so far.

    With `R_t = discount R_(t-1) + r_t` within an episode, rewards are `clip(r_t / std(R), -clip, clip)`. A rollout is
    added to the statistics before its own rewards are scaled; sums of dead agents (`extras["agent_mask"]`) are not.

    Args:
        learner: learner for `Rollout`s.
        shape: shape of the rewards of a step, `[B]` or `[B, N]`, over all devices.
        discount: discount in [0, 1].
        clip: largest magnitude of a scaled reward.
        axis_name: mapped axis over which a rollout is split.

    Returns:
        The learner, which acts as before.

    References:
        Engstrom et al. (2020), "Implementation Matters in Deep Policy Gradients", appendix A.2 (algorithm 1).

    Deviation: the sum of an episode ends with it, as in Gymnasium; in the code that the paper describes it continues.
    """

    def init(key: Array, start: RewardScaleState | Params | None = None) -> RewardScaleState:
        is_state = isinstance(start, RewardScaleState)
        statistics = start.statistics if is_state else init_statistics(jax.ShapeDtypeStruct((), jnp.float32))
        inner = learner.init(key, start_of_inner(start, RewardScaleState))
        return RewardScaleState(inner=inner, returns=jnp.zeros(shape), statistics=statistics)

    def update(state: RewardScaleState, key: Array, batch: Rollout) -> tuple[RewardScaleState, Metrics]:
        transition = batch.transition
        ended = transition.terminated | transition.truncated

        def add(returns: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, ended = step
            returns = discount * returns + reward
            return jnp.where(ended.reshape(ended.shape + (1,) * (returns.ndim - 1)), 0.0, returns), returns

        last, returns = jax.lax.scan(add, state.returns, (transition.reward, ended))
        statistics = update_statistics(
            state.statistics, returns, mask=transition.extras.get("agent_mask"), axis_name=axis_name
        )
        scale = jax.lax.rsqrt(statistics.variance + 1e-8)
        transition = transition.replace(reward=jnp.clip(transition.reward * scale, -clip, clip))
        inner, metrics = learner.update(state.inner, key, batch.replace(transition=transition))
        return RewardScaleState(inner=inner, returns=last, statistics=statistics), metrics

    def partition(state: RewardScaleState, of_inner: PyTree) -> RewardScaleState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated.replace(inner=of_inner, returns=0)

    return wrap(learner, init, update, partition=partition)

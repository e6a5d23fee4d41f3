"""Observation normalisation as a combinator of learners."""

from typing import Any

from flax import struct

from jaxagents.learners.combinators import params_of, wrap
from jaxagents.ops.statistics import RunningStatistics, init_statistics, normalize, update_statistics
from jaxagents.types import Array, Learner, Metrics, Params, PyTree


@struct.dataclass
class NormalizationState:
    """State of a learner beside the statistics of the observations.

    Attributes:
        inner: state of the learner.
        statistics: of the raw observations of all batches so far.
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
    """Makes a learner see normalised observations.

    A batch is normalised with the statistics that its collector acted with; they take it in afterwards.

    Args:
        learner: of the policy without normalisation; its batches have a `transition`.
        observation_space: of the raw observations; booleans and integers become float32.
        clip: largest magnitude, in standard deviations; as that of the policy.
        axis_name: mapped axis over whose members a batch is spread.

    Returns:
        The learner, with `state.params = {"params", "statistics"}`.

    Raises:
        ValueError: if `clip` is not positive.
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
        statistics = update_statistics(state.statistics, raw.observation, axis_name=axis_name)
        return NormalizationState(inner=inner, statistics=statistics), metrics

    return wrap(learner, init, update, acting=lambda state, own: {"params": own, "statistics": state.statistics})

"""A learner with an estimator that judges its batches and is fitted to them, such as a model of progress."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.ops.conditions import cond
from jaxagents.types import Array, Learner, Metrics, Params, PyTree


class Estimator(NamedTuple):
    """A model that learns to judge batches.

    Attributes:
        init: `(key, params, start=None) -> state`, with the learner's `params`; `start` is the state of the same
            estimator in an earlier stage.
        judge: `(state, batch) -> (batch, estimates)`: the batch from which the learner learns, for example with other
            rewards, and a pytree that is passed to the fit.
        describe: `(batch as collected, estimates) -> metrics` of the quality of the estimates.
        fit: `(state, key, batch as collected, estimates) -> state`.
    """

    init: Callable[..., PyTree]
    judge: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    describe: Callable[[PyTree, PyTree], Metrics]
    fit: Callable[[PyTree, Array, PyTree, PyTree], PyTree]


@struct.dataclass
class EstimatedState:
    """States of a learner and its estimator, and the number of updates so far, int32."""

    inner: Any
    estimator: PyTree
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the learner."""
        return self.inner.params


def with_estimator(
    learner: Learner, estimator: Estimator, *, num_exploring: int = 0, num_fitted: int | None = None
) -> Learner:
    """Makes a learner that learns from batches as judged by an estimator.

    Every update first judges the batch with the current estimator, then fits the estimator to the batch as collected,
    and lets the learner learn from the judged batch. An estimator that is no longer fitted costs only its judgement,
    except if several seeds are trained in parallel.

    Args:
        learner: learner for the batches.
        estimator: estimator that judges batches and is fitted.
        num_exploring: number of first updates in which only the estimator learns.
        num_fitted: number of first updates in which the estimator learns; None: all.

    Returns:
        The learner. Metrics are those of `learner` and of `estimator.describe`.

    Raises:
        ValueError: `num_exploring` is negative, or `num_fitted` smaller.
    """
    if num_exploring < 0:
        raise ValueError(f"`num_exploring` must not be negative, got {num_exploring}; try 0.")

    if num_fitted is not None and num_fitted < max(num_exploring, 1):
        raise ValueError(f"`num_fitted` must be at least 1 and `num_exploring`, got {num_fitted} and {num_exploring}.")

    def init(key: Array, start: EstimatedState | Params | None = None) -> EstimatedState:
        learner_key, estimator_key = jax.random.split(key)
        inner = learner.init(learner_key, start_of_inner(start, EstimatedState))
        earlier = start.estimator if isinstance(start, EstimatedState) else None
        return EstimatedState(
            inner=inner,
            estimator=estimator.init(estimator_key, inner.params, earlier),
            num_updates=jnp.int32(0),
        )

    def update(state: EstimatedState, key: Array, batch: PyTree) -> tuple[EstimatedState, Metrics]:
        learn_key, fit_key = jax.random.split(key)
        judged, estimates = estimator.judge(state.estimator, batch)
        inner, metrics = learner.update(state.inner, learn_key, judged)
        if num_exploring:
            ready = state.num_updates >= num_exploring
            inner = jax.tree.map(lambda new, old: jnp.where(ready, new, old), inner, state.inner)

        def fit() -> PyTree:
            return estimator.fit(state.estimator, fit_key, batch, estimates)

        fitted = fit() if num_fitted is None else cond(state.num_updates < num_fitted, fit, lambda: state.estimator)
        health = estimator.describe(batch, estimates)
        state = EstimatedState(inner=inner, estimator=fitted, num_updates=state.num_updates + 1)
        return state, dict(metrics) | dict(health)

    return wrap(learner, init, update)

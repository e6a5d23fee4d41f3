"""Experience from parameters of some updates ago: simulates the lag of an asynchronous actor."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import params_to_act, start_of_inner, wrap
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Learner, Metrics, Params, PyTree


@struct.dataclass
class LaggedState:
    """State of the learner, the parameters that act, and the number of updates so far, int32."""

    inner: Any
    actor: Params
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def with_lagged_actor(learner: Learner, *, every: int) -> Learner:
    """Makes a learner that acts with older parameters, which are renewed every few updates.

    The actor of update u has the parameters after update `every * floor(u / every)`; with `every=1` there is no lag.

    Args:
        learner: learner whose parameters act with a lag.
        every: number of updates between two renewals.

    Returns:
        The learner.

    Raises:
        ValueError: `every` is not positive.

    References:
        Espeholt et al. (2018), "IMPALA", section 4: why lagging actors need V-trace.
    """
    require_positive("every", every)

    def init(key: Array, start: LaggedState | Params | None = None) -> LaggedState:
        inner = learner.init(key, start_of_inner(start, LaggedState))
        return LaggedState(
            inner=inner, actor=jax.tree.map(jnp.copy, params_to_act(learner, inner)), num_updates=jnp.int32(0)
        )

    def update(state: LaggedState, key: Array, batch: PyTree) -> tuple[LaggedState, Metrics]:
        inner, metrics = learner.update(state.inner, key, batch)
        count = state.num_updates + 1
        renew = count % every == 0
        actor = jax.tree.map(lambda new, old: jnp.where(renew, new, old), params_to_act(learner, inner), state.actor)
        return LaggedState(inner=inner, actor=actor, num_updates=count), metrics

    return wrap(learner, init, update, acting=lambda state, own: state.actor)

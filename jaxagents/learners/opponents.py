"""A pool of earlier versions of the policy as opponents, as a combinator of learners."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import start_of_inner, wrap, wrapper_agent
from jaxagents.learners.optimizers import same_shapes
from jaxagents.ops import opponents
from jaxagents.types import Agent, Array, Collector, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class OpponentsState:
    """State of a learner and its opponents.

    Attributes:
        inner: state of the learner.
        pool: pool of opponents.
        update: int32, number of updates so far.
    """

    inner: Any
    pool: opponents.OpponentPool
    update: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the learner."""
        return self.inner.params


def with_opponents(
    learner: Learner, *, capacity: int = 16, add_every: int = 10, decay: float = 0.95, axis_name: str | None = None
) -> Learner:
    """Makes a learner that keeps a pool of its earlier parameters as opponents.

    The pool begins with the initial parameters; every `add_every` updates the current ones are added. A game ends with
    its outcome as the reward of the last step, whose sign is the result.

    Args:
        learner: learner for rollouts of `rollouts.opponents.make_opponents_collector`.
        capacity: greatest number of opponents; a further one replaces the oldest.
        add_every: number of updates between additions.
        decay: factor for the counts of earlier games per update, in [0, 1].
        axis_name: mapped axis over which a batch is spread.

    Returns:
        The learner; the collector acts with `{"params", "pool"}`. Metrics: those of the learner, `pool_size`, and the
        mean and the least score against the opponents, `pool_score` and `pool_least_score`.

    Raises:
        ValueError: a count is not positive, or `decay` is out of range.
    """
    if capacity < 1 or add_every < 1:
        raise ValueError(
            f"`capacity` and `add_every` of an opponent pool must be at least 1, got {capacity} and {add_every}."
        )
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"`decay` must be in [0, 1], got {decay}; try 0.95.")

    def init(key: Array, start: OpponentsState | Params | None = None) -> OpponentsState:
        inner = learner.init(key, start_of_inner(start, OpponentsState))
        pool = opponents.init_pool(inner.params, capacity)
        if isinstance(start, OpponentsState) and same_shapes(pool, start.pool):
            pool = start.pool
        return OpponentsState(inner=inner, pool=pool, update=jnp.zeros((), jnp.int32))

    def update(state: OpponentsState, key: Array, batch: Rollout) -> tuple[OpponentsState, Metrics]:
        transition = batch.transition
        if "opponent" not in transition.extras:
            raise ValueError("`batch` must say whom it was played against, got none; try collector=opponents.")
        inner, metrics = learner.update(state.inner, key, batch)
        pool = opponents.record(
            state.pool,
            transition.extras["opponent"],
            0.5 + 0.5 * jnp.sign(transition.reward),
            transition.terminated | transition.truncated,
            decay=decay,
            axis_name=axis_name,
        )
        score, here = opponents.win_rate(pool), opponents.taken(pool)
        own = {
            "pool_size": jnp.sum(here).astype(jnp.float32),
            "pool_score": jnp.sum(jnp.where(here, score, 0.0)) / jnp.sum(here),
            "pool_least_score": jnp.min(jnp.where(here, score, 1.0)),
        }
        done = state.update + 1
        pool = opponents.add(pool, inner.params, when=done % add_every == 0)
        return OpponentsState(inner=inner, pool=pool, update=done), {**metrics, **own}

    return wrap(learner, init, update, acting=lambda state, own: {"params": own, "pool": state.pool})


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    capacity: int = 16,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent that plays against earlier versions of itself.

    Args:
        environment: a game of two players.
        inner: `(environment, *, axis_name) -> Agent`, which learns; it may have a replay buffer.
        capacity: see `with_opponents`.
        axis_name: see `with_opponents`.
        **options: further arguments of `with_opponents`.
    """

    def change(learner: Learner, *_: Any) -> Learner:
        return with_opponents(learner, capacity=capacity, axis_name=axis_name, **options)

    def acting(collector: Collector, params: Params) -> PyTree:
        return {"params": params, "pool": opponents.init_pool(params, capacity)}

    return wrapper_agent(inner(environment, axis_name=axis_name), change, acting=acting)

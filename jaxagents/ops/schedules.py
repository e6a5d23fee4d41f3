"""Numbers that change during a run: stateful slots for `learner.entropy_coefficient`, `learner.epsilon` and others."""

import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, Stateful


@struct.dataclass
class ScheduleState:
    """Progress of a schedule; its numbers are arrays, so that changing them does not require compiling again.

    Attributes:
        start: float32, initial value.
        end: float32, final value.
        num_updates: float32, number of updates between them.
        update: float32, number of updates so far.
    """

    start: Array
    end: Array
    num_updates: Array
    update: Array


def linear_schedule(*, start: float, end: float, num_updates: int | None = None, fraction: float = 1.0) -> Stateful:
    """Makes a number that changes linearly with the learner's updates from `start` to `end`, and then stays constant.

    Args:
        start: value before the first update.
        end: value after the last update in which it changes.
        num_updates: number of updates in which it changes; null: given by `fraction`.
        fraction: fraction of the run's updates in which it changes, in (0, 1]; not used with `num_updates`.

    Returns:
        A slot for any hyper-parameter of a learner, and for the numbers of its other slots. Its length is part of the
        learner's state: a run that is extended keeps it.

    Raises:
        ValueError: the number changes in no update.
    """
    if num_updates is not None and num_updates < 1:
        raise ValueError(f"`num_updates` of a schedule must be at least 1, got {num_updates}; try null and `fraction`.")
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"`fraction` of a schedule must be in (0, 1], got {fraction}; try 1 for the whole run.")

    def init(run_updates: int) -> ScheduleState:
        length = num_updates or max(fraction * run_updates, 1.0)
        numbers = (jnp.float32(number) for number in (start, end, length, 0.0))
        return ScheduleState(*numbers)

    def apply(state: ScheduleState) -> tuple[Array, tuple[()]]:
        done = jnp.minimum(state.update / state.num_updates, 1.0)
        return state.start + done * (state.end - state.start), ()

    def update(state: ScheduleState, summary: tuple[()]) -> ScheduleState:
        del summary
        return state.replace(update=state.update + 1.0)

    return Stateful(init=init, apply=apply, update=update)


def cosine_schedule(*, start: float, end: float, num_updates: int | None = None, fraction: float = 1.0) -> Stateful:
    """Makes a number that goes from `start` to `end` along half a cosine: slowly at the beginning and at the end.

    `end + (start - end) (1 + cos(pi d)) / 2`, where d is the fraction of the way that `linear_schedule` has covered.

    Args:
        start: value before the first update.
        end: value after the last update in which it changes.
        num_updates: see `linear_schedule`.
        fraction: see `linear_schedule`.

    Returns:
        See `linear_schedule`.

    Raises:
        ValueError: see `linear_schedule`.

    References:
        Loshchilov and Hutter (2017), "SGDR: Stochastic Gradient Descent with Warm Restarts", eq. 5, of one period.
    """
    linear = linear_schedule(start=start, end=end, num_updates=num_updates, fraction=fraction)

    def apply(state: ScheduleState) -> tuple[Array, tuple[()]]:
        done = jnp.minimum(state.update / state.num_updates, 1.0)
        return state.end + (state.start - state.end) * 0.5 * (1.0 + jnp.cos(jnp.pi * done)), ()

    return linear._replace(apply=apply)

"""Numbers that change over a run: stateful slots for `learner.entropy_coefficient`, `learner.epsilon` and others."""

import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, Stateful


@struct.dataclass
class ScheduleState:
    """Where a schedule stands; its numbers are arrays: others are the same program.

    Attributes:
        start: float32, the first value.
        end: float32, the last value.
        num_updates: float32, updates between them.
        update: float32, updates done.
    """

    start: Array
    end: Array
    num_updates: Array
    update: Array


def linear_schedule(*, start: float, end: float, num_updates: int | None = None, fraction: float = 1.0) -> Stateful:
    """Makes a number that goes linearly from `start` to `end` by the updates of the learner, and stays there.

    Args:
        start: before the first update.
        end: after the last one that it moves in.
        num_updates: in which it moves; null: a share of the run.
        fraction: the share of the updates of the run in which it moves, in (0, 1]; read without `num_updates`.

    Returns:
        A slot for any hyper-parameter of a learner, and for the numbers of its other slots. Its length is part of the
        learner's state: a run that is extended keeps it.

    Raises:
        ValueError: it moves in no update.
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
    """Makes a number that goes from `start` to `end` along half a cosine: slowly at first, and slowly at the end.

    `end + (start - end) (1 + cos(pi d)) / 2`, where d is the share of the way that `linear_schedule` has gone.

    Args:
        start: before the first update.
        end: after the last one that it moves in.
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

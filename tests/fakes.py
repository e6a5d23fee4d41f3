"""What stands in tests for what is not their subject: experience, and learners that only count or listen."""

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.types import Learner, Rollout, Sample, Transition


def make_transition(shape=None, **fields):
    """Makes steps `[T, B]` that are zero and false but for some fields; observations stay where they are.

    Args:
        shape: `[T, B]`; None takes that of the rewards or flags that are given.
        **fields: of `Transition`.
    """
    flags = ("terminated", "truncated", "first")
    given = [jnp.shape(fields[name]) for name in flags if name in fields]
    shape = shape or (jnp.shape(fields["reward"]) if "reward" in fields else given[0])
    zeros, no = jnp.zeros(shape), jnp.zeros(given[0] if given else shape, bool)
    defaults = dict.fromkeys(("observation", "action", "behavior_log_prob", "reward"), zeros) | dict.fromkeys(flags, no)
    return Transition(**defaults | {"next_observation": fields.get("observation", zeros)} | fields)


def make_rollout(shape=None, *, carry=(), **fields):
    """Makes a rollout of `make_transition`."""
    return Rollout(transition=make_transition(shape, **fields), carry=carry)


def make_sample(shape=None, *, weight=None, carry=(), **fields):
    """Makes sequences of `make_transition`, each with weight 1 unless told otherwise."""
    transition = make_transition(shape, **fields)
    return Sample(transition, jnp.ones(transition.reward.shape[1]) if weight is None else weight, carry)


def play_levels(*shares):
    """Makes a rollout of four episodes of one step on each level, of which these shares are won; None: none ended."""
    success = jnp.stack([jnp.arange(4) < round(4 * (share or 0.0)) for share in shares], axis=1)
    ended = jnp.broadcast_to(jnp.array([share is not None for share in shares]), success.shape)
    return make_rollout(terminated=ended, first=success >= 0, extras={"success": success.astype(jnp.float32)})


@struct.dataclass
class Counted:
    """State of `COUNTING`: parameters, and the count that schedules of optimisers keep."""

    params: jax.Array
    schedule: optax.ScaleByScheduleState


def _count_from(key, start=None):
    start = jnp.float32(0.0) if start is None else getattr(start, "params", start)
    return Counted(params=start, schedule=optax.ScaleByScheduleState(jnp.int32(0)))


def _count(state, key, batch):
    schedule = optax.ScaleByScheduleState(state.schedule.count + 1)
    return Counted(params=state.params + 1.0, schedule=schedule), {"loss": jnp.float32(1.0)}


COUNTING = Learner(init=_count_from, update=_count)
"""A learner whose parameter is the number of its updates, on top of that of an earlier stage."""


@struct.dataclass
class Heard:
    """State of `LISTENER`."""

    params: jax.Array


LISTENER = Learner(
    init=lambda key, start=None: Heard(params=jnp.zeros((2, 3))),
    update=lambda state, key, batch: (Heard(params=batch.transition.reward), {"loss": jnp.float32(0.0)}),
)
"""A learner whose parameters are the rewards of its last rollout."""

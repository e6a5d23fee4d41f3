"""What observations of quests reveal on their own: remaining distances, and advice that may be wrong."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxagents.environments.quest import STEPS, QuestState, channels_of, check_kinds, move
from jaxagents.environments.quest_expert import distance, find_ways
from jaxagents.environments.quest_layouts import KINDS
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, Task

_ENDING = ("goal", "doorkey", "lava")


def make_steps_left(kinds: Sequence[str] = ("doorkey",)) -> Callable[[Array], Array]:
    """Makes the function that computes from an observation how far the treasure is after each action.

    Args:
        kinds: kinds of `quest.make_environment`, some of goal, doorkey and lava.

    Returns:
        `(observation float32 [..., S, S, C]) -> float32 [..., A]`, the fewest steps from the cell that the action leads
        to; 0 at the treasure, `inf` if it can no longer be reached.

    Raises:
        ValueError: quests are of other kinds, whose observations do not show how long to wait; in a call, observations
            are of other kinds or lack the number that tells of the key.
    """
    kinds = tuple(kinds)
    check_kinds(kinds)
    if set(kinds) - set(_ENDING):
        raise ValueError(f"`kinds` must be some of {', '.join(_ENDING)}, which end at the treasure, got {kinds}.")
    channels = channels_of(kinds, observe_hidden=True)
    depth = len(channels) + (len(kinds) if len(kinds) > 1 else 0)

    def of_one(observation: Array) -> Array:
        planes = dict(zip(channels, jnp.moveaxis(observation, -1, 0), strict=False))
        state = _state_of(planes, observation[..., len(channels) :], kinds)
        ways = find_ways(state.task)
        return jax.vmap(lambda action: distance(ways, move(state, action)))(jnp.arange(len(STEPS)))

    def steps_left(observation: Array) -> Array:
        if observation.ndim < 3 or observation.shape[-1] != depth:
            raise ValueError(
                f"`observation` must be [..., S, S, {depth}] of the kinds {kinds}, which shows what is hidden, got "
                f"{observation.shape}; try environment.observe_hidden=true and the kinds of the environment."
            )
        leading = observation.shape[:-3]
        left = jax.vmap(of_one)(observation.reshape(-1, *observation.shape[-3:]))
        return left.reshape(*leading, len(STEPS))

    return steps_left


def make_advice(
    kinds: Sequence[str] = ("doorkey",), *, wrong_share: float = 0.0, good: float = 1.0, bad: float = 0.0, seed: int = 0
) -> Callable[[Array], Array]:
    """Makes a script that labels every action of a quest as good or bad, and is wrong about a share of them.

    Good are the actions after which the treasure is nearest. Errors are determined by observation and action: asked
    again, the script gives the same answer.

    Args:
        kinds: see `make_steps_left`.
        wrong_share: probability that a pair of observation and action has the wrong value; 0.5 gives no information.
        good: value of good actions.
        bad: value of bad actions.
        seed: seed of the errors.

    Returns:
        `(observation [..., S, S, C]) -> float32 [..., A]`, `good` or `bad` for each action.

    Raises:
        ValueError: the share is not in [0, 1], or the kinds do not fit.
    """
    require_between("wrong_share", wrong_share, 0.0, 1.0)
    steps_left = make_steps_left(kinds)

    def advise(observation: Array) -> Array:
        left = steps_left(observation)
        nearest = left == jnp.min(left, axis=-1, keepdims=True)
        wrong = _uniform(observation, left.shape[-1], seed) < wrong_share
        return jnp.where(nearest ^ wrong, good, bad).astype(jnp.float32)

    return advise


def make_potential(kinds: Sequence[str] = ("doorkey",), *, scale: float = 0.05) -> Callable[[Array], Array]:
    """Makes the potential that is `-scale` for every remaining step to the treasure.

    Args:
        kinds: see `make_steps_left`.
        scale: positive factor, in units of the reward.

    Returns:
        `(observation [..., S, S, C]) -> float32 [...]`. The next step counts, too; if the treasure cannot be reached, S
        * S steps count.

    Raises:
        ValueError: the kinds do not fit.
    """
    steps_left = make_steps_left(kinds)

    def potential(observation: Array) -> Array:
        left = 1.0 + jnp.min(steps_left(observation), axis=-1)
        return -scale * jnp.minimum(left, float(observation.shape[-2] ** 2))

    return potential


def _state_of(planes: dict[str, Array], kind_planes: Array, kinds: tuple[str, ...]) -> QuestState:
    """Returns the state that an observation shows, at time 0."""
    size = planes["agent"].shape[0]
    nothing, zero = jnp.zeros((size, size)), jnp.zeros((), jnp.int32)
    kind = jnp.argmax(kind_planes[0, 0]) if len(kinds) > 1 else 0
    task: Task = {
        "kind": jnp.asarray([KINDS.index(name) for name in kinds], jnp.int32)[kind],
        "wait": zero + 1,
        "patrol": zero,
        "walls": planes["wall"] > 0.5,
        "lava": planes.get("lava", nothing) > 0.5,
        "start": _place(planes["agent"]),
    }
    task |= {name: _place(planes.get(name, nothing)) for name in ("treasure", "key", "door", "charger")}
    has_key = planes.get("hidden", nothing)[0, 0] > 0.5
    return QuestState(
        task=task, position=task["start"], num_steps=zero, has_key=has_key, charge=zero, found=jnp.zeros((), bool)
    )


def _place(plane: Array) -> Array:
    """Returns row and column of the marked cell; -1 if there is none."""
    cell = jnp.stack(jnp.divmod(jnp.argmax(plane.reshape(-1)), plane.shape[1]))
    return jnp.where(jnp.any(plane > 0.5), cell, -1).astype(jnp.int32)


def _uniform(observation: Array, num_actions: int, seed: int) -> Array:
    """Returns a fixed number in [0, 1) for each observation `[..., S, S, C]` and action, `[..., A]`."""
    words = jax.lax.bitcast_convert_type(observation.astype(jnp.float32), jnp.uint32)
    words = words.reshape(*observation.shape[:-3], -1)
    weights = jax.random.bits(jax.random.key(seed), (words.shape[-1], num_actions), jnp.uint32)
    # Floats that mark cells have only their upper bits set, and products keep these in place, so they are folded down.
    mixed = jnp.matmul(words ^ (words >> 16), weights)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    return (mixed >> 8).astype(jnp.float32) * 2.0**-24

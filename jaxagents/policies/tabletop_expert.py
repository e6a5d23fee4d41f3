"""The scripted pusher of the tabletop: it moves around the disc, waits, and pushes."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.distributions import TanhNormal, unsquash
from jaxagents.ops.rows import where_rows
from jaxagents.policies.scripted import Behavior
from jaxagents.types import Array, Carry, Params, Policy, PolicyInput

_REACH = 0.13  # Distance between the centres of a pusher and a disc that touch.
_ORBIT = 0.17  # Radius of the way around a disc.
_ALIGNED = 0.35  # Angle in radians from the line of disc and goal within which it pushes.
_SCALE = 0.02  # Scale of the noise before squashing.
_DECAY = 0.9  # Decay of the sway per step.


@struct.dataclass
class Habits:
    """Behaviour of the pusher beyond what is needed, for one episode.

    Attributes:
        side: float32 `[...]`, 1 for counter-clockwise, -1 for clockwise, 0 for the shorter way.
        pause: int32 `[...]`, number of steps that it will still wait before it pushes.
        sway: float32 `[..., 2]`, added to its actions.
    """

    side: Array
    pause: Array
    sway: Array


def make_tabletop_expert(
    *,
    num_pushers: int = 1,
    num_discs: int = 1,
    num_goals: int = 1,
    pauses: tuple[int, int] = (0, 0),
    either_side: bool = True,
    sway: float = 0.0,
    max_displacement: float = 0.08,
    speed: float = 1.0,
) -> Behavior:
    """Makes a player that brings the requested disc to the requested goal with the first pusher; others stay still.

    Observations do not reveal how long it will wait, or which way it goes if both are long: a policy without memory
    cannot imitate the former, and a policy with a single mode cannot imitate the latter.

    Args:
        num_pushers: number of pushers of the world.
        num_discs: number of discs of the world.
        num_goals: number of goals of the world.
        pauses: least and greatest number of steps to wait before the first push, drawn per episode.
        either_side: whether the way around is random, too; if False, or if no noise is drawn, it is the shorter one.
        sway: standard deviation of a perturbation of its actions that is correlated between steps.
        max_displacement: largest displacement of the world, times its gain.
        speed: largest action along an axis, in (0, 1].

    Returns:
        The behaviour, for numeric observations, not pictures.

    Raises:
        ValueError: `pauses` are not in order, `sway` is negative, or `speed` is out of its range.
    """
    least, most = pauses
    if not 0 <= least <= most:
        raise ValueError(f"`pauses` must be least and most, 0 <= least <= most, got {least} and {most}; try 2 and 6.")
    if sway < 0.0:
        raise ValueError(f"`sway` must not be negative, got {sway}; try 0.1.")
    if not 0.0 < speed <= 1.0:
        raise ValueError(f"`speed` must be in (0, 1], got {speed}; try 0.4.")

    def draw_noise(key: Array, num_steps: int) -> tuple[Array, Array, Array]:
        keys = jax.random.split(key, 3)
        side = jax.random.rademacher(keys[0], (num_steps,), jnp.float32) * either_side
        pause = jax.random.randint(keys[1], (num_steps,), least, most + 1)
        return side, pause, jax.random.normal(keys[2], (num_steps, 2))

    def initial_carry(batch_shape: tuple[int, ...]) -> Habits:
        side, pause = jnp.zeros(batch_shape), jnp.zeros(batch_shape, jnp.int32)
        return Habits(side=side, pause=pause, sway=jnp.zeros((*batch_shape, 2)))

    def step(habits: Habits, inputs: tuple[Array, Array, tuple]) -> tuple[Habits, Array]:
        observation, first, (side, pause, jitter) = inputs
        habits = where_rows(first, Habits(side=side, pause=pause, sway=jnp.zeros_like(jitter)), habits)
        pusher, disc, goal = _read(observation, num_pushers, num_discs, num_goals)
        if disc is None:
            target, pushes = goal, jnp.zeros(first.shape, bool)
        else:
            target, pushes = _next_place(pusher, disc, goal, habits.side, max_displacement)
        waits = pushes & (habits.pause > 0)
        swayed = _DECAY * habits.sway + sway * (1.0 - _DECAY**2) ** 0.5 * jitter
        move = (target - pusher) / max_displacement
        move = move / jnp.maximum(jnp.max(jnp.abs(move), axis=-1, keepdims=True) / speed, 1.0)
        move = jnp.where(waits[..., None], 0.0, move + swayed)
        return habits.replace(pause=habits.pause - waits, sway=swayed), move

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, TanhNormal]:
        del params
        shape = inputs.first.shape
        nothing = (jnp.zeros(shape), jnp.zeros(shape, jnp.int32), jnp.zeros((*shape, 2)))
        noise = nothing if inputs.noise is None else inputs.noise
        carry, move = jax.lax.scan(step, carry, (inputs.observation, inputs.first, noise))
        others = jnp.zeros((*shape, 2 * num_pushers - 2))
        loc = unsquash(jnp.concatenate([move, others], axis=-1), low=-1.0, high=1.0)
        return carry, TanhNormal(loc=loc, scale=jnp.full_like(loc, _SCALE))

    policy = Policy(init=lambda key: (), initial_carry=initial_carry, apply=apply, draw_noise=draw_noise)
    return Behavior(policy=policy, params=())


def _read(observation: Array, num_pushers: int, num_discs: int, num_goals: int) -> tuple[Array, Array | None, Array]:
    """Returns the positions of the first pusher, the requested disc and the requested goal, `[..., 2]`."""
    counts = (2 * num_pushers, 2 * num_discs, 2 * num_goals, num_discs if num_discs > 1 else 0)
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    pushers, discs, goals, disc, goal = jnp.split(observation, ends, axis=-1)

    def asked(places: Array, count: int, marks: Array) -> Array:
        places = places.reshape(*places.shape[:-1], count, 2)
        return places[..., 0, :] if count == 1 else jnp.sum(places * marks[..., None], axis=-2)

    return pushers[..., :2], asked(discs, num_discs, disc) if num_discs else None, asked(goals, num_goals, goal)


def _next_place(pusher: Array, disc: Array, goal: Array, side: Array, step: float) -> tuple[Array, Array]:
    """Returns the pusher's next position, `[..., 2]`, and whether it pushes, `[...]`."""
    left = jnp.linalg.norm(goal - disc, axis=-1, keepdims=True)
    onward = (goal - disc) / jnp.maximum(left, 1e-6)
    behind, away = -onward, pusher - disc
    angle = jnp.arctan2(away[..., 1], away[..., 0])
    turn = jnp.arctan2(behind[..., 1], behind[..., 0]) - angle
    turn = (turn + jnp.pi) % (2 * jnp.pi) - jnp.pi
    pushes = (jnp.abs(turn) < _ALIGNED) & (jnp.linalg.norm(away, axis=-1) < 1.35 * _ORBIT)
    # Near the line, or if no side was drawn, it takes the shorter way.
    sign = jnp.where((jnp.abs(turn) < 1.2) | (side == 0.0), jnp.sign(turn), side)
    forward = angle + sign * jnp.where(sign * turn > 0.0, jnp.minimum(jnp.abs(turn), 0.7), 0.7)
    around = disc + _ORBIT * jnp.stack([jnp.cos(forward), jnp.sin(forward)], axis=-1)
    contact = disc + behind * _REACH + onward * jnp.minimum(left, step)
    target = jnp.where((jnp.abs(turn) < 0.5)[..., None], disc + behind * _ORBIT, around)
    return jnp.where(pushes[..., None], contact, target), pushes

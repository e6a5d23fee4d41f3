"""Dialogue shaping (Zhou, Peng and Riedl, 2023) in quests: facts about them, as triples that a player makes true."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from jaxagents.environments.quest import channels_of, check_kinds
from jaxagents.environments.text.grid import distances
from jaxagents.types import Array


def _has_key(planes: Mapping[str, Array]) -> Array:
    return planes["hidden"][0, 0] > 0.5


def _at_door(planes: Mapping[str, Array]) -> Array:
    return jnp.any((planes["agent"] > 0.5) & (planes["door"] > 0.5))


def _in_room(planes: Mapping[str, Array]) -> Array:
    """Returns whether the treasure can be reached without going through the door."""
    free = (planes["wall"] < 0.5) & (planes["door"] < 0.5)
    steps = distances(planes["treasure"] > 0.5, free)
    return jnp.any(jnp.isfinite(steps) & free & (planes["agent"] > 0.5))


TRIPLES: Mapping[str, Callable[[Mapping[str, Array]], Array]] = {
    "you have key": _has_key,
    "you at door": _at_door,
    "you in treasure room": _in_room,
    "you at top": lambda planes: jnp.any(planes["agent"][0] > 0.5),
    "you at left": lambda planes: jnp.any(planes["agent"][:, 0] > 0.5),
    "you at right": lambda planes: jnp.any(planes["agent"][:, -1] > 0.5),
}
"""Triples about a player. The first three are the way of a quest, the others have nothing to do with it."""


def make_overlap(
    kinds: Sequence[str] = ("doorkey",),
    *,
    target: Sequence[str] = ("you have key", "you at door", "you in treasure room"),
    scale: float = 0.1,
) -> Callable[[Array], Array]:
    """Makes the potential that is `scale` for every triple of a target graph that is true of the player.

    `potential(s) = scale |G(s) & G*|`. With `ops.advice_rewards.potential_difference`, a player is rewarded at once for
    making more of the graph true, and loses the reward again for what becomes untrue.

    Args:
        kinds: kinds of `quest.make_environment`, with a door and a key.
        target: G*, some of `TRIPLES`: the answers that the player received.
        scale: positive weight, in units of the reward.

    Returns:
        `(observation [..., S, S, C]) -> float32 [...]`.

    Raises:
        ValueError: a triple is unknown, or the kinds have no door; in a call, if observations do not show what is
            hidden.

    References:
        Zhou, Peng and Riedl (2023), Dialogue Shaping: Empowering Agents through NPC Interaction; Peng et al. (2023),
        Story Shaping (the overlap of the graphs as a reward).

    Deviation: the dialogue is a list of triples; in the paper, a language model asks and answers.
    """
    kinds, target = tuple(kinds), tuple(target)
    check_kinds(kinds)
    if scale <= 0.0:
        raise ValueError(f"`scale` must be positive, got {scale}; try 0.1.")
    unknown = [triple for triple in target if triple not in TRIPLES]
    if unknown or not target:
        raise ValueError(f"`target` must be some of {', '.join(TRIPLES)}, got {unknown[0] if unknown else 'none'!r}.")
    channels = channels_of(kinds, observe_hidden=True)
    if "door" not in channels:
        raise ValueError(f"`kinds` must have a door, which triples speak of, got {kinds}; try doorkey.")
    depth = len(channels) + (len(kinds) if len(kinds) > 1 else 0)

    def overlap(observation: Array) -> Array:
        planes = dict(zip(channels, jnp.moveaxis(observation, -1, 0), strict=False))
        return jnp.sum(jnp.stack([TRIPLES[triple](planes) for triple in target]), dtype=jnp.float32)

    def potential(observation: Array) -> Array:
        if observation.ndim < 3 or observation.shape[-1] != depth:
            raise ValueError(
                f"`observation` must be [..., S, S, {depth}] of the kinds {kinds}, which shows what is hidden, got "
                f"{observation.shape}; try environment.observe_hidden=true and the kinds of the environment."
            )
        leading = observation.shape[:-3]
        return scale * jax.vmap(overlap)(observation.reshape(-1, *observation.shape[-3:])).reshape(leading)

    return potential

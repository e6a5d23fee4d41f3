"""MultiCritique (Lan et al., 2024): several fallible critics who vote are the expert of a world of critiques."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Text
from jaxagents.environments.text.words import compact
from jaxagents.environments.text.world import World
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.types import Array, State


def with_critics(
    world: World, *, num_critics: int = 4, votes: int = 2, miss: float = 0.3, invent: float = 0.1
) -> World:
    """Replaces a world's expert by several critics; flaws that enough of them name are kept.

    A critic misses each flaw with probability `miss`, and names each missing one with probability `invent`. One vote
    gives the union of their critiques; one critic corresponds to a single annotator. The right answers are unchanged.

    Args:
        world: rules whose first template is a list of flaws and whose second one says that there are none, such as
            `lists` in the mode "critique".
        num_critics: M, number of critics.
        votes: number of critics who must name a flaw, at most M.
        miss: probability in [0, 1].
        invent: probability in [0, 1].

    Returns:
        The rules.

    Raises:
        ValueError: a number is out of its range, or it is another kind of world.

    References:
        Lan et al. (2024), "Training Language Models to Critique With Multi-agent Feedback", section 3.
    """
    require_positive("num_critics", num_critics)
    require_between("votes", votes, 1, num_critics)
    for name, chance in (("miss", miss), ("invent", invent)):
        require_between(name, chance, 0.0, 1.0)
    if len(world.grammar.templates) != 2 or len(world.grammar.elements[1]) != 1 or world.grammar.max_args != 1:
        raise ValueError(
            f"`world` must answer with a list or with none, got {world.name!r}; try environment=lists "
            "environment.mode=critique."
        )
    num_flaws = len(world.grammar.elements[0][0].phrases)

    def expert(key: Array, state: State) -> tuple[Array, Array, Text | None]:
        inner_key, critic_key = jax.random.split(key)
        _, args, thought = world.expert(inner_key, state)
        there = jnp.zeros(num_flaws, bool).at[args[0]].set(args[0] >= 0, mode="drop", wrap_negative_indices=False)
        kept = merge(name_flaws(critic_key, there, num_critics, miss=miss, invent=invent), votes)
        flaws = compact(jnp.where(kept, jnp.arange(num_flaws, dtype=jnp.int32), -1))
        flaws = flaws[: args.shape[1]]
        return (flaws[0] < 0).astype(jnp.int32), flaws[None], thought

    return replace(world, expert=expert)


def name_flaws(key: Array, there: Array, num_critics: int, *, miss: float, invent: float) -> Array:
    """Draws what each of M critics names, bool `[M, F]`, given the flaws that exist, bool `[F]`."""
    chance = jnp.where(there, 1.0 - miss, invent)
    return jax.random.bernoulli(key, jnp.broadcast_to(chance, (num_critics, *chance.shape)))


def merge(named: Array, votes: int) -> Array:
    """Returns the flaws, bool `[F]`, that at least `votes` critics name, bool `[M, F]`."""
    return jnp.sum(named, axis=0) >= votes

"""Tasks invented by a proposer from parts of the world's tasks, in place of human-made tasks."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.world import World
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, Task


def with_proposals(world: World, *, rate: float) -> World:
    """Lets a proposer invent training tasks: each of their numbers comes from another task with some probability.

    With rate 0 the tasks are the world's. With rate 1, parts fit together only by chance, as for a proposer who knows
    the words and prices of a shop, but not which product has which. In between, the proposer has seen some parts of
    tasks together. Proposed tasks may be impossible, or be tasks of an evaluation. Held-out tasks are the world's.

    Args:
        world: rules whose tasks are made of numbers, such as wishes and a price.
        rate: share of the numbers that come from other tasks of the same level, each from a different one, in [0, 1].

    Returns:
        The rules with these tasks.

    Raises:
        ValueError: the rate is not in [0, 1].
    """
    require_between("rate", rate, 0.0, 1.0)

    def draw(key: Array, level: Array) -> Task:
        sample_key, complete_key = jax.random.split(key)
        task = world.sample(sample_key, level)
        return task if world.complete is None else world.complete(complete_key, task, False)

    def mix(key: Array, leaf: Array, index: int, level: Array) -> Array:
        """Takes elements of a leaf from other tasks, each from a different one."""
        draw_key, chance_key = jax.random.split(key)
        keys = jax.random.split(draw_key, max(leaf.size, 1))
        others = jax.vmap(lambda key: jax.tree.leaves(draw(key, level))[index])(keys)
        element = jnp.arange(len(keys)).reshape(leaf.shape)
        mixed = others.reshape(len(keys), -1)[element, element]
        return jnp.where(jax.random.bernoulli(chance_key, rate, leaf.shape), mixed, leaf)

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        key, own_key = jax.random.split(key)
        task = task if world.complete is None else world.complete(own_key, task, held_out)
        if held_out:
            return task
        leaves, shape = jax.tree.flatten(task)
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(shape, [mix(*of, i, task["level"]) for i, of in enumerate(zip(keys, leaves))])

    return replace(world, complete=complete)

"""Goals that segments of play in the crafting world have reached: the slot `label` of `language.relabel`."""

import jax.numpy as jnp

from jaxagents.environments.text.crafting import BASES, CraftingState
from jaxagents.types import Array, Task


def made(before: CraftingState, after: CraftingState) -> tuple[Task, Array]:
    """Returns the task whose goal is the deepest good that was made, starting from the earlier pack.

    Args:
        before: state at the start of the segment.
        after: state at its end.

    Returns:
        The task, and bool `[]`, whether anything was made.

    Raises:
        ValueError: the world is another one.
    """
    if not isinstance(before, CraftingState):
        raise ValueError(
            f"`label` must fit the world, got {type(before).__name__}: {made.__module__}.made reads the states of "
            "world=crafting alone; set `label` to a function (state before, after) -> (task, whether it was solved) "
            "of this world."
        )
    goods = (after.pack & ~before.pack)[len(BASES) :]
    goal = goods.shape[0] - 1 - jnp.argmax(goods[::-1])
    return before.task | {"goal": goal.astype(jnp.int32), "given": before.pack}, jnp.any(goods)

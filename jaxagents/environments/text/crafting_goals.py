"""What stretches of play in the world of crafting were good for: the slot `label` of `language.relabel`."""

import jax.numpy as jnp

from jaxagents.environments.text.crafting import BASES, CraftingState
from jaxagents.types import Array, Task


def made(before: CraftingState, after: CraftingState) -> tuple[Task, Array]:
    """Returns the task whose goal is the deepest good that was made, from what was there before.

    Args:
        before: state at the start of the stretch.
        after: state at its end.

    Returns:
        The task, and bool `[]`, whether anything was made.
    """
    goods = (after.pack & ~before.pack)[len(BASES) :]
    goal = goods.shape[0] - 1 - jnp.argmax(goods[::-1])
    return before.task | {"goal": goal.astype(jnp.int32), "given": before.pack}, jnp.any(goods)

"""ExeVRM (Song et al., 2026): instructions that are altered so that an episode is valid but does not satisfy them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.experts import choose
from jaxagents.language.relabeling import make_relabeling
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Task


def make_altered_instructions(environment: Environment, policy: LanguagePolicy) -> Callable[[Array, Episode], Episode]:
    """Makes the function that retells successes for tasks that they do not solve.

    One number of the task is replaced by that of another task of the same level: another object, value, or condition.
    The same actions are replayed, and the world determines whether they solve the altered task.

    Args:
        environment: unbatched text world of one player, without chance, whose tasks consist of numbers.
        policy: policy whose tokens and layout the episodes have.

    Returns:
        `(key, episode) -> Episode` with the same number of rows. Rows have no turns if the episode failed, also
        succeeds at the altered task, or has an action that does not work there. Rows of one group are altered
        independently; the result does not depend on how groups are split over devices.

    Raises:
        ValueError: the environment is not a text world of one player.

    References:
        Song et al. (2026), "Video-Based Reward Modeling for Computer-Use Agents", arXiv 2603.10178 (adversarial
        instruction translation).

    Deviation: in the paper, a language model writes the instruction and names the step that violates it; here the
        instruction is random, and the world decides.
    """
    relabel = make_relabeling(environment, policy)
    fold = jax.vmap(jax.random.fold_in)

    def other_task(key: Array, task: Task) -> Task:
        choose_key, draw_key = jax.random.split(key)
        return change_one(choose_key, task, environment.sample_task(draw_key, task["level"]))

    def alter(key: Array, episode: Episode) -> Episode:
        task_key, relabel_key = jax.random.split(key)
        same = episode.group[:, None] == episode.group[None, :]
        before = jnp.sum(jnp.tril(same, -1), axis=1)  # Number of earlier rows of its group.
        keys = fold(jax.vmap(jax.random.fold_in, in_axes=(None, 0))(task_key, episode.group), before)
        relabeled = relabel(relabel_key, episode, jax.vmap(other_task)(keys, episode.task))
        works = (relabeled.valid == episode.valid) & (relabeled.action_valid == episode.action_valid)
        near = episode.success & ~relabeled.success & jnp.all(works, axis=1)
        return relabeled.replace(valid=relabeled.valid & near[:, None])

    return alter


def change_one(key: Array, task: Task, other: Task) -> Task:
    """Copies one number from another task, drawn among those that differ; nothing if the tasks are equal."""
    leaves, others = (list(map(jnp.asarray, jax.tree.leaves(one))) for one in (task, other))
    differs = jnp.concatenate([jnp.ravel(mine != given) for mine, given in zip(leaves, others, strict=True)])
    chosen = differs & (jnp.arange(differs.size) == choose(key, differs))
    parts = jnp.split(chosen, np.cumsum([leaf.size for leaf in leaves])[:-1])
    changed = [
        jnp.where(part.reshape(mine.shape), given, mine)
        for part, mine, given in zip(parts, leaves, others, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(task), changed)

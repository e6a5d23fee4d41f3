"""Episodes of a policy, played again to see how far every step was from the goal."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.relabeling import recorded_words
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params, Task


class Measured(NamedTuple):
    """Episodes of n tasks with G each.

    Attributes:
        episode: as they were played, n G rows.
        actions: int32 `[n G, T, M]`.
        distance: float32 `[n G, T + 1]`, to the goal at the start and after every turn.
    """

    episode: Episode
    actions: Array
    distance: Array


def make_measured(
    environment: Environment, policy: LanguagePolicy, group_size: int
) -> Callable[[Params, Task, Array, Array, Array], Measured]:
    """Makes the function that plays tasks and measures what was played.

    Args:
        environment: a text world of one seat without chance after the start, whose `text.distance` is known.
        policy: acts.
        group_size: G, episodes of each task.

    Returns:
        `(params, tasks [n], key of resets, key of play, key of the second play) -> Measured`.

    Raises:
        ValueError: the distance is not known.
    """
    if environment.text is None or environment.text.distance is None:
        raise ValueError(f"`environment` must know the distance to the goal, got {environment.name!r}; try frozenlake.")
    play, distance = make_dialogue(environment, policy, group_size=group_size), jax.vmap(environment.text.distance)

    def measured(params: Params, task: Task, start_key: Array, play_key: Array, step_key: Array) -> Measured:
        num_tasks = len(jax.tree.leaves(task)[0])
        start = jax.vmap(environment.reset)(jax.random.split(start_key, num_tasks), task)
        episode = play(params, play_key, jnp.arange(num_tasks, dtype=jnp.int32), task=task, start=start)
        actions = recorded_words(policy, episode)[0][..., : environment.action_space.shape[0]]
        state = jax.tree.map(lambda leaf: jnp.repeat(leaf, group_size, axis=0), start[0])

        def step(state, action):
            keys = jax.random.split(step_key, action.shape[0])
            after, _ = jax.vmap(environment.step)(keys, state, action)
            return after, distance(after)

        _, after = jax.lax.scan(step, state, jnp.swapaxes(actions, 0, 1))
        return Measured(episode, actions, jnp.concatenate([distance(state)[None], after]).T)

    return measured

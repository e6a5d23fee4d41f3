"""A3T (Yang et al., 2024): the policy's episodes with some random actions, for which reasons are written afterwards."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.interventions import Intervene, episode_actions, replay, with_interventions
from jaxagents.language.mistakes import draw_admissible
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree, State


def make_exploration_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    noise: float = 0.25,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
) -> Collector:
    """Makes a collector of the policy's own episodes in which random actions replace some of its actions.

    A random action is recorded as if the policy had chosen it, with a reason: the action in words. Other turns keep the
    policy's own thoughts. `losses.imitation_weights.contrastive` weights such groups.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of episodes per task.
        noise: probability, per turn, of a random admissible action.
        temperature: sampling temperature; None: 1.
        level: level of the tasks; a list is cycled through.
        num_tasks: number of different tasks in total; None: new tasks for every batch.
        tasks_seed: seed of a fixed set of tasks, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Episode`s of `num_groups * group_size` rows.

    Raises:
        ValueError: a count is not positive, `noise` is not a probability, or see `with_interventions`.

    References:
        Yang et al. (2024), "ReAct Meets ActRe: When Language Agents Enjoy Training Data Autonomy", sections 3.1, 3.2.

    Deviation: in the paper, a prompted model writes the reasons.
    Deviation: all episodes of a group explore; in the paper, only those after a first one that failed.
    """
    for name, count in (("num_groups", num_groups), ("group_size", group_size)):
        require_positive(name, count)
    require_between("noise", noise, 0.0, 1.0)
    explored = with_interventions(environment, _random_actions(environment, noise))
    play = make_dialogue(explored, policy, sampling=Sampling(temperature=temperature))
    transcribe = make_transcriber(environment, policy)
    source = make_uniform(level=level, num_tasks=num_tasks, tasks_seed=tasks_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, play_key, walk_key = jax.random.split(key, 3)
        task, start, _ = start_tasks(explored, source.choose(state["source"], task_key, state["group"]))
        group = jnp.repeat(state["group"], group_size)
        index = group * group_size + jnp.arange(group.shape[0]) % group_size
        task, start = jax.tree.map(lambda leaf: jnp.repeat(leaf, group_size, axis=0), (task, start))
        walk = jax.vmap(lambda number: jax.random.key_data(jax.random.fold_in(walk_key, number)))(index)
        start = (start[0].replace(key=walk), start[1])
        own = play(params, play_key, index, task=task, start=start)
        own_actions, thoughts = episode_actions(environment, policy, own)
        played = replay(explored, start, own_actions)
        words = None
        if thoughts is not None:
            is_random = jnp.any(played.actions != own_actions, axis=2)
            reason = jnp.pad(played.actions, ((0, 0), (0, 0), (0, thoughts.shape[2])), constant_values=-1)
            written = jnp.where(is_random[..., None], reason[..., : thoughts.shape[2]], thoughts)
            words = (written, jnp.ones_like(is_random))
        inner = (start[0].inner, start[1])
        episode = transcribe(task, inner, group, played.actions, played.live, own=words)
        return state, episode, dialogue_metrics(episode) | count_experience(episode)

    return make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )


def _random_actions(environment: Environment, noise: float) -> Intervene:
    """Returns an intervention that replaces actions by random admissible ones with probability `noise`."""

    def act(key: Array, state: State, action: Array, after_mistake: Array, right: Array) -> Array:
        del after_mistake, right
        noise_key, draw_key = jax.random.split(key)
        drawn = draw_admissible(environment, draw_key, state)
        return jnp.where(jax.random.bernoulli(noise_key, noise), drawn, action)

    return act

"""Own episodes with hints, recorded without them: Agent-RLVR (Da et al., 2025), AgentTrek (Xu et al., 2024)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.relabeling import make_relabeling
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.ops.checks import require_positive
from jaxagents.types import (
    Array,
    Collector,
    Environment,
    Episode,
    LanguagePolicy,
    Mean,
    Metrics,
    Params,
    PyTree,
    Task,
)


def make_hint_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    only_failed: bool = False,
    keep_hints: bool = False,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
) -> Collector:
    """Makes a collector of own episodes that are played with a hint, and learned as if there had been none.

    Args:
        environment: text world of `environments.text.hints.with_hints`, without chance after the start.
        policy: policy that acts.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of episodes per task.
        only_failed: whether to play every group without hints first, and again with them; the latter are kept if all of
            the former failed. A group is then twice as large.
        keep_hints: whether to leave the hints in the transcripts that are learned.
        temperature: sampling temperature; None: 1.
        level: level of the tasks; a list is cycled through.
        num_tasks: number of different tasks in total; None: new tasks for every batch.
        tasks_seed: seed of a fixed set of tasks, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Episode`s, one group after the other. `hinted_success_rate` is the success rate
        with hints; all other metrics are those of the returned episodes.

    Raises:
        ValueError: a count is not positive, or the world gives no hints.

    References:
        Da et al. (2025), "Agent-RLVR: Training Software Engineering Agents via Guidance and Environment Rewards",
        section 3 (`only_failed`); Xu et al. (2024), "AgentTrek", section 2.3.
    """
    for name, count in (("num_groups", num_groups), ("group_size", group_size)):
        require_positive(name, count)
    example = jax.eval_shape(environment.sample_task, jax.random.key(0))
    if not (isinstance(example, dict) and "hint" in example):
        raise ValueError(f"`environment` must give hints, got {environment.name!r}; try +wrapper=hints.")
    play = make_dialogue(environment, policy, group_size=group_size, sampling=Sampling(temperature=temperature))
    relabel = make_relabeling(environment, policy)
    source = make_uniform(level=level, num_tasks=num_tasks, tasks_seed=tasks_seed)

    def attempt(params: Params, key: Array, group: Array, task: Task, keys: Array) -> Episode:
        return play(params, key, group, task=task, start=jax.vmap(environment.reset)(keys, task))

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, own_key, hint_key, relabel_key = jax.random.split(key, 4)
        group = state["group"]
        task, _, keys = start_tasks(environment, source.choose(state["source"], task_key, group))
        hinted = attempt(params, hint_key, group, task | {"hint": jnp.ones_like(task["hint"])}, keys)
        success = Mean(total=jnp.sum(hinted.success, dtype=jnp.float32), count=jnp.float32(hinted.success.shape[0]))
        counts = count_experience(hinted)
        episode = hinted if keep_hints else relabel(relabel_key, hinted, with_hint(hinted.task, False))
        if only_failed:
            own = attempt(params, own_key, group, task, keys)
            counts = count_experience(own, hinted)
            episode = _after_failures(own, episode, group_size)
        return state, episode, dialogue_metrics(episode) | {"hinted_success_rate": success} | counts

    steps = num_groups * group_size * (1 + only_failed)
    return make_task_collector(collect, source, num_groups, "num_groups", steps=steps, temperature=temperature)


def with_hint(task: Task, hint: bool) -> Task:
    """Returns tasks with or without a hint."""
    return task | {"hint": jnp.full_like(task["hint"], hint)}


def _after_failures(own: Episode, hinted: Episode, group_size: int) -> Episode:
    """Joins corresponding groups; hinted rows are kept if all own rows of the group failed."""
    failed = ~jnp.any(own.success.reshape(-1, group_size), axis=1)
    keep = jnp.stack([jnp.ones_like(failed), failed], axis=1)
    both = [episode.replace(bootstrap_value=None, keep=None) for episode in (own, hinted)]

    def join(one: Array, other: Array) -> Array:
        groups = [leaf.reshape(failed.shape[0], group_size, *leaf.shape[1:]) for leaf in (one, other)]
        return jnp.concatenate(groups, axis=1).reshape(2 * one.shape[0], *one.shape[1:])

    return jax.tree.map(join, *both).replace(keep=jnp.repeat(keep.reshape(-1), group_size))

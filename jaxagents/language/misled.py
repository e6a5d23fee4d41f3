"""Belief augmentation (AIDSAFE, Kumarage et al., 2025): own episodes under a false belief, next to the expert's."""

from collections.abc import Sequence

import jax

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.hints import with_hint
from jaxagents.language.relabeling import make_relabeling
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Demonstrated, Environment, LanguagePolicy, Metrics, Params, PyTree


def make_misled_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int = 4,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
) -> Collector:
    """Makes a collector of own episodes under a misleading hint, recorded without the hint, and of expert episodes.

    Args:
        environment: text world whose tasks have a `hint`, such as a desk with house rules, without chance after the
            start.
        policy: policy that acts, and is misled.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of own episodes per task.
        temperature: sampling temperature; None: 1.
        level: level of the tasks; a list is cycled through.
        num_tasks: number of different tasks in total; None: new tasks for every batch.
        tasks_seed: seed of a fixed set of tasks, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Demonstrated`, its steps are own episodes.

    Raises:
        ValueError: a count is not positive, or the world gives no hints.

    References:
        Kumarage et al. (2025), "Towards Safety Reasoning in LLMs: AI-agentic Deliberation for Policy-embedded CoT Data
        Creation" (belief augmentation).
    """
    for name, count in (("num_groups", num_groups), ("group_size", group_size)):
        require_positive(name, count)
    example = jax.eval_shape(environment.sample_task, jax.random.key(0))
    if not (isinstance(example, dict) and "hint" in example):
        raise ValueError(f"`environment` must give hints, got {environment.name!r}; try +wrapper=house_rules.")
    demonstrate = make_demonstrations(environment, policy)
    play = make_dialogue(environment, policy, group_size=group_size, sampling=Sampling(temperature=temperature))
    relabel = make_relabeling(environment, policy)
    source = make_uniform(level=level, num_tasks=num_tasks, tasks_seed=tasks_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Demonstrated, Metrics]:
        task_key, play_key, relabel_key = jax.random.split(key, 3)
        group, chosen = state["group"], source.choose(state["source"], task_key, state["group"])
        task, _, keys = start_tasks(environment, chosen)
        believed = with_hint(task, True)
        misled = play(params, play_key, group, task=believed, start=jax.vmap(environment.reset)(keys, believed))
        own = relabel(relabel_key, misled, with_hint(misled.task, False))
        batch = Demonstrated(own=own, demonstration=demonstrate(task_key, group, chosen))
        return state, batch, dialogue_metrics(own) | count_experience(misled)

    return make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )

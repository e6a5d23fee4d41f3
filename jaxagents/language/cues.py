"""CuES (2025): curious exploration, segments of which become tasks on which the policy is trained."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.text.splits import hash_integers
from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.interventions import IntervenedState, replay, with_interventions
from jaxagents.language.mistakes import draw_admissible
from jaxagents.language.relabel import Label, states_along, stretches
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.ops.checks import require_positive
from jaxagents.ops.group_metrics import group_metrics
from jaxagents.ops.rows import where_rows
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
    TimeStep,
)


def make_curious_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    label: Label,
    num_groups: int,
    group_size: int,
    num_stretches: int = 8,
    num_candidates: int = 8,
    table_size: int = 4096,
    checks: bool = True,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
) -> Collector:
    """Makes a collector of groups of the policy's episodes on tasks that an explorer found.

    The explorer takes, out of some admissible actions, the one with the fewest visits n(s, a). A segment of each of its
    episodes becomes the task of a group: the first segment that achieves something and succeeds when it is replayed. If
    none does, the group plays a task of the world and does not count at all.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts on the tasks.
        label: determines what a segment achieves, see `language.relabel`.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of episodes per task.
        num_stretches: number of segments of each explorer episode that are considered.
        num_candidates: number of actions from which the explorer chooses.
        table_size: size of each group's table of counts, which are hashed.
        checks: whether segments must succeed when replayed.
        temperature: sampling temperature; None: 1.
        level: level of the tasks with which the explorer begins; a list is cycled through.

    Returns:
        The collector; its batches are `Episode`s, its steps those of the policy. `made_fraction` is the fraction of
        groups with a task from the explorer.

    Raises:
        ValueError: a count is not positive, or see `with_interventions`.

    References:
        "CuES: A Curiosity-driven and Environment-grounded Synthesis Framework for Agentic RL" (2025), section 3.
    """
    counts = {"num_groups": num_groups, "group_size": group_size, "num_stretches": num_stretches}
    for name, count in (counts | {"num_candidates": num_candidates, "table_size": table_size}).items():
        require_positive(name, count)
    watched = with_interventions(environment)
    play = make_dialogue(environment, policy, group_size=group_size, sampling=Sampling(temperature=temperature))
    source = make_uniform(level=level)

    def explore(key: Array, visits: Array, start: tuple[IntervenedState, TimeStep]) -> tuple[Array, Array]:
        """Explores rarely visited pairs; returns the counts, and the actions int32 `[T, M]`."""

        def step(now: tuple, key: Array) -> tuple[tuple, Array]:
            visits, (state, timestep) = now
            drawn = jax.vmap(lambda key: draw_admissible(environment, key, state.inner))(
                jax.random.split(key, num_candidates)
            )
            here = environment.text.fingerprint(state.inner)
            place = jax.vmap(lambda action: hash_integers(here, action))(drawn) % table_size
            chosen = jnp.argmin(visits[place])
            live = ~(timestep.terminated | timestep.truncated)
            after = watched.step(key, state, drawn[chosen])
            return (visits.at[place[chosen]].add(live), after), drawn[chosen]

        (visits, _), actions = jax.lax.scan(step, (visits, start), jax.random.split(key, policy.layout.num_turns))
        return visits, actions

    def make_tasks(keys: Array, visits: Array, asked: PyTree, start: Any) -> tuple[Array, PyTree, Array]:
        """Returns the counts, a task for every group, and whether it comes from the explorer."""
        visits, actions = jax.vmap(explore)(keys[:, 0], visits, start)
        walked, states = replay(watched, start, actions), states_along(watched, start, actions)
        begin, end = stretches(keys[:, 1], jnp.sum(walked.live, axis=1), num_stretches, "any", 1)
        rows = jnp.repeat(jnp.arange(visits.shape[0]), num_stretches)
        first, last = begin.reshape(-1), end.reshape(-1)
        at = [jax.tree.map(lambda leaf, turn=turn: leaf[rows, turn], states) for turn in (first, last)]
        task, good = jax.vmap(label)(*at)
        turn = first[:, None] + jnp.arange(actions.shape[1])[None]
        inside = (turn < last[:, None])[..., None]
        again = jnp.where(inside, actions[rows[:, None], jnp.minimum(turn, actions.shape[1] - 1)], -1)
        played = replay(watched, jax.vmap(watched.reset)(keys[rows, 2], task), again)
        good = (good & (end > begin).reshape(-1) & (played.success | (not checks))).reshape(-1, num_stretches)
        choice = jnp.arange(visits.shape[0]) * num_stretches + jnp.argmax(good, axis=1)
        made = jnp.any(good, axis=1)
        return visits, where_rows(made, jax.tree.map(lambda leaf: leaf[choice], task), asked), made

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, walk_key, play_key = jax.random.split(key, 3)
        asked, start, keys = start_tasks(watched, source.choose(state["source"], task_key, state["group"]))
        walk = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(walk_key, state["group"])
        visits, task, made = make_tasks(
            jax.vmap(lambda key: jax.random.split(key, 3))(walk), state["visits"], asked, start
        )
        begin = jax.vmap(environment.reset)(keys, task)
        episode = play(params, play_key, state["group"], task=task, start=begin)
        episode = episode.replace(keep=jnp.repeat(made, group_size))
        share = Mean(total=jnp.sum(made, dtype=jnp.float32), count=jnp.float32(made.shape[0]))
        metrics = dialogue_metrics(episode) | (group_metrics(episode) if group_size > 1 else {})
        return state | {"visits": visits}, episode, metrics | {"made_fraction": share} | count_experience(episode)

    collector = make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )

    def init(key: Array, params: Params) -> PyTree:
        return collector.init(key, params) | {"visits": jnp.zeros((num_groups, table_size), jnp.int32)}

    return collector._replace(init=init)

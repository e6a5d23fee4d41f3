"""EvoCUA (2026): preferences at the first mistake of a failed episode, before the mistake and after it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.interventions import episode_actions, expert_along, replay, with_interventions
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber, reflect_after, reflection_tokens
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree

_ROWS = 4  # A preferred and a dispreferred row, for correction and for reflection.


def make_fork_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    reflects: bool = True,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
) -> Collector:
    """Makes a collector of pairs at the first mistake of the policy's failed episodes.

    The correction prefers the expert's action to the mistake, in the state of the mistake. The reflection prefers, in
    the state after it, a reflection with the expert's action to the policy's continuation. In each row, only the last
    turn counts as sampled; preferred rows have a reward of 1.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts.
        num_episodes: number of own episodes per batch, over all devices; each gives four rows.
        reflects: whether to keep reflections, too, besides corrections.
        temperature: sampling temperature; None: 1.
        level: level of the tasks; a list is cycled through.
        num_tasks: number of different tasks in total; None: new tasks for every batch.
        tasks_seed: seed of a fixed set of tasks, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Episode`s in groups of two rows, for `ops.pairs.best_against_others`. Rows of
        episodes without a fork are not kept. `forked_fraction` is the fraction of own episodes with a fork.

    Raises:
        ValueError: a count is not positive, or see `make_transcriber`.

    References:
        "EvoCUA: Evolving Computer Use Agents via Learning from Scalable Synthetic Experience" (2026), section 5.3.
    """
    require_positive("num_episodes", num_episodes)
    watched = with_interventions(environment)
    play = make_dialogue(watched, policy, sampling=Sampling(temperature=temperature))
    transcribe = make_transcriber(environment, policy, num_aside=reflection_tokens(environment, policy))
    source = make_uniform(level=level, num_tasks=num_tasks, tasks_seed=tasks_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, play_key = jax.random.split(key)
        task, start, _ = start_tasks(watched, source.choose(state["source"], task_key, state["index"]))
        own = play(params, play_key, state["index"], task=task, start=start)
        own_actions, thoughts = episode_actions(environment, policy, own)
        played, (expert, reasons) = replay(watched, start, own_actions), expert_along(watched, start, own_actions)
        fork = jnp.argmax(played.mistaken, axis=1)
        forked = jnp.any(played.mistaken, axis=1) & ~played.success
        kind = jnp.arange(_ROWS * fork.shape[0]) % _ROWS  # 0 and 1: correction, 2 and 3: reflection; even: preferred.
        task, begin, own_actions, expert, reasons, fork, forked, live, index = jax.tree.map(
            lambda leaf: jnp.repeat(leaf, _ROWS, axis=0),
            (task, (start[0].inner, start[1]), own_actions, expert, reasons, fork, forked, played.live, state["index"]),
        )
        last, preferred = fork + kind // 2, kind % 2 == 0
        turn = jnp.arange(own_actions.shape[1])[None]
        is_last = turn == last[:, None]
        by_expert = is_last & preferred[:, None]
        there = forked & jnp.any(live & is_last, axis=1) & (reflects | (kind < 2))
        words = None
        if thoughts is not None:
            words = (jnp.repeat(thoughts, _ROWS, axis=0), ~by_expert)
        rows = transcribe(
            task,
            begin,
            2 * index + kind // 2,
            jnp.where(by_expert[..., None], expert, own_actions),
            live & (turn <= last[:, None]),
            thoughts=reasons,
            aside=reflect_after(environment, (turn == fork[:, None]) & (kind >= 2)[:, None]),
            own=words,
        )
        rows = rows.replace(
            action_mask=rows.action_mask & is_last[..., None],
            reward=jnp.where(is_last & preferred[:, None], 1.0, 0.0),
            keep=there,
        )
        total = jnp.sum(forked, dtype=jnp.float32) / _ROWS
        metrics = {"forked_fraction": Mean(total=total, count=jnp.float32(own.success.shape[0]))}
        return state, rows, dialogue_metrics(own) | metrics | count_experience(own)

    return make_task_collector(collect, source, num_episodes, "num_episodes", temperature=temperature)

"""Re-ReST (Dou et al., 2024): a correction after feedback is learned as if it had been the first answer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.interventions import episode_actions
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree


def make_reflected_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
) -> Collector:
    """Makes a collector of own episodes of several attempts, each followed by its last attempt as a first one.

    `D_M` are correct first attempts, `D_R` correct later ones: the reflector, which has read the failure and the
    feedback, corrects the agent. In an own episode, the last attempt is learned, whether it is the agent's or the
    reflector's; the next row is only the correction, written from the beginning, and counts if there was one and it
    succeeds again. `learner.select` drops failures.

    Args:
        environment: text world of one player, without chance after the start, in which every turn is an attempt, or
            which reports `trials` (see `environments.text.retries`).
        policy: policy that acts, as the agent and as the reflector.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of episodes per task.
        temperature: sampling temperature; None: 1.
        level: level of the tasks; a list is cycled through.
        num_tasks: number of different tasks in total; None: new tasks for every batch.
        tasks_seed: seed of a fixed set of tasks, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Episode`s with twice as many rows as were played. `corrected_fraction` is the
        fraction of episodes with a correction.

    Raises:
        ValueError: a count is not positive, or there is only one attempt.

    References:
        Dou et al. (2024), "Re-ReST: Reflection-Reinforced Self-Training for Language Agents", section 3.
    """
    for name, count in (("num_groups", num_groups), ("group_size", group_size)):
        require_positive(name, count)
    if policy.layout.num_turns < 2:
        raise ValueError(f"`environment` must give several attempts, got {environment.name!r}; try +wrapper=retries.")
    key = jax.random.key(0)
    reported = jax.eval_shape(lambda: environment.reset(key, environment.sample_task(key))[1].info.get("metrics", {}))
    parts = [name for name in reported if name == "trials"]
    play = make_dialogue(
        environment, policy, group_size=group_size, sampling=Sampling(temperature=temperature), parts=parts
    )
    transcribe = make_transcriber(environment, policy)
    source = make_uniform(level=level, num_tasks=num_tasks, tasks_seed=tasks_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, play_key = jax.random.split(key)
        task, start, _ = start_tasks(environment, source.choose(state["source"], task_key, state["group"]))
        own = play(params, play_key, state["group"], task=task, start=start)
        begin, recorded = last_attempt(own)[:, None], episode_actions(environment, policy, own)
        turn = jnp.arange(policy.layout.num_turns)[None]
        at = jnp.minimum(begin + turn, policy.layout.num_turns - 1)
        there = begin + turn < jnp.sum(own.valid, axis=1)[:, None]
        actions, thoughts = (
            None
            if words is None
            else jnp.where(there[..., None], jnp.take_along_axis(words, at[..., None], axis=1), -1)
            for words in recorded
        )
        correction = transcribe(
            own.task,
            jax.tree.map(lambda leaf: jnp.repeat(leaf, group_size, axis=0), start),
            own.group,
            actions,
            there,
            own=None if thoughts is None else (thoughts, there),
        )
        corrected = own.success & correction.success & (begin[:, 0] > 0)
        weight = jnp.broadcast_to((turn >= begin)[..., None], own.tokens.shape).astype(jnp.float32)
        own = own.replace(bootstrap_value=None, extras={}, keep=jnp.ones_like(corrected), loss_weight=weight)
        correction = correction.replace(extras={}, keep=corrected, loss_weight=jnp.ones_like(weight))
        both = jax.tree.map(
            lambda *rows: jnp.stack(rows, axis=1).reshape(2 * len(rows[0]), *rows[0].shape[1:]), own, correction
        )
        share = Mean(total=jnp.sum(corrected, dtype=jnp.float32), count=jnp.float32(corrected.shape[0]))
        return state, both, dialogue_metrics(own) | {"corrected_fraction": share} | count_experience(own)

    return make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )


def last_attempt(episode: Episode) -> Array:
    """Returns the turn in which the last attempt of every episode begins, int32 `[B]`.

    Args:
        episode: B episodes; `extras["trials"]`, float32 `[B, T]`, is the number of trials begun after every turn.
            Without it, every turn is an attempt.
    """
    last = jnp.sum(episode.valid, axis=1) - 1
    if "trials" not in episode.extras:
        return last
    trials = episode.extras["trials"]
    count = jnp.take_along_axis(trials, last[:, None], axis=1)
    earlier = jnp.sum(episode.valid & (trials < count), axis=1)  # All before, except the one that began it.
    return earlier + (count[:, 0] > 1.0)

"""Agent-R (Yuan et al., 2025): own failures are cut where the policy doubts them, and continued along a good path."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.interventions import episode_actions, replay, with_interventions
from jaxagents.language.mistakes import noisy_expert
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber, reflect_after, reflection_tokens
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree


@struct.dataclass
class Revision:
    """A bad path that is continued along a good one.

    Attributes:
        actions: int32 `[N, T, M]`, actions, -1 after the end.
        cut: bool `[N, T]`, marks the last turn of the bad path.
        read: bool `[N, T]`, marks turns of the bad path, including the last one.
        place: int32 `[N, T]`, for the other turns, their index in the good path.
    """

    actions: Array
    cut: Array
    read: Array
    place: Array


def make_revision_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    doubt: float = 0.5,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_transcripts: int | None = None,
    transcripts_seed: int | None = None,
    noise: float = 0.0,
) -> Collector:
    """Makes a collector that alternates between good paths and revisions.

    A revision is the policy's own failed path up to the first action that the policy doubts, which has a probability
    below `doubt`, then a reflection, then the expert's path on the same task from where the two paths diverge. It is
    replayed, and replaced by the expert's path if it does not succeed. The bad path is read but not learned.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts.
        num_episodes: number of episodes per batch, over all devices; every other one may be a revision.
        doubt: probability in [0, 1] below which the policy considers its action bad.
        temperature: must be None or 1, because probabilities are the policy's own.
        level: level of the tasks; a list is cycled through.
        num_transcripts: number of different tasks in total; None: new tasks for every batch.
        transcripts_seed: seed of a fixed set of tasks, the same in every run and stage; None: every run has its own
            set.
        noise: noise of the expert, whose paths are the good ones.

    Returns:
        The collector; its batches are `Episode`s. `revised_fraction` is the fraction of revisions, `own_success_rate`
        the success rate of the policy.

    Raises:
        ValueError: a count is not positive, `doubt` is not a probability, or see `make_transcriber`.

    References:
        Yuan et al. (2025), "Agent-R: Training Language Model Agents to Reflect via Iterative Self-Training", section 3.
    """
    require_positive("num_episodes", num_episodes)
    require_between("doubt", doubt, 0.0, 1.0)
    if temperature not in (None, 1.0):
        raise ValueError(f"`temperature` must be null for probabilities of the policy's own, got {temperature}.")
    watched = with_interventions(environment)
    noisy = with_interventions(environment, noisy_expert(environment, noise))
    play = make_dialogue(watched, policy)
    transcribe = make_transcriber(environment, policy, num_aside=reflection_tokens(environment, policy))
    source = make_uniform(level=level, num_tasks=num_transcripts, tasks_seed=transcripts_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, play_key = jax.random.split(key)
        task, start, _ = start_tasks(watched, source.choose(state["source"], task_key, state["index"]))
        own = play(params, play_key, state["index"], task=task, start=start)
        own_actions, _ = episode_actions(environment, policy, own)
        good = replay(noisy, start, own_actions)
        good_actions = jnp.where(good.live[..., None], good.actions, -1)
        log_prob = jnp.sum(jnp.where(own.thought_mask, 0.0, own.behavior_log_prob), axis=2)
        revision = revise(own_actions, own.valid, log_prob < jnp.log(doubt), good_actions)
        revised = replay(watched, start, revision.actions)
        is_revised = (state["index"] % 2 == 1) & ~own.success & revised.success
        thoughts = good.thoughts
        if thoughts is not None:
            spliced = jnp.take_along_axis(thoughts, revision.place[..., None], axis=1)
            thoughts = where_rows(is_revised, spliced, thoughts)
        actions, live = where_rows(is_revised, (revised.actions, revised.live), (good_actions, good.live))
        episode = transcribe(
            task,
            (start[0].inner, start[1]),
            state["index"],
            actions,
            live,
            thoughts=thoughts,
            aside=reflect_after(environment, revision.cut & is_revised[:, None]),
            ignored=revision.read & is_revised[:, None],
        )
        count = jnp.float32(own.success.shape[0])
        metrics = {
            "revised_fraction": Mean(total=jnp.sum(is_revised, dtype=jnp.float32), count=count),
            "own_success_rate": Mean(total=jnp.sum(own.success, dtype=jnp.float32), count=count),
        }
        return state, episode, dialogue_metrics(episode) | metrics | count_experience(episode)

    return make_task_collector(collect, source, num_episodes, "num_episodes")


def revise(bad: Array, live: Array, doubted: Array, good: Array) -> Revision:
    """Splices a good path onto a bad one, after the first doubted turn of the bad one.

    Args:
        bad: int32 `[N, T, M]`, actions on the bad path.
        live: bool `[N, T]`, turns of the bad path that took place.
        doubted: bool `[N, T]`, turns that the policy considers bad.
        good: int32 `[N, T, M]`, actions on the good path, -1 after its end.

    Returns:
        The revision; without a doubted turn, the splice is after the last turn of the bad path. The good path continues
        from where the two diverge, because the turns before are in the bad path.
    """
    num_turns = bad.shape[1]
    turn = jnp.arange(num_turns)[None]
    last = jnp.sum(live, axis=1) - 1
    cut = jnp.where(jnp.any(doubted & live, axis=1), jnp.argmax(doubted & live, axis=1), last)[:, None]
    same = jnp.all(bad == good, axis=2) & live & (turn <= cut)
    num_shared = jnp.sum(jnp.cumprod(same, axis=1), axis=1)[:, None]
    place = jnp.clip(turn - cut - 1 + num_shared, 0, num_turns - 1)
    later = jnp.take_along_axis(good, place[..., None], axis=1)
    later = jnp.where((turn - cut - 1 + num_shared < num_turns)[..., None], later, -1)
    return Revision(
        actions=jnp.where((turn <= cut)[..., None], bad, later), cut=turn == cut, read=turn <= cut, place=place
    )

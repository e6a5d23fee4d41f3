"""NNetNav (Murty et al., 2024), Learn-by-interact (Su et al., 2025): segments of play as transcripts of own tasks."""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.interventions import IntervenedState, episode_actions, replay, with_interventions
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber
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
    State,
    Task,
    TimeStep,
)

Label = Callable[[State, State], tuple[Task, Array]]
"""`(state of the rules before, after) -> (task, bool [])`: a task that a segment of play achieved, if there is one."""


def make_stretch_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    label: Label,
    num_episodes: int,
    num_stretches: int = 2,
    kind: Literal["any", "prefixes"] = "any",
    every: int = 4,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
) -> Collector:
    """Makes a collector of segments of own episodes, as transcripts of the tasks that they solved.

    A segment is replayed from the start of its task, and ends with the success; if it does not succeed, it is not
    counted as a success. `learner.only_success` drops such segments.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts on tasks of the world.
        label: determines the task that a segment achieved, such as `environments.text.crafting_goals.made`.
        num_episodes: number of own episodes per batch, over all devices.
        num_stretches: K, number of segments per episode.
        kind: "any" draws the begin and end of a segment; "prefixes" takes the first `every`, `2 every`, ... turns, and
            none after the first segment that achieved nothing.
        every: number of turns between the ends of prefixes.
        temperature: sampling temperature; None: 1.
        level: level of the tasks that are played; a list is cycled through.

    Returns:
        The collector; its batches are `Episode`s of `num_episodes * K` rows. `labelled_fraction` is the fraction of
        successes.

    Raises:
        ValueError: a count is not positive, or the kind is unknown.

    References:
        Murty et al. (2024), "NNetNav", section 3 (`prefixes`); Su et al. (2025), "Learn-by-interact", section 2.2.
    """
    for name, count in (("num_episodes", num_episodes), ("num_stretches", num_stretches), ("every", every)):
        require_positive(name, count)
    if kind not in ("any", "prefixes"):
        raise ValueError(f"`kind` must be any or prefixes, got {kind!r}.")
    watched = with_interventions(environment)
    play = make_dialogue(watched, policy, sampling=Sampling(temperature=temperature))
    transcribe = make_transcriber(environment, policy)
    source = make_uniform(level=level)
    label_each = jax.vmap(label)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, play_key, cut_key, reset_key = jax.random.split(key, 4)
        asked, start, _ = start_tasks(watched, source.choose(state["source"], task_key, state["index"]))
        own = play(params, play_key, state["index"], task=asked, start=start)
        own_actions, thoughts = episode_actions(environment, policy, own)
        states = states_along(watched, start, own_actions)
        length = jnp.sum(own.valid, axis=1)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(cut_key, state["index"])
        begin, end = (leaf.reshape(-1) for leaf in stretches(keys, length, num_stretches, kind, every))
        row = jnp.repeat(jnp.arange(own_actions.shape[0]), num_stretches)
        before, after = (jax.tree.map(lambda leaf, at=at: leaf[row, at], states) for at in (begin, end))
        task, good = label_each(before, after)
        good = good & (end > begin)
        if kind == "prefixes":
            good = jnp.cumprod(good.reshape(-1, num_stretches), axis=1).reshape(-1).astype(bool)
        turn = begin[:, None] + jnp.arange(own_actions.shape[1])[None]
        there = (turn < end[:, None])[..., None]
        at = jnp.minimum(turn, own_actions.shape[1] - 1)
        actions = jnp.where(there, own_actions[row[:, None], at], -1)
        group = state["index"][row] * num_stretches + jnp.arange(row.shape[0]) % num_stretches
        fresh = jax.vmap(watched.reset)(jax.vmap(jax.random.fold_in, in_axes=(None, 0))(reset_key, group), task)
        played = replay(watched, fresh, actions)
        words = None
        if thoughts is not None:
            words = (jnp.where(there, thoughts[row[:, None], at], -1), there[..., 0])
        live = played.live & (jnp.arange(own_actions.shape[1])[None] < (end - begin)[:, None])
        episode = transcribe(task, (fresh[0].inner, fresh[1]), group, actions, live, own=words)
        episode = episode.replace(success=episode.success & good)
        rate = Mean(total=jnp.sum(episode.success, dtype=jnp.float32), count=jnp.float32(row.shape[0]))
        return state, episode, dialogue_metrics(own) | {"labelled_fraction": rate} | count_experience(own)

    return make_task_collector(collect, source, num_episodes, "num_episodes", temperature=temperature)


def stretches(keys: Array, length: Array, count: int, kind: str, every: int) -> tuple[Array, Array]:
    """Returns where segments of N episodes begin and end, int32 `[N, count]`, in turns; begin = end if they are empty.

    Args:
        keys: keys `[N]`.
        length: int32 `[N]`, numbers of turns of the episodes.
        count: number of segments per episode.
        kind: see `make_stretch_collector`.
        every: see `make_stretch_collector`.
    """
    if kind == "prefixes":
        end = jnp.broadcast_to(every * (1 + jnp.arange(count))[None], (length.shape[0], count))
        return jnp.zeros_like(end), jnp.where(end - every < length[:, None], jnp.minimum(end, length[:, None]), 0)

    def draw(key: Array, most: Array) -> tuple[Array, Array]:
        one, other = jax.random.randint(key, (2, count), 0, most + 1)
        return jnp.minimum(one, other), jnp.maximum(one, other)

    return jax.vmap(draw)(keys, length)


def states_along(environment: Environment, start: tuple[IntervenedState, TimeStep], actions: Array) -> State:
    """Returns the states of the rules before every turn and after the last, leaves `[N, T + 1, ...]`."""
    keys = jax.random.split(jax.random.key(0), actions.shape[0])  # Unused: there is no chance.

    def take(now: tuple[IntervenedState, TimeStep], given: Array) -> tuple[PyTree, State]:
        after = jax.vmap(environment.step)(keys, now[0], given)
        return after, after[0].inner.inner

    later = jax.lax.scan(take, start, jnp.swapaxes(actions, 0, 1))[1]
    return jax.tree.map(
        lambda one, rest: jnp.concatenate([one[:, None], jnp.swapaxes(rest, 0, 1)], axis=1), start[0].inner.inner, later
    )

"""LIMI (Xiao et al., 2025): few transcripts, chosen among many because they are complete, long, and recover."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.interventions import Replay, replay, with_interventions
from jaxagents.language.mistakes import noisy_expert
from jaxagents.language.tasks import start_tasks
from jaxagents.language.transcribe import make_transcriber
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, ChosenTasks, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree

Score = Callable[[Replay], Array]
"""`(P transcripts) -> float32 [P]`, of which the largest are chosen, and of equal ones the first."""


def complete_and_long(played: Replay) -> Array:
    """Scores transcripts that end in success by their turns and their mistakes; others not at all."""
    turns, mistakes = (jnp.sum(leaf, axis=1, dtype=jnp.float32) for leaf in (played.live, played.mistaken))
    return jnp.where(played.success, turns + mistakes, -1.0)


def longest(played: Replay) -> Array:
    """Scores transcripts by their turns."""
    return jnp.sum(played.live, axis=1, dtype=jnp.float32)


def any_transcript(played: Replay) -> Array:
    """Scores all transcripts the same."""
    return jnp.zeros(played.success.shape[0])


def verified(played: Replay) -> Array:
    """Scores transcripts that end in what the task asked for; others not at all (APIGen-MT)."""
    return played.success.astype(jnp.float32)


def make_selection_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    score: Score = complete_and_long,
    num_candidates: int = 1024,
    num_transcripts: int = 64,
    noise: float = 0.2,
    level: int | None = None,
    transcripts_seed: int | None = None,
) -> Collector:
    """Makes a collector of the best of an expert's transcripts, which are chosen once.

    Args:
        environment: a text world of one seat, single instance, in which chance has no part after the start.
        policy: whose tokens and layout are used.
        num_episodes: per batch, over all devices.
        score: what makes a transcript good.
        num_candidates: P, transcripts that are chosen from.
        num_transcripts: that are chosen.
        noise: of the expert, see `demonstrations.make_demonstrations`.
        level: of the tasks; None draws it.
        transcripts_seed: of the candidates, the same in every run and stage; None gives every run its own.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, or more are chosen than there are.

    References:
        Xiao et al. (2025), "LIMI: Less is More for Agency", section 3.
    """
    counts = {"num_episodes": num_episodes, "num_candidates": num_candidates, "num_transcripts": num_transcripts}
    for name, count in counts.items():
        require_positive(name, count)
    if num_transcripts > num_candidates:
        raise ValueError(f"`num_transcripts` must be at most {num_candidates} candidates, got {num_transcripts}.")
    noisy = with_interventions(environment, noisy_expert(environment, noise))
    transcribe = make_transcriber(environment, policy)

    def play(set_key: Array, item: Array) -> tuple[PyTree, PyTree, Replay]:
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(set_key, item)
        levels = None if level is None else jnp.full(item.shape, level)
        task, start, _ = start_tasks(noisy, ChosenTasks(key=keys, level=levels, item=item))
        nothing = jnp.zeros((item.shape[0], policy.layout.num_turns, *environment.action_space.shape), jnp.int32)
        return task, start, replay(noisy, start, nothing)

    def init(key: Array, params: Params) -> PyTree:
        del params
        set_key = key if transcripts_seed is None else jax.random.key(transcripts_seed)
        scores = score(play(set_key, jnp.arange(num_candidates, dtype=jnp.int32))[2])
        chosen = jnp.argsort(-scores, stable=True)[:num_transcripts].astype(jnp.int32)
        rows = jnp.arange(num_episodes, dtype=jnp.int32)
        # The same in every row: devices split the state of a collector.
        of_rows = {"set_key": jax.random.key_data(set_key), "chosen": chosen}
        return {"index": rows} | jax.tree.map(lambda leaf: jnp.tile(leaf[None], (num_episodes, 1)), of_rows)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, state["index"])
        item = jax.vmap(jax.random.choice)(keys, state["chosen"])
        task, start, played = play(jax.random.wrap_key_data(state["set_key"][0]), item)
        begin, thoughts = (start[0].inner, start[1]), played.thoughts
        episode = transcribe(task, begin, state["index"], played.actions, played.live, thoughts=thoughts)
        return state, episode, dialogue_metrics(episode) | count_experience(episode)

    return Collector(init=init, collect=collect, steps_per_collect=num_episodes, divided_option="num_episodes")

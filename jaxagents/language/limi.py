"""LIMI (Xiao et al., 2025): few transcripts, selected from many because they are complete, long, and recover."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.language.interventions import Replay
from jaxagents.language.mistakes import make_set_collector
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, LanguagePolicy

Score = Callable[[Replay], Array]
"""`(P transcripts) -> float32 [P]`; those with the largest scores are selected, with ties in order."""


def complete_and_long(played: Replay) -> Array:
    """Scores transcripts that end in success by their numbers of turns and mistakes; others get -1."""
    turns, mistakes = (jnp.sum(leaf, axis=1, dtype=jnp.float32) for leaf in (played.live, played.mistaken))
    return jnp.where(played.success, turns + mistakes, -1.0)


def longest(played: Replay) -> Array:
    """Scores transcripts by their numbers of turns."""
    return jnp.sum(played.live, axis=1, dtype=jnp.float32)


def any_transcript(played: Replay) -> Array:
    """Scores all transcripts equally."""
    return jnp.zeros(played.success.shape[0])


def verified(played: Replay) -> Array:
    """Scores transcripts that end in success with 1, others with 0 (APIGen-MT)."""
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
    """Makes a collector of the best transcripts of an expert, which are selected once.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy whose tokens and layout are used.
        num_episodes: number of episodes per batch, over all devices.
        score: quality of transcripts.
        num_candidates: P, number of transcripts to select from.
        num_transcripts: number of transcripts that are selected.
        noise: noise of the expert, see `demonstrations.make_demonstrations`.
        level: level of the tasks; None: random.
        transcripts_seed: seed of the candidates, the same in every run and stage; None: every run has its own
            candidates.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, or more transcripts are selected than there are.

    References:
        Xiao et al. (2025), "LIMI: Less is More for Agency", section 3.
    """
    counts = {"num_episodes": num_episodes, "num_candidates": num_candidates, "num_transcripts": num_transcripts}
    for name, count in counts.items():
        require_positive(name, count)
    if num_transcripts > num_candidates:
        raise ValueError(f"`num_transcripts` must be at most {num_candidates} candidates, got {num_transcripts}.")

    def select(play: Callable[[Array], Replay]) -> dict[str, Array]:
        scores = score(play(jnp.arange(num_candidates, dtype=jnp.int32)))
        return {"chosen": jnp.argsort(-scores, stable=True)[:num_transcripts].astype(jnp.int32)}

    return make_set_collector(
        environment,
        policy,
        num_episodes=num_episodes,
        noise=noise,
        levels=lambda item: None if level is None else jnp.full(item.shape, level),
        transcripts_seed=transcripts_seed,
        select=select,
        draw=lambda key, selected: jax.random.choice(key, selected["chosen"]),
    )

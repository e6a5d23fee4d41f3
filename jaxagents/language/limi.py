"""LIMI (Xiao et al., 2025): few transcripts, chosen among many because they are complete, long, and recover."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.language.interventions import Replay
from jaxagents.language.mistakes import make_set_collector
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, LanguagePolicy

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

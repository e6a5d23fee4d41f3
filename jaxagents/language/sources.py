"""AgentOhana (Zhang et al., 2024): fixed sets of rated transcripts from several sources; the source is drawn first."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.language.interventions import Replay
from jaxagents.language.mistakes import make_set_collector
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, LanguagePolicy


def make_source_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    sizes: int | Sequence[int] = 256,
    weights: Sequence[float] | None = None,
    rate: Callable[[Replay], Array] | None = None,
    least_rating: float = 4.0,
    noise: float = 0.2,
    level: int | Sequence[int] | None = None,
    transcripts_seed: int | None = None,
) -> Collector:
    """Makes a collector of a noisy expert's transcripts from several sources; the source is drawn first.

    `p(i) = w_s / sum_r w_r / n_s` for one of the n_s transcripts of source s that are good enough. A source is a level
    of the world, such as one of the worlds in a union. Samples depend on the global index of a row, so that mixture and
    order are the same for any number of devices.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy whose tokens and layout are used.
        num_episodes: number of episodes per batch, over all devices.
        sizes: number of transcripts of every source, one number for all or one for each.
        weights: w, weights of the sources; None: equal weights. The sizes as weights give the natural mixture.
        rate: rates transcripts from 0 to 5; None: all are good enough.
        least_rating: smallest rating that is good enough. In a source without any such transcript, all are.
        noise: noise of the expert, see `demonstrations.make_demonstrations`.
        level: levels used as sources; None: all levels of the world.
        transcripts_seed: seed of the sets, the same in every run and stage; None: every run has its own sets.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, or there is not one size and weight per source.

    References:
        Zhang et al. (2024), "AgentOhana: Design Unified Data and Training Pipeline for Effective Agent Learning",
        sections 3.2 and 3.3; Song et al. (2025), "Agent Data Protocol" (without ratings).
    """
    require_positive("num_episodes", num_episodes)
    levels = range(environment.text.num_levels) if level is None else (level,) if isinstance(level, int) else level
    levels = tuple(levels)
    counts = (sizes,) * len(levels) if isinstance(sizes, int) else tuple(sizes)
    shares = (1.0,) * len(levels) if weights is None else tuple(weights)
    for name, values in (("sizes", counts), ("weights", shares)):
        if len(values) != len(levels) or min(values) < 0 or not sum(values) > 0:
            raise ValueError(f"`{name}` must be {len(levels)} numbers, one per source, got {list(values)}.")
    source = np.repeat(np.arange(len(levels)), counts)

    def select(play: Callable[[Array], Replay]) -> dict[str, Array]:
        rating = jnp.full(len(source), jnp.inf)
        if rate is not None:
            rating = rate(play(jnp.arange(len(source), dtype=jnp.int32)))
        return {"logits": jnp.log(probabilities(jnp.asarray(source), jnp.asarray(shares), rating >= least_rating))}

    return make_set_collector(
        environment,
        policy,
        num_episodes=num_episodes,
        noise=noise,
        levels=lambda item: jnp.asarray(levels, jnp.int32)[jnp.asarray(source)[item]],
        transcripts_seed=transcripts_seed,
        select=select,
        draw=lambda key, selected: jax.random.categorical(key, selected["logits"]).astype(jnp.int32),
    )


def probabilities(source: Array, weights: Array, good: Array) -> Array:
    """Computes the probability of each transcript, `w_s / sum w / n_s`, float32 `[K]`; 0 if it is not good.

    Args:
        source: int32 `[K]`, source s of each transcript.
        weights: float32 `[S]`, weights of the sources.
        good: bool `[K]`, whether transcripts are good; in a source that has no good ones, all count as good.
    """
    num_good = jnp.zeros_like(weights).at[source].add(good)
    good = good | (num_good == 0.0)[source]
    count = jnp.zeros_like(weights).at[source].add(good)
    share = jnp.where(count > 0.0, weights, 0.0)
    return jnp.where(good, (share / jnp.sum(share) / jnp.maximum(count, 1.0))[source], 0.0)


def rating(played: Replay) -> Array:
    """Rates transcripts from 0 to 5, float32 `[P]`: `5 (1 - mistakes / turns)` if they succeed, else 0.

    A last turn that succeeds is not a mistake, even if the expert would have acted differently.
    """
    last = played.live & ~jnp.pad(played.live[:, 1:], ((0, 0), (0, 1)))
    mistakes = jnp.sum(played.mistaken & ~last, axis=1)
    return jnp.where(played.success, 5.0 * (1.0 - mistakes / jnp.maximum(jnp.sum(played.live, axis=1), 1)), 0.0)

"""How often a policy thinks in each of the styles that `environments.text.styles` distinguishes."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jaxagents.environments.text.styles import STYLES, style_of
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree


def make_styled_collector(
    environment: Environment, policy: LanguagePolicy, *, axis_name: str | None = None, **options: Any
) -> Collector:
    """Makes a collector of dialogues that also reports the styles in which the policy thought.

    Args:
        environment: unbatched text world of arithmetic.
        policy: policy that acts and thinks.
        axis_name: see `collect.make_dialogue_collector`.
        **options: further arguments of that function.

    Returns:
        The collector. Further metrics, for the first turns: `style_<name>`, the fraction of thoughts in a style, and
        `largest_style`, the fraction of the most frequent one in a batch of one device; over updates and devices, whose
        most frequent styles may differ, it is the mean of these.

    Raises:
        ValueError: there is no room for thoughts.

    References:
        Zhao et al. (2025), "Echo Chamber: RL Post-training Amplifies Behaviors Learned in Pretraining", section 3.
    """
    if not policy.layout.thought:
        raise ValueError("`policy.thought_tokens` must be positive for styles of thoughts, got 0; try 24.")
    inner = make_dialogue_collector(environment, policy, axis_name=axis_name, **options)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        return state, episode, dict(metrics) | style_metrics(policy, environment.text.words, episode)

    return inner._replace(collect=collect)


def style_metrics(policy: LanguagePolicy, words: Sequence[str], episode: Episode) -> dict[str, Mean]:
    """Computes the fractions of styles in the first turns of episodes.

    Args:
        policy: policy whose tokens the episodes have.
        words: words of the world.
        episode: B episodes.

    Returns:
        The metrics, see `make_styled_collector`.
    """
    style = style_of(recorded_words(policy, episode)[1][:, 0], words)
    counts = jnp.stack([jnp.sum(style == index, dtype=jnp.float32) for index in range(len(STYLES))])
    total = jnp.float32(style.shape[0])
    shares = {f"style_{name}": Mean(total=count, count=total) for name, count in zip(STYLES, counts, strict=True)}
    return shares | {"largest_style": Mean(total=jnp.max(counts), count=total)}

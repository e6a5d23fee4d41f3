"""Transcripts as plain text: observations are learned, too, not only actions (continual pre-training)."""

from typing import Any

import jax.numpy as jnp

from jaxagents.language.demonstrations import make_demonstration_collector
from jaxagents.language.early_experience import with_observations_sampled
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree


def make_corpus_collector(
    environment: Environment, policy: LanguagePolicy, *, axis_name: str | None = None, **options: Any
) -> Collector:
    """Makes a collector of expert transcripts of which all tokens are learned, `L = -sum_i log p(x_i | x_<i)`.

    Args:
        environment: unbatched text world.
        policy: policy whose tokens and layout are used.
        axis_name: not used; transcripts are numbered over all devices.
        **options: arguments of `demonstrations.make_demonstration_collector`.

    Returns:
        The collector; its batches are `Episode`s. Tokens of observations count as thoughts, so that their weight is
        `learner.thought_weight`, and that of thoughts and actions is `learner.action_weight`.

    References:
        Zhuang et al. (2025), "Hephaestus: Improving Fundamental Agent Capabilities of Large Language Models through
        Continual Pre-Training", section 3.
    """
    inner = make_demonstration_collector(environment, policy, **options)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        return state, learn_everything(episode), metrics

    return inner._replace(collect=collect)


def learn_everything(episode: Episode) -> Episode:
    """Returns episodes in which all tokens except a turn's first mark are learned; prompts are only read."""
    layout = episode.layout
    column = jnp.arange(layout.turn)[None, None]
    learned = episode.token_mask & (column > 0)
    observed = learned & (column < layout.observation)
    return episode.replace(action_mask=learned, thought_mask=observed, layout=with_observations_sampled(layout))

"""Transcripts as plain text: observations are learned as well as actions (continual pre-training)."""

from typing import Any

import jax.numpy as jnp

from jaxagents.language.demonstrations import make_demonstration_collector
from jaxagents.language.early_experience import with_observations_sampled
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree


def make_corpus_collector(
    environment: Environment, policy: LanguagePolicy, *, axis_name: str | None = None, **options: Any
) -> Collector:
    """Makes a collector of an expert's transcripts of which all tokens are learned, `L = -sum_i log p(x_i | x_<i)`.

    Args:
        environment: a text world, single instance.
        policy: whose tokens and layout are used.
        axis_name: not used; transcripts go by their numbers over all devices.
        **options: of `demonstrations.make_demonstration_collector`.

    Returns:
        The collector; its batches are `Episode`s. Tokens of observations count as thoughts, so that
        `learner.thought_weight` is their weight, and `learner.action_weight` that of what is thought and done.

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
    """Returns episodes of which all tokens but the first mark of a turn are learned; prompts are read."""
    layout = episode.layout
    column = jnp.arange(layout.turn)[None, None]
    learned = episode.token_mask & (column > 0)
    observed = learned & (column < layout.observation)
    return episode.replace(action_mask=learned, thought_mask=observed, layout=with_observations_sampled(layout))

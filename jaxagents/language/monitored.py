"""A monitor of thoughts (Baker et al., 2025): rewards are reduced if a thought contains forbidden words."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree


def make_monitored_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    words: Sequence[str] = ("cheat",),
    penalty: float = 1.0,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of dialogues with rewards `r_t - penalty [the thought of turn t has one of the words]`.

    Args:
        environment: unbatched text world.
        policy: policy that acts and thinks.
        words: words that the monitor looks for. A thought that cannot be parsed has none.
        penalty: lambda, in units of the reward; 0: only monitors.
        axis_name: see `collect.make_dialogue_collector`.
        **options: further arguments of that function.

    Returns:
        The collector. Further metrics: `flagged`, the fraction of episodes with such a thought, and for each of `parts`
        the fraction of episodes in which it is reported, flagged or not (`<part>`) and not flagged
        (`unflagged_<part>`).

    Raises:
        ValueError: there is no room for thoughts, or the world lacks a word.

    References:
        Baker et al. (2025), "Monitoring Reasoning Models for Misbehavior and the Risks of Promoting Obfuscation".
    """
    if not policy.layout.thought:
        raise ValueError("`policy.thought_tokens` must be positive to be monitored, got 0; try 24.")
    if absent := [word for word in words if word not in environment.text.words]:
        raise ValueError(f"`words` must be of {environment.name!r}, got {absent[0]!r}; try +wrapper=exploit.")
    ids = jnp.asarray([environment.text.words.index(word) for word in words], jnp.int32)
    inner = make_dialogue_collector(environment, policy, axis_name=axis_name, **options)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        flags = flag(recorded_words(policy, episode)[1], ids) & episode.valid
        seen = jnp.any(flags, axis=1)
        rates = {"flagged": seen}
        for name in options.get("parts", ()):
            done = jnp.any((episode.extras[name] > 0) & episode.valid, axis=1)
            rates |= {name: done, f"unflagged_{name}": done & ~seen}
        shares = {
            name: Mean(total=jnp.sum(one, dtype=jnp.float32), count=jnp.float32(one.shape[0]))
            for name, one in rates.items()
        }
        return state, episode.replace(reward=episode.reward - penalty * flags), {**metrics, **shares}

    return inner._replace(collect=collect)


def flag(thoughts: Array, ids: Array) -> Array:
    """Returns which thoughts, int32 `[B, T, H]`, contain one of the words, int32 `[W]`; bool `[B, T]`."""
    return jnp.any(jnp.isin(thoughts, ids), axis=2)

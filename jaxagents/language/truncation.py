"""Tokens drawn among the most probable ones alone: exact top-k, top-p and min-p without sorting the vocabulary."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.policies.contexts import Rows, score_tokens, to_rows, unfold
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree

_MAX_LOGITS, _MAX_TOKENS = 2**24, 4096  # That exist, and that go through the model, at once.


def truncate(
    logits: Array,
    *,
    temperature: Array | float | None = None,
    top_k: int | None = None,
    top_p: Array | float | None = None,
    min_p: Array | float | None = None,
) -> Array:
    """Leaves out all tokens but the most probable ones.

    With p the probabilities at the temperature, first the `top_k` most probable tokens stay; of these the fewest most
    probable ones whose mass is at least `top_p` of theirs; of these the ones with `p >= min_p max p`. Tokens that are
    as probable as the last one that stays also stay, so that the most probable ones always do.

    All three are thresholds. Those of `top_k` and `top_p` are found by bisection over the representations of the
    numbers from 0 to infinity, which are whole numbers in the same order: 31 sums over the vocabulary, exact to the
    last bit.

    Args:
        logits: float32 `[..., V]`; what is -inf stays so.
        temperature: `[]` or `[...]`, divides the logits for the thresholds; None is 1.
        top_k: how many tokens; None leaves it out.
        top_p: `[]` or `[...]`, share of the mass in (0, 1]; None leaves it out.
        min_p: `[]` or `[...]`, share of the greatest probability in [0, 1]; None leaves it out.

    Returns:
        The logits, -inf for tokens that are left out.

    Raises:
        ValueError: `top_k` is not positive.

    References:
        Holtzman et al. (2020), "The Curious Case of Neural Text Degeneration", equations 2 and 3 (`top_p`).
        Nguyen et al. (2025), "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", section 3.
    """
    below = jnp.max(logits, axis=-1, keepdims=True) - logits  # 0 for the most probable token.
    keep = jnp.ones_like(below, bool)
    if top_k is not None:
        require_positive("top_k", top_k)
        keep = below <= _reach(below, jnp.ones_like(below), jnp.float32(min(top_k, below.shape[-1])))
    if top_p is not None or min_p is not None:
        heat = 1.0 if temperature is None else jnp.maximum(_column(temperature, logits), 1e-6)
        probability = jnp.where(keep, jnp.exp(-below / heat), 0.0)  # The greatest one is 1.
        if top_p is not None:
            share = _column(top_p, logits)
            # All of it is also what a sum would not notice.
            wanted = jnp.where(share < 1.0, share * jnp.sum(probability, axis=-1, keepdims=True), jnp.inf)
            keep &= below <= _reach(below, probability, wanted)
        if min_p is not None:
            keep &= probability >= _column(min_p, logits)
    return jnp.where(keep, logits, -jnp.inf)


def make_truncated_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of dialogues whose tokens are drawn among the most probable ones, see `truncate`.

    Its episodes are those of `collect.make_dialogue_collector`: `behavior_log_prob` is of the whole policy, which costs
    one pass over the batch, and `sampling_log_prob` of what tokens were drawn from.

    Args:
        environment: a text world, single instance.
        policy: acts.
        temperature: divides the logits; None is 1.
        top_k: see `truncate`.
        top_p: see `truncate`.
        min_p: see `truncate`.
        axis_name: see `collect.make_dialogue_collector`.
        **options: of `collect.make_dialogue_collector`.

    Returns:
        The collector.

    Raises:
        ValueError: a setting is out of range.
    """
    settings = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    settings = {name: value for name, value in settings.items() if value is not None}
    if top_k is not None:
        require_positive("top_k", top_k)
    for name in {"top_p", "min_p"} & settings.keys():
        require_between(name, settings[name], 0.0, 1.0)

    def logits(params: Params, hidden: Array) -> Array:
        said = policy.model.logits(params, hidden)
        return truncate(said, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)

    restricted = policy._replace(model=policy.model._replace(logits=logits))
    inner = make_dialogue_collector(environment, restricted, temperature=temperature, axis_name=axis_name, **options)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        own = params[0] if options.get("partner") else params
        log_prob = jnp.where(episode.action_mask, _log_prob(policy, own, episode), 0.0)
        return state, episode.replace(behavior_log_prob=log_prob), metrics

    return inner._replace(collect=collect, tempering={**inner.tempering, **settings})


def _reach(below: Array, weight: Array, wanted: Array) -> Array:
    """Returns the least t with `sum of weight where below <= t` at least `wanted`, infinity without one, `[..., 1]`."""

    # A sum in one order never falls when a term grows: there is one place where it reaches what is wanted.
    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        reached = jnp.where(below <= jax.lax.bitcast_convert_type(middle, jnp.float32), weight, 0.0)
        enough = jnp.sum(reached, axis=-1, keepdims=True) >= wanted
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    low = jnp.zeros((*below.shape[:-1], 1), jnp.int32)
    high = jnp.full_like(low, jax.lax.bitcast_convert_type(jnp.float32(jnp.inf), jnp.int32))
    return jax.lax.bitcast_convert_type(jax.lax.fori_loop(0, 31, halve, (low, high))[1], jnp.float32)


def _column(setting: Array | float, logits: Array) -> Array:
    """Returns a scalar or `[...]` as `[..., 1]`."""
    return jnp.broadcast_to(jnp.asarray(setting, jnp.float32), logits.shape[:-1])[..., None]


def _log_prob(policy: LanguagePolicy, params: Params, episode: Episode) -> Array:
    """Scores the tokens of episodes under the whole policy, `[B, T, S]`, some rows at once."""
    rows = to_rows(episode)
    size = rows.tokens[0].size
    at_once = max(1, min(_MAX_LOGITS // (policy.model.vocab_size * size), _MAX_TOKENS // size))

    def score(row: Rows) -> Array:
        one = jax.tree.map(lambda leaf: leaf[None], row)
        return score_tokens(policy.model, params, one, episode.layout, fields=("log_prob",)).log_prob[0]  # type: ignore[index]

    return unfold(episode.layout, jax.lax.map(score, rows, batch_size=at_once))

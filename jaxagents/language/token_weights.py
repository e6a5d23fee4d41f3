"""Weights of the tokens of calls in transcripts: TL-Training's key tokens, and Agent-FLAN's capabilities.

An action begins with words that all actions of its kind share, followed by a name: `call open order elm` has the name
`open` after `call`. Actions without fields are themselves names.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.words import pad_all
from jaxagents.language.mistakes import make_mistake_collector
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree

FORMAT, NAME, ARGUMENT = range(3)


@struct.dataclass
class ActionTokens:
    """The tokens of actions, `[B, T, A]`.

    Attributes:
        mask: bool, whether the token belongs to the action.
        kind: int32, FORMAT (words that all actions of the kind share, and end marks), NAME or ARGUMENT.
        key: bool, marks the first token of the name, and every token at which it diverges from another name with the
            same beginning.
    """

    mask: Array
    kind: Array
    key: Array


class Heads(NamedTuple):
    """The beginnings of H actions, int32 numpy `[H, L]`, the sizes of the shared part and the whole, and key tokens."""

    tokens: np.ndarray
    shared: np.ndarray
    size: np.ndarray
    key: np.ndarray


def key_tokens(tokens: ActionTokens, *, max_weight: float = 9.0) -> Array:
    """Computes `w_i n / sum w` over the n tokens of a call: w = min(others / keys, max_weight) for key tokens, else 1.

    Args:
        tokens: tokens of actions.
        max_weight: largest weight of a key token, relative to others; it is larger than 1 only if keys are the
            minority.

    Returns:
        float32 `[B, T, A]`.

    References:
        Ye et al. (2024), "TL-Training: A Task-Feature-Based Framework for Training Large Language Models in Tool Use",
        eq. 3 and 4.
    """
    key, count = tokens.key & tokens.mask, jnp.sum(tokens.mask, axis=2, keepdims=True)
    keys = jnp.sum(key, axis=2, keepdims=True)
    more = jnp.minimum((count - keys) / jnp.maximum(keys, 1), max_weight)
    weight = jnp.where(key, jnp.maximum(more, 1.0), 1.0) * tokens.mask
    return weight * count / jnp.maximum(jnp.sum(weight, axis=2, keepdims=True), 1e-6)


def capabilities(tokens: ActionTokens, *, form: float = 0.25, name: float = 0.5, argument: float = 1.0) -> Array:
    """Returns weights by what a token requires: the format, the choice of a tool, or its arguments.

    Args:
        tokens: tokens of actions.
        form: weight of words that all actions share, and of end marks, which are learned quickly.
        name: weight of the tool's name.
        argument: weight of everything else.

    Returns:
        float32 `[B, T, A]`.

    References:
        Chen et al. (2024), "Agent-FLAN: Designing Data and Methods of Effective Agent Tuning for Large Language
        Models", section 3.2.
    """
    return jnp.asarray([form, name, argument], jnp.float32)[tokens.kind] * tokens.mask


def make_weighted_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    weigh: Callable[[ActionTokens], Array],
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of expert transcripts in which the tokens of actions are weighted.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy whose tokens and layout are used.
        weigh: computes the weights of tokens: `key_tokens` or `capabilities`.
        axis_name: not used; transcripts are numbered over all devices.
        **options: arguments of `mistakes.make_mistake_collector`.

    Returns:
        The collector; its batches are `Episode`s with a `loss_weight`.
    """
    inner, read = make_mistake_collector(environment, policy, **options), make_reader(environment, policy)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        weight = weigh(read(episode))
        before = episode.tokens.shape[2] - weight.shape[2]
        weight = jnp.pad(weight, ((0, 0), (0, 0), (before, 0)), constant_values=1.0)
        given = 1.0 if episode.loss_weight is None else episode.loss_weight
        return state, episode.replace(loss_weight=given * weight), metrics

    return inner._replace(collect=collect)


def make_reader(environment: Environment, policy: LanguagePolicy) -> Callable[[Episode], ActionTokens]:
    """Makes the function that finds names and key tokens in the actions of episodes.

    Raises:
        ValueError: the world has no rules that define how its actions are built.
    """
    if environment.text is None or environment.text.rules is None:
        raise ValueError(f"`environment` must be a text world that is made of rules, got {environment.name!r}.")
    heads, width, is_end = _heads(environment, policy), policy.layout.action, policy.tokenizer.is_end
    tokens, size = jnp.asarray(heads.tokens[None, None, :, :width]), jnp.asarray(heads.size)
    key = jnp.asarray(np.pad(heads.key, ((0, 0), (0, max(0, width - heads.key.shape[1]))))[:, :width])

    def read(episode: Episode) -> ActionTokens:
        tokens_of_action, mask = episode.tokens[..., -width:], episode.action_mask[..., -width:]
        begins = tokens_of_action[:, :, None, : tokens.shape[3]] == tokens
        begins = jnp.all(begins | (tokens < 0), axis=3)  # [B, T, H]
        head = jnp.argmax(begins * size[None, None], axis=2)
        known, place = jnp.any(begins, axis=2)[..., None], jnp.arange(width)[None, None]
        shared, last = jnp.asarray(heads.shared)[head][..., None], size[head][..., None]
        kind = jnp.where(place < shared, FORMAT, jnp.where(place < last, NAME, ARGUMENT))
        kind = jnp.where(is_end(tokens_of_action), FORMAT, jnp.where(known, kind, ARGUMENT))
        return ActionTokens(mask=mask, kind=kind.astype(jnp.int32), key=key[head] & known & mask)

    return read


def _heads(environment: Environment, policy: LanguagePolicy) -> Heads:
    """Finds the beginnings of actions: shared words, and the name."""
    begins: dict[tuple[int, ...], int] = {}  # Tokens of both, and the number of them that are shared.
    for elements in environment.text.rules.grammar.elements:
        literals = list(itertools.takewhile(lambda one: one.kind == "literal", elements))
        shared = [word for one in literals for word in one.phrases[0]]
        rest = elements[len(literals) :]
        listed = rest[0].phrases if rest and rest[0].kind == "listed" else ((),)
        for phrase in listed:
            tokens = _tokens(environment, policy, [*shared, *phrase])
            begins[tokens] = len(_tokens(environment, policy, shared)) if phrase and shared else 0
    rows, shared_sizes = list(begins), np.asarray(list(begins.values()), np.int32)
    sizes = np.asarray([len(row) for row in rows], np.int32)
    key = np.zeros((len(rows), max(sizes) + 1), bool)
    for row, (own, start) in enumerate(begins.items()):
        key[row, start] = True
        for other in rows:
            common = next((i for i, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), None)
            common = min(len(own), len(other)) if common is None else common
            if other != own and common > start:
                key[row, common] = True
    return Heads(pad_all([np.asarray(row, np.int32) for row in rows]), shared_sizes, sizes, key)


def _tokens(environment: Environment, policy: LanguagePolicy, words: list[str]) -> tuple[int, ...]:
    if not words:
        return ()
    ids = jnp.asarray([environment.text.words.index(word) for word in words], jnp.int32)
    tokens, mask = policy.lexicon.render(ids, max(policy.lexicon.max_tokens((np.asarray(ids)[None],)), 1))
    return tuple(np.asarray(tokens)[np.asarray(mask)].tolist())

"""Language models as records of functions, and statistics of given tokens under them."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from jaxagents.networks.transformer import Transformer
from jaxagents.types import Array, CausalMask, LanguageModel, Params, PyTree, TokenStatistics

_LOGITS_ON_CPU, _MOST_LOGITS = 2**24, 2**30
_KEPT = "token_statistics"  # Name of values that the backward pass does not recompute.
_BYTES_PER_LOGIT = 64  # Memory per logit: logits and copies take about 13 bytes, a fifth of it.


def make_language_model(vocab_size: int, *, network: Callable[..., nn.Module] = Transformer) -> LanguageModel:
    """Makes a language model from a decoder.

    Args:
        vocab_size: V, size of the vocabulary.
        network: `(vocab_size=V) -> module` with the methods and attributes of `networks.decoder.Decoder`, such as
            `functools.partial(Transformer, num_layers=4)`. The `mask` of its `__call__` and `extend` may be a
            `CausalMask`, which `networks.attention.dense_mask` turns into an array.

    Returns:
        The model; its parameters are those of the module.
    """
    module = network(vocab_size=vocab_size)

    def init(key: Array) -> Params:
        tokens = jnp.zeros((1, 1), jnp.int32)
        return module.init(key, tokens, tokens, jnp.ones((1, 1, 1), bool), method="everything")

    def apply(params: Params, tokens: Array, *, positions: Array, mask: Array | CausalMask) -> Array:
        return module.apply(params, tokens, positions, mask)

    def extend(
        params: Params, cache: PyTree, tokens: Array, *, positions: Array, index: Array, mask: Array | CausalMask
    ) -> tuple[PyTree, Array]:
        return module.apply(params, cache, tokens, positions, index, mask, method="extend")

    def logits(params: Params, hidden: Array) -> Array:
        return module.apply(params, hidden, method="logits")

    def value(params: Params, hidden: Array) -> Array:
        return module.apply(params, hidden, method="value")

    return LanguageModel(
        init=init,
        apply=apply,
        init_cache=module.init_cache,
        extend=extend,
        logits=logits,
        value=value if module.value_head else None,
        vocab_size=vocab_size,
        max_positions=module.max_positions,
    )


def token_statistics(
    model: LanguageModel,
    params: Params,
    hidden: Array,
    tokens: Array,
    *,
    fields: Collection[str] = ("log_prob", "entropy"),
    temperature: Array | float | None = None,
    max_logits: int | None = None,
) -> TokenStatistics:
    """Computes log-probabilities of tokens and entropies without storing the logits of many positions.

    Args:
        model: language model that computes logits from hidden states.
        params: parameters of the model.
        hidden: `[..., D]`; `hidden[..., i, :]` is the state at the position *before* `tokens[..., i]`.
        tokens: int32 `[...]`.
        fields: names of the statistics to compute, `log_prob` and `entropy`.
        temperature: number by which the logits are divided; None is 1.
        max_logits: greatest number of logits in memory at once; with more positions than that allows, they are computed
            in chunks, and again in the backward pass. None: 16.8 M (67 MB) on CPUs; for accelerators, where every chunk
            reads the vocabulary's kernel and adds to its gradient, see `logits_at_once`.

    Returns:
        The statistics, `[...]`.
    """

    def statistics(hidden: Array, tokens: Array) -> TokenStatistics:
        logits = model.logits(params, hidden)
        return _statistics(logits if temperature is None else logits / temperature, tokens, fields)

    if max_logits is None:
        max_logits = _logits_of_device()
    num_positions = tokens.size
    chunk = max(1, max_logits // model.vocab_size)
    if num_positions <= chunk:
        return statistics(hidden, tokens)
    num_chunks = -(-num_positions // chunk)
    chunk = -(-num_positions // num_chunks)
    padding = num_chunks * chunk - num_positions
    flat_hidden = jnp.pad(hidden.reshape(num_positions, -1), ((0, padding), (0, 0)))
    flat_tokens = jnp.pad(tokens.reshape(num_positions), (0, padding))
    chunks = (flat_hidden.reshape(num_chunks, chunk, -1), flat_tokens.reshape(num_chunks, chunk))
    policy = jax.checkpoint_policies.save_only_these_names(_KEPT)
    result = jax.lax.map(jax.checkpoint(lambda inputs: statistics(*inputs), policy=policy), chunks)
    return jax.tree.map(lambda x: x.reshape(-1)[:num_positions].reshape(tokens.shape), result)


def logits_at_once(memory: float) -> int:
    """Returns how many logits `token_statistics` computes at once on accelerators with this memory, at most 2^30."""
    return int(min(_MOST_LOGITS, memory / _BYTES_PER_LOGIT))


def _logits_of_device() -> int:
    if jax.default_backend() == "cpu":
        return _LOGITS_ON_CPU
    memory = jax.local_devices()[0].memory_stats() or {}
    return logits_at_once(memory.get("bytes_limit", _MOST_LOGITS * _BYTES_PER_LOGIT))


def _statistics(logits: Array, tokens: Array, fields: Collection[str]) -> TokenStatistics:
    """Computes the statistics from logits `[..., V]`."""
    log_prob, entropy = _compute(logits, tokens, tuple(name in fields for name in ("log_prob", "entropy")))
    return TokenStatistics(log_prob=log_prob, entropy=entropy)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _compute(logits: Array, tokens: Array, wanted: tuple[bool, ...]) -> tuple[Array | None, Array | None]:
    """Computes log-probabilities and entropies; the backward pass reads the logits once.

    With probabilities `p`, the gradients of `log p_k` and of the entropy `H` are `1_k - p` and `-p (log p + H)`.
    """
    return _compute_forward(logits, tokens, wanted)[0]


def _compute_forward(logits: Array, tokens: Array, wanted: tuple[bool, ...]) -> tuple[Any, Any]:
    largest = jnp.max(logits, axis=-1, keepdims=True)
    shifted = logits - largest
    unnormalized = jnp.exp(shifted)
    total = jnp.sum(unnormalized, axis=-1)
    log_total = jnp.log(total)
    log_prob = entropy = None
    if wanted[0]:
        # A comparison and a sum, because the gradient of a gather is a scatter, which is slow on every backend.
        log_prob = jnp.sum(jnp.where(_is_token(logits, tokens), shifted, 0.0), axis=-1) - log_total
    if wanted[1]:
        entropy = log_total - jnp.sum(unnormalized * shifted, axis=-1) / total
    kept = checkpoint_name((largest, total, entropy), _KEPT)
    return (log_prob, entropy), (logits, tokens, kept)


def _compute_backward(wanted: tuple[bool, ...], residuals: Any, gradients: Any) -> tuple[Array, None]:
    (logits, tokens, (largest, total, entropy)), (of_log_prob, of_entropy) = residuals, gradients
    shifted, total = logits - largest, total[..., None]
    probability = jnp.exp(shifted) / total
    gradient = jnp.zeros_like(logits)
    if wanted[0]:
        of_log_prob = of_log_prob[..., None]
        gradient = jnp.where(_is_token(logits, tokens), of_log_prob, 0.0) - of_log_prob * probability
    if wanted[1]:
        gradient -= of_entropy[..., None] * probability * (shifted - jnp.log(total) + entropy[..., None])
    return gradient, None


_compute.defvjp(_compute_forward, _compute_backward)


def _is_token(logits: Array, tokens: Array) -> Array:
    return jnp.arange(logits.shape[-1]).reshape((1,) * tokens.ndim + (-1,)) == tokens[..., None]

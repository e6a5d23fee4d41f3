"""Who sees whom in rows of tokens: bits for all pairs, or numbers per token from which they are made when needed."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array, CausalMask


def attention_mask(query: tuple[Array, Array], key: tuple[Array, Array, Array], *, context_turns: int) -> Array:
    """Says which tokens see which: their agent's own, of recent turns, and the prompt. What comes later is left to you.

    Args:
        query: turn and agent of the tokens that see, `[..., q]`; turns are counted by agent, -1 is the prompt.
        key: turn, agent and mask of the tokens that are seen, `[..., k]`.
        context_turns: own turns that are seen, the present one included.

    Returns:
        bool `[..., q, k]`.
    """
    (turn, agent), (key_turn, key_agent, key_mask) = (tuple(x[..., :, None] for x in query), key)
    key_turn, key_agent, key_mask = (x[..., None, :] for x in (key_turn, key_agent, key_mask))
    prompt = key_turn < 0
    return key_mask & (prompt | ((agent == key_agent) & (turn - key_turn < context_turns)))


def causal_mask(present: Array) -> CausalMask:
    """Returns the mask of tokens, where `present` bool `[B, W]` says that they are any, that see all before them."""
    nothing = jnp.zeros(present.shape, jnp.int32)
    return CausalMask(turn=nothing, agent=nothing, present=present, context_turns=1)


def dense_mask(mask: Array | CausalMask, *, index: Array | int = 0, size: int | None = None) -> Array:
    """Makes the bits of all pairs.

    Args:
        mask: of the keys; bits `[B, S, W]` are returned as they are.
        index: the key that the first query is.
        size: S, queries; None: as many as keys.

    Returns:
        bool `[B, S, W]`, the query sees the key.
    """
    if not isinstance(mask, CausalMask):
        return mask
    turn, agent = (queries_of(x, index=index, size=size) for x in (mask.turn, mask.agent))
    key = (mask.turn, mask.agent, mask.present)
    visible = attention_mask((turn, agent), key, context_turns=mask.context_turns)
    num_queries, num_keys = visible.shape[1:]
    if num_queries == num_keys:
        return visible & jnp.tril(jnp.ones((num_keys, num_keys), bool))[None]
    return visible & (jnp.arange(num_keys)[None] <= index + jnp.arange(num_queries)[:, None])[None]


def queries_of(of_keys: Array, *, index: Array | int, size: int | None) -> Array:
    """Returns what is known of the queries among `[B, W]` of the keys, `[B, S]`; for the arguments see `dense_mask`."""
    if size is None or size == of_keys.shape[1]:
        return of_keys
    return jax.lax.dynamic_slice_in_dim(of_keys, index, size, axis=1)

"""Logits of large vocabularies."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def make_logits(hidden: Array, kernel: Array) -> Array:
    """Computes `hidden kernel`, summed up and kept in float32 whatever the types are.

    Where the hidden states are of half precision, so are the products of the backward pass: their inputs are the
    gradient of the logits, rounded, and the other factor; sums are float32. Left alone, these products take a float32
    input, which costs accelerators twice the time or more.

    Args:
        hidden: `[..., D]`.
        kernel: `[D, V]`, of the same type.

    Returns:
        float32 `[..., V]`.

    References:
        Micikevicius et al. (2018), "Mixed Precision Training", section 3.
    """
    if hidden.dtype == jnp.float32:
        return jnp.dot(hidden, kernel, preferred_element_type=jnp.float32)
    return _half(hidden, kernel)


@jax.custom_vjp
def _half(hidden: Array, kernel: Array) -> Array:
    return jnp.dot(hidden, kernel, preferred_element_type=jnp.float32)


def _forward(hidden: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half(hidden, kernel), (hidden, kernel)


def _backward(inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    hidden, kernel = inputs
    gradient = gradient.astype(hidden.dtype)
    of_hidden = jnp.einsum("...v,dv->...d", gradient, kernel)
    of_kernel = jnp.einsum("...d,...v->dv", hidden, gradient)
    return of_hidden, of_kernel


_half.defvjp(_forward, _backward)

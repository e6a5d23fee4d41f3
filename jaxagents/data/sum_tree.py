"""A binary tree of sums, which draws leaves in proportion to their values in logarithmic time.

A tree over `P` leaves, a power of two, is one array `[2 P]`: node 1 is the root, node `i` has the children `2 i` and `2
i + 1`, and the leaves start at `P`. Parents are recomputed from their children, never updated by differences, so that
rounding errors do not accumulate and repeated indices do no harm.
"""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def init_sum_tree(num_leaves: int) -> Array:
    """Returns a tree of zeros, float32 `[2 P]`, with room for `num_leaves` leaves."""
    return jnp.zeros(2 << (num_leaves - 1).bit_length(), jnp.float32)


def get_leaves(nodes: Array, indices: Array) -> Array:
    """Returns the values of leaves at int `[K]`, float32 `[K]`."""
    return nodes[nodes.shape[0] // 2 + indices]


def set_leaves(nodes: Array, indices: Array, values: Array) -> Array:
    """Sets the values of leaves, and updates all nodes above them.

    Args:
        nodes: float32 `[2 P]`.
        indices: int `[K]`; if a leaf is repeated, one of its values is used.
        values: float32 `[K]`, non-negative.

    Returns:
        The new tree, `[2 P]`.
    """
    num_leaves = nodes.shape[0] // 2

    def ascend(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        nodes, node = carry
        node = node // 2
        return nodes.at[node].set(nodes[2 * node] + nodes[2 * node + 1]), node

    node = num_leaves + indices
    nodes, _ = jax.lax.fori_loop(0, num_leaves.bit_length() - 1, ascend, (nodes.at[node].set(values), node))
    return nodes


def sample_leaves(nodes: Array, key: Array, num_samples: int) -> Array:
    """Draws leaves in proportion to their values, one from each of `num_samples` equal parts of the total.

    Args:
        nodes: float32 `[2 P]`; if the total is zero, leaf 0 is drawn.
        key: PRNG key.
        num_samples: K, number of leaves to draw.

    Returns:
        Indices int32 `[K]`.

    References:
        Schaul et al. (2016), appendix B.2.1.
    """
    num_leaves = nodes.shape[0] // 2
    fractions = (jnp.arange(num_samples) + jax.random.uniform(key, (num_samples,))) / num_samples
    rest = fractions * nodes[1]

    def descend(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        node, rest = carry
        left = nodes[2 * node]
        # Rounding may raise the rest to the total, where there is nothing to the right.
        go_left = (rest < left) | (nodes[2 * node + 1] <= 0.0)
        return 2 * node + jnp.where(go_left, 0, 1), jnp.where(go_left, rest, rest - left)

    root = jnp.ones(num_samples, jnp.int32)
    node, _ = jax.lax.fori_loop(0, num_leaves.bit_length() - 1, descend, (root, rest))
    return node - num_leaves

"""Selection in populations: which members replace which, and how copies are changed."""

import jax
import jax.numpy as jnp

from jaxagents.types import Array


def truncation_selection(key: Array, fitness: Array, *, fraction: float = 0.2) -> tuple[Array, Array]:
    """Replaces the worst members of a population by copies of members drawn from the best.

    Args:
        key: PRNG key.
        fitness: `[P]`, higher is better; NaN counts as the worst.
        fraction: share of the population that is replaced, and from which replacements are drawn; at least one member.

    Returns:
        `(source, replaced)`: int32 `[P]`, the member from which each member continues, and bool `[P]`, whether that is
        another member.

    Raises:
        ValueError: there are fewer than two members, or the fraction is outside (0, 0.5].

    References:
        Jaderberg et al. (2017), Population Based Training of Neural Networks, section 4.1.
    """
    num_members = fitness.shape[0]
    if num_members < 2:
        raise ValueError(f"`fitness` must be of a population of at least 2, got {num_members}.")
    if not 0.0 < fraction <= 0.5:
        raise ValueError(f"`fraction` must be above 0 and at most 0.5, got {fraction}; try 0.2.")
    count = max(1, int(num_members * fraction))
    order = jnp.argsort(jnp.where(jnp.isnan(fitness), -jnp.inf, fitness))
    chosen = jax.random.randint(key, (count,), num_members - count, num_members)
    source = jnp.arange(num_members).at[order[:count]].set(order[chosen]).astype(jnp.int32)
    return source, source != jnp.arange(num_members)


def perturb(key: Array, value: Array, replaced: Array, *, factors: tuple[float, float] = (0.8, 1.2)) -> Array:
    """Multiplies the values of replaced members by one of two factors, drawn per member: `[P]`."""
    low, high = factors
    factor = jnp.where(jax.random.bernoulli(key, shape=value.shape), high, low)
    return jnp.where(replaced, value * factor, value).astype(value.dtype)

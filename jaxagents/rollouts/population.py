"""Experience of a population: every member acts in its own environments."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Collector, Environment, Metrics, Params, Policy, PyTree, State


def make_population_collector(
    environment: Environment, policy: Policy, *, inner: Callable[..., Collector], num_members: int
) -> Collector:
    """Makes a collector of P parallel batches, for `learners.population.population`.

    Args:
        environment: single instance.
        policy: policy of a member.
        inner: `(environment, policy) -> Collector` of a member.
        num_members: P, number of members, at least 1.

    Returns:
        The collector: params and batches have a leading axis of size P, metrics are means over all members, and the
            steps of all members count.

    Raises:
        ValueError: `num_members` is not positive.
    """
    if num_members < 1:
        raise ValueError(f"`num_members` must be at least 1, got {num_members}; try 8.")
    collector = inner(environment, policy)

    def init(key: Array, params: Params) -> State:
        # The environment axis stays first, because devices split it.
        return jax.vmap(lambda k: collector.init(k, params), out_axes=1)(jax.random.split(key, num_members))

    def collect(state: State, params: Params, key: Array) -> tuple[State, PyTree, Metrics]:
        keys = jax.random.split(key, num_members)
        state, batch, metrics = jax.vmap(collector.collect, in_axes=(1, 0, 0), out_axes=(1, 0, 0))(state, params, keys)
        return state, batch, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), metrics)

    steps = num_members * collector.steps_per_collect
    return collector._replace(init=init, collect=collect, steps_per_collect=steps)

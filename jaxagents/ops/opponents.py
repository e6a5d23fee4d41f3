"""Pools of opponents: earlier parameters of a policy, their results, and a choice of the next opponent.

A pool is a ring of K sets of parameters. Weights over its members are functions of the pool alone; `sample` draws
indices by such weights, `take` returns their parameters, and `record` counts the results of games against them.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, Params


@struct.dataclass
class OpponentPool:
    """K places for opponents, of which at least the first is filled.

    Attributes:
        params: leaves `[K, ...]`.
        score: float32 `[K]`, sum of the learner's scores against each: 1 for a win, 0.5 for a draw.
        games: float32 `[K]`, number of games against each.
        num_added: int32, number of opponents added so far; the next one gets place `num_added % K`.
    """

    params: Params
    score: Array
    games: Array
    num_added: Array


def init_pool(params: Params, capacity: int) -> OpponentPool:
    """Makes a pool with one opponent.

    Args:
        params: parameters of the first opponent, because a pool is never empty.
        capacity: K, greatest number of opponents; a further one replaces the oldest.

    Returns:
        The pool.

    Raises:
        ValueError: the capacity is below 1.
    """
    if capacity < 1:
        raise ValueError(f"`capacity` of an opponent pool must be at least 1, got {capacity}; try 16.")
    return OpponentPool(
        params=jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], capacity, axis=0), params),
        score=jnp.zeros(capacity, jnp.float32),
        games=jnp.zeros(capacity, jnp.float32),
        num_added=jnp.ones((), jnp.int32),
    )


def add(pool: OpponentPool, params: Params, *, when: Array | bool = True) -> OpponentPool:
    """Adds an opponent, which replaces the oldest one in a full pool.

    Args:
        pool: pool to which it is added.
        params: parameters of the opponent.
        when: bool `[]`; False leaves the pool unchanged.

    Returns:
        The pool.
    """
    index, when = pool.num_added % pool.score.shape[0], jnp.asarray(when)

    def put(leaf: Array, value: Array | float) -> Array:
        return leaf.at[index].set(jnp.where(when, value, leaf[index]))

    return OpponentPool(
        params=jax.tree.map(put, pool.params, params),
        score=put(pool.score, 0.0),
        games=put(pool.games, 0.0),
        num_added=pool.num_added + when.astype(jnp.int32),
    )


def record(
    pool: OpponentPool, index: Array, score: Array, finished: Array, *, decay: float = 1.0, axis_name: str | None = None
) -> OpponentPool:
    """Counts the results of games.

    Args:
        pool: pool of the opponents.
        index: int32 `[...]`, places of the opponents.
        score: `[...]`, score of the learner: 1 for a win, 0.5 for a draw, 0 for a loss.
        finished: bool `[...]`, False if there is no game to count.
        decay: factor for all earlier counts, because the learner has changed since.
        axis_name: mapped axis over whose members the games are spread.

    Returns:
        The pool.
    """
    weight = finished.astype(jnp.float32).ravel()
    zeros = jnp.zeros_like(pool.games)
    counts = (
        zeros.at[index.ravel()].add(jnp.where(finished, score, 0.0).ravel()),
        zeros.at[index.ravel()].add(weight),
    )
    new_score, new_games = counts if axis_name is None else jax.lax.psum(counts, axis_name)
    return pool.replace(score=decay * pool.score + new_score, games=decay * pool.games + new_games)


def taken(pool: OpponentPool) -> Array:
    """Returns bool `[K]`, which places hold an opponent."""
    return jnp.arange(pool.score.shape[0]) < pool.num_added


def win_rate(pool: OpponentPool) -> Array:
    """Computes the learner's mean score against every place, `(score + 1/2) / (games + 1)`, float32 `[K]`."""
    return (pool.score + 0.5) / (pool.games + 1.0)


def latest(pool: OpponentPool) -> Array:
    """Returns weights `[K]` that are 1 for the latest opponent and 0 for others: self-play."""
    capacity = pool.score.shape[0]
    return (jnp.arange(capacity) == (pool.num_added - 1) % capacity).astype(jnp.float32)


def uniform(pool: OpponentPool) -> Array:
    """Returns weights `[K]` that are 1 for all opponents: fictitious self-play over the history."""
    return taken(pool).astype(jnp.float32)


def hard(pool: OpponentPool, *, power: float = 2.0) -> Array:
    """Computes weights `(1 - p)^power` for win rates p: prioritised fictitious self-play against hard opponents.

    Args:
        pool: pool of K opponents.
        power: exponent; 0 is `uniform`.

    Returns:
        float32 `[K]`.

    References:
        Vinyals et al. (2019), Grandmaster level in StarCraft II using multi-agent reinforcement learning, methods.

    Deviation: half a point in one game is added to the win rate, so that it is defined for new opponents.
    """
    return jnp.where(taken(pool), jnp.power(1.0 - win_rate(pool), power), 0.0)


def even(pool: OpponentPool) -> Array:
    """Computes weights `p (1 - p)` for win rates p: prioritised fictitious self-play against equal opponents.

    Args:
        pool: pool of K opponents.

    Returns:
        float32 `[K]`.

    References:
        Vinyals et al. (2019), methods.
    """
    rate = win_rate(pool)
    return jnp.where(taken(pool), rate * (1.0 - rate), 0.0)


def sample(key: Array, weights: Array, shape: tuple[int, ...] = ()) -> Array:
    """Draws places in proportion to weights, int32 of this shape."""
    return jax.random.categorical(key, jnp.log(weights), shape=shape).astype(jnp.int32)


def take(pool: OpponentPool, index: Array) -> Params:
    """Returns the parameters of places, leaves `[*index.shape, ...]`."""
    return jax.tree.map(lambda leaf: leaf[index], pool.params)

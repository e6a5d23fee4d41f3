"""Populations of learners, as a combinator: members have different hyper-parameters, and better ones are copied."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import FRACTIONS
from jaxagents.learners.combinators import params_of, side_by_side, wrap
from jaxagents.ops.selection import perturb, truncation_selection
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Learner,
    Mean,
    Metrics,
    Params,
    PyTree,
    Rollout,
    State,
)


@struct.dataclass
class PopulationState:
    """States of P learners.

    Attributes:
        inner: states of the members, leaves `[P, ...]`.
        fitness: float32 `[P]`, running mean of the returns; NaN before the first episode has ended.
        params: parameters of the fittest member.
        update: int32, number of updates so far.
    """

    inner: Any
    fitness: Array
    params: Params
    update: Array


def population(
    learner: Learner,
    num_members: int,
    *,
    explore: Mapping[str, tuple[float, float]],
    evolve_every: int = 20,
    fraction: float = 0.2,
    memory: float = 0.8,
    axis_name: str | None = None,
) -> Learner:
    """Turns a learner into a population whose members train in parallel: population-based training.

    Every `evolve_every` updates, the worst members continue from the states of members drawn from the best, with their
    hyper-parameters multiplied by 0.8 or 1.2; fractions such as a discount are capped at 1. The fitness of a member is
    a running mean of the sum of its rewards per episode that ended. To train independent copies, see
    `training.program.over_seeds`.

    Args:
        learner: learner that keeps the numbers of `explore` in its state, as all learners do that sweep without
            compiling again.
        num_members: P; batches have a leading axis of this size, see `rollouts.population.make_population_collector`.
        explore: `{name: (low, high)}`: initial hyper-parameters of members, log-uniform in this range. They are leaves
            of the state with these names, such as `entropy_coefficient`, or `learning_rate` of the optimiser.
        evolve_every: number of updates between selections.
        fraction: see `ops.selection.truncation_selection`.
        memory: weight of the earlier fitness in the running mean, in [0, 1).
        axis_name: mapped axis over which a batch is spread.

    Returns:
        The learner. `state.params` are those of the fittest member; the collector acts with those of all, `[P, ...]`.
        Metrics are means over members, besides `fitness`, `best_fitness`, and the hyper-parameters of the fittest.

    Raises:
        ValueError: the population has fewer than two members, a range is not positive, or (at `init`) the state lacks a
            named number.

    References:
        Jaderberg et al. (2017), Population Based Training of Neural Networks.
    """
    if num_members < 2 or evolve_every < 1:
        raise ValueError(
            f"`num_members` must be at least 2 and `evolve_every` at least 1, got {num_members} and {evolve_every}."
        )
    if not 0.0 <= memory < 1.0:
        raise ValueError(f"`memory` must be in [0, 1), got {memory}; try 0.8.")
    for name, (low, high) in explore.items():
        if not 0.0 < low <= high:
            raise ValueError(f"`explore.{name}` must be a positive range, got ({low}, {high}).")
        if name in FRACTIONS and high > 1.0:
            raise ValueError(f"`explore.{name}` must be a range in (0, 1], got ({low}, {high}).")
    truncation_selection(jax.random.key(0), jnp.zeros(num_members), fraction=fraction)
    together = side_by_side(learner, num_members)

    def init(key: Array, start: PopulationState | Params | None = None) -> PopulationState:
        draw_key, key = jax.random.split(key)
        if isinstance(start, PopulationState) and start.fitness.shape == (num_members,):
            start = start.inner
        elif start is not None:
            start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_members, *leaf.shape)), params_of(start))
        members = together.init(key, start)
        _require_names(members, explore)
        members = _change(
            members, explore, lambda i, name, leaf: _draw(jax.random.fold_in(draw_key, i), *explore[name], leaf)
        )
        return PopulationState(
            inner=members,
            fitness=jnp.full(num_members, jnp.nan, jnp.float32),
            params=jax.tree.map(lambda leaf: leaf[0], members.params),
            update=jnp.zeros((), jnp.int32),
        )

    def update(state: PopulationState, key: Array, batch: Rollout) -> tuple[PopulationState, Metrics]:
        learn_key, select_key, change_key = jax.random.split(key, 3)
        members, metrics = together.update(state.inner, learn_key, batch)
        fitness = _mean_return(state.fitness, batch, memory, axis_name)
        now = (state.update + 1) % evolve_every == 0
        source, replaced = truncation_selection(select_key, fitness, fraction=fraction)
        source = jnp.where(now, source, jnp.arange(num_members))
        members, fitness = jax.tree.map(lambda leaf: leaf[source], (members, fitness))

        def change(index: int, name: str, leaf: Array) -> Array:
            changed = perturb(jax.random.fold_in(change_key, index), leaf, replaced & now)
            return jnp.minimum(changed, 1.0) if name in FRACTIONS else changed

        members = _change(members, explore, change)
        known = ~jnp.isnan(fitness)
        best = jnp.argmax(jnp.where(known, fitness, -jnp.inf))
        own: dict[str, Any] = {
            "fitness": Mean(total=jnp.nansum(fitness), count=jnp.sum(known).astype(jnp.float32)),
            "best_fitness": Mean(total=jnp.nan_to_num(fitness[best]), count=known[best].astype(jnp.float32)),
        }
        own |= {f"best_{name}": leaf[best] for name, leaf in _find(members, explore).items()}
        params = jax.tree.map(lambda leaf: leaf[best], members.params)
        state = PopulationState(inner=members, fitness=fitness, params=params, update=state.update + 1)
        return state, {**{name: _mean_of_members(value) for name, value in metrics.items()}, **own}

    return wrap(together, init, update)


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    num_members: int = 8,
    explore: Mapping[str, tuple[float, float]],
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a population of agents of one kind; its policy is that of a single member.

    Args:
        environment: environment that defines the spaces.
        inner: `(environment, *, axis_name) -> Agent`, the kind of agent; with a replay buffer, every member has its
            own.
        num_members: see `population`.
        explore: see `population`.
        axis_name: see `population`.
        **options: further arguments of `population`.
    """
    agent = inner(environment, axis_name=axis_name)
    ranges = {name: (float(low), float(high)) for name, (low, high) in explore.items()}

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        def collect(state: State, params: Params, key: Array) -> tuple[State, PyTree, Metrics]:
            members = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_members, *leaf.shape)), params)
            state, batch, metrics = collector.collect(state, members, key)
            return state, jax.tree.map(lambda leaf: leaf[0], batch), metrics

        # A member needs the shapes of batches for a single member.
        learner = agent.make_learner(collector._replace(collect=collect), num_updates)
        return population(learner, num_members, explore=ranges, axis_name=axis_name, **options)

    return Agent(policy=agent.policy, make_learner=make_learner)


def _mean_return(fitness: Array, batch: Rollout, memory: float, axis_name: str | None) -> Array:
    transition = batch.transition
    axes = tuple(range(1, transition.terminated.ndim))
    sums = (
        jnp.sum(transition.reward, axis=tuple(range(1, transition.reward.ndim))),
        jnp.sum((transition.terminated | transition.truncated).astype(jnp.float32), axis=axes),
    )
    rewards, episodes = sums if axis_name is None else jax.lax.psum(sums, axis_name)
    mean = rewards / jnp.maximum(episodes, 1.0)
    moved = jnp.where(jnp.isnan(fitness), mean, memory * fitness + (1.0 - memory) * mean)
    return jnp.where(episodes > 0.0, moved, fitness)


def _mean_of_members(value: Any) -> Any:
    """Computes the mean over members, each weighted by how often it was counted."""
    if isinstance(value, Mean):
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), value)
    return jnp.mean(value, axis=0)


def _draw(key: Array, low: float, high: float, leaf: Array) -> Array:
    return jnp.exp(jax.random.uniform(key, leaf.shape, minval=jnp.log(low), maxval=jnp.log(high))).astype(leaf.dtype)


def _name(path: tuple[Any, ...]) -> str:
    last = path[-1]
    return str(getattr(last, "key", getattr(last, "name", "")))


def _change(tree: PyTree, names: Mapping[str, Any], function: Callable[[int, str, Array], Array]) -> PyTree:
    """Maps the leaves with these names by `(index of the name, name, leaf) -> leaf`."""
    places = {name: place for place, name in enumerate(sorted(names))}

    def change(path: tuple[Any, ...], leaf: Array) -> Array:
        name = _name(path)
        return function(places[name], name, leaf) if name in places else leaf

    return jax.tree_util.tree_map_with_path(change, tree)


def _find(tree: PyTree, names: Mapping[str, Any]) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): leaf for path, leaf in leaves if path and _name(path) in names}


def _require_names(tree: PyTree, names: Mapping[str, Any]) -> None:
    known = {_name(path) for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if path and leaf.ndim == 1}
    missing = sorted(set(names) - known)
    if missing:
        raise ValueError(
            f"`explore` must name numbers in the state of the learner, got {', '.join(missing)}; it has "
            f"{', '.join(sorted(known))}."
        )

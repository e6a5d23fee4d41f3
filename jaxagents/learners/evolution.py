"""Evolution strategies: a distribution of policies moves towards its members with higher returns."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import params_of
from jaxagents.types import Agent, Array, Collector, Environment, Learner, Mean, Metrics, Params, Policy, Rollout


@struct.dataclass
class EvolutionState:
    """State of the strategy, its members, which act, leaves `[P, ...]`, and the mean of its distribution."""

    strategy: Any
    members: Params
    params: Params


def make_evolution(
    policy: Policy,
    make_strategy: Callable[..., Any],
    num_members: int,
    *,
    settings: Mapping[str, float] | None = None,
    axis_name: str | None = None,
) -> Learner:
    """Turns an evolution strategy of evosax (Lange, 2022) into a learner of `Rollout`s of all members.

    The fitness of a member is the sum of its rewards divided by the number of episode fragments in its rollout. In
    every environment this is one more than the number of episodes that ended, because members begin in the middle of
    others' episodes.

    Args:
        policy: policy whose parameters evolve.
        make_strategy: `(population_size, solution) -> strategy` from `evosax.algorithms`.
        num_members: P, an even number; batches have a leading axis of this size.
        settings: parameters of the strategy to replace, by name, such as `std_init`; None: no changes.
        axis_name: mapped axis over which the environments are spread.

    Returns:
        The learner; `state.params` is the mean of the distribution, and the collector acts with all members.

    Raises:
        ValueError: the number of members is odd, or the strategy lacks a named parameter.
    """
    if num_members < 2 or num_members % 2:
        raise ValueError(f"`num_members` must be even and at least 2, got {num_members}; try 32.")
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    strategy = make_strategy(population_size=num_members, solution=zeros)
    constants = strategy.default_params
    unknown = sorted(set(settings or {}) - set(vars(constants)))
    if unknown:
        raise ValueError(
            f"`settings` must be parameters of the strategy, got {', '.join(unknown)}; it has "
            f"{', '.join(sorted(vars(constants))) or 'none'}."
        )
    constants = constants.replace(**(settings or {}))

    def init(key: Array, start: EvolutionState | Params | None = None) -> EvolutionState:
        init_key, strategy_key, ask_key = jax.random.split(key, 3)
        params = policy.init(init_key) if start is None else params_of(start)
        # The library broadcasts over ranks, which callers may have forbidden.
        with jax.numpy_rank_promotion("allow"):
            state = strategy.init(strategy_key, params, constants)
            members, state = strategy.ask(ask_key, state, constants)
        return _settled(EvolutionState(strategy=state, members=members, params=params))

    def update(state: EvolutionState, key: Array, batch: Rollout) -> tuple[EvolutionState, Metrics]:
        tell_key, ask_key = jax.random.split(key)
        fitness = _fitness(batch, axis_name)
        # A strategy minimises.
        with jax.numpy_rank_promotion("allow"):
            inner, _ = strategy.tell(tell_key, state.members, -fitness, state.strategy, constants)
            members, inner = strategy.ask(ask_key, inner, constants)
        means = {"fitness": jnp.mean(fitness), "best_fitness": jnp.max(fitness), "loss": -jnp.mean(fitness)}
        metrics = {name: Mean(total=value, count=jnp.ones(())) for name, value in means.items()}
        state = EvolutionState(strategy=inner, members=members, params=strategy.get_mean(inner))
        return _settled(state), metrics

    return Learner(init=init, update=update, acting=lambda state: state.members)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., Policy],
    strategy: Callable[..., Any],
    num_members: int = 32,
    settings: Mapping[str, float] | None = None,
    axis_name: str | None = None,
) -> Agent:
    """Assembles an evolution strategy for an environment.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> Policy`.
        strategy: see `make_evolution`.
        num_members: see `make_evolution`; must agree with the collector.
        settings: see `make_evolution`.
        axis_name: see `make_evolution`.

    Returns:
        The agent; its policy is that of a single member.
    """
    made = policy(environment.observation_space, environment.action_space)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        del collector, num_updates
        return make_evolution(made, strategy, num_members, settings=settings, axis_name=axis_name)

    return Agent(policy=made, make_learner=make_learner)


def _settled(state: EvolutionState) -> EvolutionState:
    """Fixes the types of Python numbers, so that all updates use the same compiled program."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


def _fitness(batch: Rollout, axis_name: str | None) -> Array:
    """Returns the mean reward of every member per episode fragment, float32 `[P]`, over all devices."""
    transition = batch.transition
    axes = tuple(range(1, transition.terminated.ndim))
    ended = transition.terminated | transition.truncated
    sums = (
        jnp.sum(transition.reward, axis=tuple(range(1, transition.reward.ndim))),
        jnp.sum(ended, axis=axes, dtype=jnp.float32) + transition.terminated.shape[2],
    )
    rewards, pieces = sums if axis_name is None else jax.lax.psum(sums, axis_name)
    return rewards / pieces

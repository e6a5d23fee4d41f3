"""Bonuses for novelty, which are added to the environment's rewards before a learner of rollouts sees them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import rollout_shapes, start_of_inner, wrap, wrapper_agent
from jaxagents.ops.statistics import RunningStatistics, init_statistics, update_statistics
from jaxagents.types import (
    REPLICATED,
    Agent,
    Array,
    Box,
    Environment,
    Learner,
    Metrics,
    Params,
    PyTree,
    Rollout,
    State,
    Transition,
)


class Bonus(NamedTuple):
    """A function with memory that gives a bonus for novel transitions.

    Attributes:
        init: `(key, shapes of transitions [T, B] over all devices) -> state`.
        apply: `(state, transition [T, B]) -> (bonus float32 [T, B], state, metrics)`, which also learns from the
            transitions.
        partition: `(state) -> pytree` of int like the state, the axis that devices split; None: nothing is split.
    """

    init: Callable[[Array, Transition], State]
    apply: Callable[[State, Transition], tuple[Array, State, Metrics]]
    partition: Callable[[State], PyTree] | None = None


@struct.dataclass
class BonusState:
    """States of the inner learner and the bonus, and the coefficient, float32: changing it needs no new compilation."""

    inner: Any
    bonus: State
    coefficient: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


def with_bonus(
    learner: Learner,
    bonus: Bonus,
    shapes: Callable[[], Rollout],
    *,
    coefficient: float = 1.0,
    only: bool = False,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner of rollouts whose rewards are `reward + coefficient bonus`.

    Args:
        learner: learner for rollouts with one stream of rewards.
        bonus: bonus of the steps.
        shapes: function that returns the shapes of a rollout over all devices.
        coefficient: coefficient of the bonus, in units of the reward.
        only: whether to leave out the rewards of the environment.
        axis_name: mapped device axis.

    Returns:
        The learner. Metrics: `bonus`, the mean before multiplication, and those of the bonus.

    Raises:
        ValueError: the coefficient is negative.
    """
    if coefficient < 0.0:
        raise ValueError(f"`coefficient` must not be negative, got {coefficient}; try 0 for no bonus.")

    def init(key: Array, start: BonusState | Params | None = None) -> BonusState:
        inner_key, bonus_key = jax.random.split(key)
        continued = isinstance(start, BonusState)
        return BonusState(
            inner=learner.init(inner_key, start_of_inner(start, BonusState)),
            bonus=start.bonus if continued else bonus.init(bonus_key, shapes().transition),
            coefficient=jnp.float32(coefficient),
        )

    def update(state: BonusState, key: Array, rollout: Rollout) -> tuple[BonusState, Metrics]:
        transition = rollout.transition
        paid, own, bonus_metrics = bonus.apply(state.bonus, transition)
        paid = jax.lax.stop_gradient(paid)
        reward = state.coefficient * paid + (0.0 if only else transition.reward)
        inner, metrics = learner.update(state.inner, key, rollout.replace(transition=transition.replace(reward=reward)))
        bonus_metrics = {**bonus_metrics, "bonus": jnp.mean(paid)}
        bonus_metrics = bonus_metrics if axis_name is None else jax.lax.pmean(bonus_metrics, axis_name)
        return state.replace(inner=inner, bonus=own), {**metrics, **bonus_metrics}

    def partition(state: BonusState, of_inner: PyTree) -> BonusState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        of_bonus = replicated.bonus if bonus.partition is None else bonus.partition(state.bonus)
        return replicated.replace(inner=of_inner, bonus=of_bonus)

    return wrap(learner, init, update, partition=partition)


def make_product_bonus(
    observation_space: Box,
    action_space: Any,
    *,
    factors: Mapping[str, Callable[..., Bonus]],
    axis_name: str | None = None,
) -> Bonus:
    """Makes the product of several bonuses, such as an episodic bonus and one over the whole training.

    Args:
        observation_space: observation space of the world.
        action_space: action space of the world.
        factors: factors by name, each `(observation_space, action_space, *, axis_name) -> Bonus`.
        axis_name: mapped device axis over which rollouts are split.

    Returns:
        The bonus. Metrics: those of the factors, and the mean of each factor, all as `<name>/<metric>`.

    Raises:
        ValueError: there are no factors.

    References:
        Henaff, Jiang and Raileanu (2023), A study of global and episodic bonuses for exploration in contextual MDPs,
        section 5.
    """
    if not factors:
        raise ValueError("`factors` must be at least one bonus, got none; try those of algorithm=e3b and noveld.")
    made = {part: make(observation_space, action_space, axis_name=axis_name) for part, make in factors.items()}

    def init(key: Array, transition: Transition) -> dict[str, State]:
        keys = jax.random.split(key, len(made))
        return {part: bonus.init(key, transition) for key, (part, bonus) in zip(keys, made.items(), strict=True)}

    def apply(state: dict[str, State], transition: Transition) -> tuple[Array, dict[str, State], Metrics]:
        paid, states = {}, {}
        metrics: dict[str, Any] = {}
        for part, bonus in made.items():
            paid[part], states[part], own_metrics = bonus.apply(state[part], transition)
            metrics[f"{part}/mean"] = jnp.mean(paid[part])
            metrics |= {f"{part}/{key}": value for key, value in own_metrics.items()}
        return jnp.prod(jnp.stack(list(paid.values())), axis=0), states, metrics

    def partition(state: dict[str, State]) -> dict[str, PyTree]:
        def of(part: str) -> PyTree:
            if made[part].partition is None:
                return jax.tree.map(lambda leaf: REPLICATED, state[part])
            return made[part].partition(state[part])

        return {part: of(part) for part in made}

    return Bonus(init=init, apply=apply, partition=partition)


@struct.dataclass
class NormalizedState:
    """State of the inner bonus, and statistics of its values."""

    inner: State
    paid: RunningStatistics


def make_normalized_bonus(
    observation_space: Box, action_space: Any, *, inner: Callable[..., Bonus], axis_name: str | None = None
) -> Bonus:
    """Makes a bonus that is divided by its running standard deviation, so that coefficients have the same unit.

    Args:
        observation_space: observation space of the world.
        action_space: action space of the world.
        inner: `(observation_space, action_space, *, axis_name) -> Bonus`.
        axis_name: mapped device axis over which rollouts are split.

    Returns:
        The bonus. Metrics: those of the inner bonus, and `deviation`, by which it was divided.

    References:
        Henaff, Jiang and Raileanu (2023), A study of global and episodic bonuses for exploration in contextual MDPs
        (official code: intrinsic rewards divided by their running deviation).
    """
    made = inner(observation_space, action_space, axis_name=axis_name)

    def init(key: Array, transition: Transition) -> NormalizedState:
        return NormalizedState(inner=made.init(key, transition), paid=init_statistics(jnp.zeros(())))

    def apply(state: NormalizedState, transition: Transition) -> tuple[Array, NormalizedState, Metrics]:
        bonus, own, metrics = made.apply(state.inner, transition)
        paid = update_statistics(state.paid, bonus, axis_name=axis_name)
        scale = jax.lax.rsqrt(paid.variance + 1e-8)
        return bonus * scale, NormalizedState(inner=own, paid=paid), {**metrics, "deviation": 1.0 / scale}

    def partition(state: NormalizedState) -> NormalizedState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated if made.partition is None else replicated.replace(inner=made.partition(state.inner))

    return Bonus(init=init, apply=apply, partition=partition)


def flatten(observation: Array, space: Box) -> Array:
    """Makes float32 vectors `[..., D]` from observations of a space.

    Args:
        observation: `[..., *space.shape]`.
        space: space of one observation.
    """
    return observation.astype(jnp.float32).reshape((*observation.shape[: observation.ndim - len(space.shape)], -1))


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    bonus: Callable[..., Bonus],
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent of rollouts that also receives a bonus for novelty.

    Args:
        environment: environment of one agent.
        inner: `(environment, *, axis_name) -> Agent`, which learns from the rewards.
        bonus: `(observation_space, action_space, *, axis_name) -> Bonus`.
        axis_name: see `with_bonus`.
        **options: further arguments of `with_bonus`.

    Raises:
        ValueError: there is a team, or see `with_bonus`.
    """
    if environment.num_agents:
        raise ValueError(f"`num_agents` must be 0 for bonuses, got {environment.num_agents}; try `learner=ppo`.")
    agent = inner(environment, axis_name=axis_name)
    writer = bonus(environment.observation_space, environment.action_space, axis_name=axis_name)

    def change(learner: Learner, shapes: Callable[[], Rollout]) -> Learner:
        return with_bonus(learner, writer, shapes, axis_name=axis_name, **options)

    change(Learner(init=None, update=None), lambda: None)  # Refuses invalid settings early.
    return wrapper_agent(
        agent, lambda learner, collector, _: change(learner, lambda: rollout_shapes(collector, agent.policy))
    )

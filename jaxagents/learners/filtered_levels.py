"""Curricula of levels that an agent neither masters nor loses as a weak player does: the task filter of XLand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_counts, check_fractions
from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.learners.level_replay import make_level_agent
from jaxagents.learners.optimizers import take_if
from jaxagents.ops.levels import worth_training
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class FilteredLevelsState:
    """State of the learner.

    Attributes:
        inner: of who learns from the rollouts.
        control: parameters of the weak player.
        levels: of the next rollout, leaves `[B, ...]`, over all devices.
        won: float32 `[B]`, share of the episodes that the agent won on the candidates that are judged.
        candidates: levels that were judged in this cycle, leaves `[K, ...]`.
        accepted: bool `[K]`, which of them are trained on.
        thresholds: `solved`, `gain` and `control_solved`, float32.
        round: int32, rollouts since the cycle began.
    """

    inner: Any
    control: Params
    levels: PyTree
    won: Array
    candidates: PyTree
    accepted: Array
    thresholds: dict[str, Array]
    round: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


def with_filtered_levels(
    learner: Learner,
    sample_level: Callable[[Array], PyTree],
    *,
    num_levels: int,
    num_batches: int = 2,
    num_trained: int = 12,
    solved: float = 0.9,
    gain: float = 0.1,
    control_solved: float = 0.5,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that trains on levels that are not solved, and on which it does better than a weak player.

    A cycle judges `num_batches` batches of new levels: on each the agent plays a rollout, then the weak player, and the
    levels of `ops.levels.worth_training` are accepted. The inner learner learns from none of these, but from the
    `num_trained` rollouts that follow, on levels drawn evenly from the accepted ones; on new ones where there are none.
    The weak player has random parameters, so that a policy whose last layer begins small acts at random.

    Args:
        learner: of rollouts.
        sample_level: `(key) -> level`.
        num_levels: B, of a rollout over all devices.
        num_batches: of B new levels that are judged in a cycle.
        num_trained: rollouts that train.
        solved: see `worth_training`; kept in the state as an array, as the two others are.
        gain: see `worth_training`.
        control_solved: see `worth_training`.
        axis_name: mapped device axis.

    Returns:
        The learner; collectors act with `{"params", "levels"}`, as for `with_level_replay`. Metrics: `judged`,
        `accepted` of the levels judged last, and the thresholds.

    Raises:
        ValueError: a number is out of its range.

    References:
        Open-Ended Learning Team (2021), Open-ended learning leads to generally capable agents, section 5.2 (dynamic
        task generation).

    Deviation: returns are whether episodes are won; levels are judged by as many episodes as a rollout holds, in place
        of ten, and every one that is accepted is trained on until the next cycle.
    """
    check_counts(num_levels=num_levels, num_batches=num_batches, num_trained=num_trained)
    given = {"solved": solved, "gain": gain, "control_solved": control_solved}
    check_fractions(**given)
    num_judged, num_candidates = 2 * num_batches, num_batches * num_levels
    period = num_judged + num_trained

    def sample_levels(key: Array, count: int) -> PyTree:
        return jax.vmap(sample_level)(jax.random.split(key, count))

    def init(key: Array, start: FilteredLevelsState | Params | None = None) -> FilteredLevelsState:
        inner_key, control_key, level_key = jax.random.split(key, 3)
        inner = learner.init(inner_key, start_of_inner(start, FilteredLevelsState))
        none = jax.eval_shape(lambda key: sample_levels(key, num_candidates), level_key)
        return FilteredLevelsState(
            inner=inner,
            control=learner.init(control_key, None).params,
            levels=sample_levels(level_key, num_levels),
            won=jnp.zeros(num_levels),
            candidates=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), none),
            accepted=jnp.zeros(num_candidates, bool),
            thresholds={name: jnp.float32(number) for name, number in given.items()},
            round=jnp.int32(0),
        )

    def judge(state: FilteredLevelsState, won: Array) -> FilteredLevelsState:
        """Keeps how the agent did, or tells by how the weak player does whether the levels are accepted."""
        place = state.round // 2 * num_levels
        good = worth_training(state.won, won, **state.thresholds)
        kept = jax.tree.map(
            lambda leaf, levels: jax.lax.dynamic_update_slice_in_dim(leaf, levels, place, 0),
            state.candidates,
            state.levels,
        )
        accepted = jax.lax.dynamic_update_slice_in_dim(state.accepted, good, place, 0)
        by_agent = state.round % 2 == 0
        decided = state.replace(candidates=kept, accepted=accepted)
        return _select(by_agent, state.replace(won=won), decided)

    def levels_of(state: FilteredLevelsState, key: Array) -> PyTree:
        """Returns the levels of the rollout that is due."""
        new_key, draw_key = jax.random.split(key)
        new, found = sample_levels(new_key, num_levels), jnp.any(state.accepted)
        place = jax.random.categorical(draw_key, jnp.where(state.accepted, 0.0, -1e9), shape=(num_levels,))
        drawn = jax.tree.map(lambda leaf: leaf[place], state.candidates)
        judged, again = state.round < num_judged, state.round % 2 == 1
        return _select(judged, _select(again, state.levels, new), _select(found, drawn, new))

    def update(state: FilteredLevelsState, key: Array, rollout: Rollout) -> tuple[FilteredLevelsState, Metrics]:
        inner_key, level_key = jax.random.split(key)
        judged = state.round < num_judged
        inner, metrics = learner.update(state.inner, inner_key, rollout)
        transition = rollout.transition
        won = _share_won(transition.terminated | transition.truncated, transition.extras["success"], axis_name)
        state = _select(judged, judge(state, won), state)
        state = state.replace(inner=take_if(~judged, inner, state.inner), round=(state.round + 1) % period)
        told = {"judged": judged.astype(jnp.float32), "accepted": jnp.mean(state.accepted)} | state.thresholds
        return state.replace(levels=levels_of(state, level_key)), {**metrics, **told}

    def acting(state: FilteredLevelsState, own: Params) -> dict[str, PyTree]:
        weak = (state.round < num_judged) & (state.round % 2 == 1)
        return {"params": _select(weak, state.control, own), "levels": state.levels}

    return wrap(learner, init, update, acting=acting)


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    level: int | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent that trains on levels that pass the task filter of XLand.

    Args:
        environment: of one agent, which says `info["success"]`; its tasks are the levels.
        inner: `(environment, *, axis_name) -> Agent`, who learns, and acts with its parameters alone.
        level: difficulty of new levels, where the world has some.
        axis_name: see `with_filtered_levels`.
        **options: further arguments of `with_filtered_levels`.

    Returns:
        The agent.
    """

    def choose(learner: Learner, sample_level: Callable[[Array], PyTree], num_levels: int) -> Learner:
        return with_filtered_levels(learner, sample_level, num_levels=num_levels, axis_name=axis_name, **options)

    return make_level_agent(environment, inner(environment, axis_name=axis_name), choose, level)


def _share_won(ended: Array, success: Array, axis_name: str | None) -> Array:
    """Computes the share of the episodes that were won on every level, over all devices, NaN where none ended."""
    count = jnp.sum(ended, axis=0)
    share = jnp.where(count > 0, jnp.sum(ended * success, axis=0) / jnp.maximum(count, 1), jnp.nan)
    return share if axis_name is None else jax.lax.all_gather(share, axis_name, tiled=True)


def _select(condition: Array, when_true: PyTree, when_false: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), when_true, when_false)

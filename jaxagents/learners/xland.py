"""XLand (Open-Ended Learning Team, 2021): levels that are not solved, and that a weak player wins less often."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_fractions
from jaxagents.learners.curricula import CurriculumState, level_agent, sample_levels, select, with_curriculum
from jaxagents.ops.checks import check_counts
from jaxagents.ops.levels import worth_training
from jaxagents.ops.rows import rows_of_all_devices
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class FilteredLevels:
    """Memory of the levels.

    Attributes:
        control: parameters of the weak player.
        levels: levels of the next rollout, leaves `[B, ...]`, over all devices.
        won: float32 `[B]`, share of episodes that the agent won on the candidates being judged.
        candidates: levels judged in this cycle, leaves `[K, ...]`.
        accepted: bool `[K]`, which of them are trained on.
        thresholds: `solved`, `gain` and `control_solved`, float32.
        round: int32, number of rollouts since the cycle began.
    """

    control: Params
    levels: PyTree
    won: Array
    candidates: PyTree
    accepted: Array
    thresholds: dict[str, Array]
    round: Array


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

    A cycle judges `num_batches` batches of new levels: on each of them, the agent plays a rollout, then the weak player
    does, and the levels of `ops.levels.worth_training` are accepted. The inner learner learns from none of these
    rollouts, but from the following `num_trained` rollouts, on levels drawn uniformly from the accepted ones, or on new
    levels if there are none. The weak player has random parameters, so that a policy whose last layer is initially
    small acts at random.

    Args:
        learner: learner for rollouts.
        sample_level: `(key) -> level`.
        num_levels: B, number of levels of a rollout over all devices.
        num_batches: number of batches of B new levels that are judged in a cycle.
        num_trained: number of rollouts that train.
        solved: see `worth_training`; kept in the state as an array, like the two below.
        gain: see `worth_training`.
        control_solved: see `worth_training`.
        axis_name: mapped device axis.

    Returns:
        The learner, see `with_curriculum`; a later stage uses its own thresholds. Metrics: `judged`, `accepted` for the
        levels judged last, and the thresholds.

    Raises:
        ValueError: a number is out of its range.

    References:
        Open-Ended Learning Team (2021), Open-ended learning leads to generally capable agents, section 5.2 (dynamic
        task generation).

    Deviation: returns are whether episodes are won; levels are judged by the number of episodes that fit into a
        rollout, instead of ten, and every accepted level is used for training until the next cycle.
    """
    check_counts(num_levels=num_levels, num_batches=num_batches, num_trained=num_trained)
    given = {"solved": solved, "gain": gain, "control_solved": control_solved}
    check_fractions(**given)
    num_judged, num_candidates = 2 * num_batches, num_batches * num_levels
    period = num_judged + num_trained

    new_levels = partial(sample_levels, sample_level)

    def init(keys: Array) -> FilteredLevels:
        none = jax.eval_shape(lambda key: new_levels(key, num_candidates), keys[1])
        return FilteredLevels(
            control=learner.init(keys[0], None).params,
            levels=new_levels(keys[1], num_levels),
            won=jnp.zeros(num_levels),
            candidates=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), none),
            accepted=jnp.zeros(num_candidates, bool),
            thresholds=jax.tree.map(jnp.float32, given),
            round=jnp.int32(0),
        )

    def judge(memory: FilteredLevels, won: Array) -> FilteredLevels:
        """Stores the agent's results, or decides by the weak player's results whether the levels are accepted."""
        place = memory.round // 2 * num_levels
        good = worth_training(memory.won, won, **memory.thresholds)
        kept = jax.tree.map(
            lambda leaf, levels: jax.lax.dynamic_update_slice_in_dim(leaf, levels, place, 0),
            memory.candidates,
            memory.levels,
        )
        accepted = jax.lax.dynamic_update_slice_in_dim(memory.accepted, good, place, 0)
        by_agent = memory.round % 2 == 0
        return select(by_agent, memory.replace(won=won), memory.replace(candidates=kept, accepted=accepted))

    def levels_of(memory: FilteredLevels, key: Array) -> PyTree:
        """Returns the levels of the next rollout."""
        new_key, draw_key = jax.random.split(key)
        new, found = new_levels(new_key, num_levels), jnp.any(memory.accepted)
        place = jax.random.categorical(draw_key, jnp.where(memory.accepted, 0.0, -1e9), shape=(num_levels,))
        drawn = jax.tree.map(lambda leaf: leaf[place], memory.candidates)
        judged, again = memory.round < num_judged, memory.round % 2 == 1
        return select(judged, select(again, memory.levels, new), select(found, drawn, new))

    def update(
        memory: FilteredLevels, params: Params, rollout: Rollout, keys: Array
    ) -> tuple[FilteredLevels, Array, Metrics]:
        judged, transition = memory.round < num_judged, rollout.transition
        won = _share_won(transition.terminated | transition.truncated, transition.extras["success"], axis_name)
        memory = select(judged, judge(memory, won), memory)
        memory = memory.replace(round=(memory.round + 1) % period)
        metrics = {"judged": judged.astype(jnp.float32), "accepted": jnp.mean(memory.accepted)} | memory.thresholds
        return memory.replace(levels=levels_of(memory, keys[0])), ~judged, metrics

    def acting(memory: FilteredLevels, own: Params) -> Params:
        weak = (memory.round < num_judged) & (memory.round % 2 == 1)
        return select(weak, memory.control, own)

    curriculum = with_curriculum(learner, init, update, acting=acting)

    def init_state(key: Array, start: Any = None) -> CurriculumState:
        state = curriculum.init(key, start)
        return state.replace(memory=state.memory.replace(thresholds=jax.tree.map(jnp.float32, given)))

    return curriculum._replace(init=init_state)


def make_agent(environment: Environment, **options: Any) -> Agent:
    """Assembles an agent that trains on levels that pass the task filter of XLand.

    Args:
        environment: see `level_agent`; it reports `info["success"]`.
        **options: further arguments of `with_filtered_levels` and of `level_agent`; the inner agent acts with its
            parameters alone.
    """
    return level_agent(with_filtered_levels, environment, **options)


def _share_won(ended: Array, success: Array, axis_name: str | None) -> Array:
    """Computes the share of episodes won on every level, over all devices, NaN if none ended."""
    count = jnp.sum(ended, axis=0)
    share = jnp.where(count > 0, jnp.sum(ended * success, axis=0) / jnp.maximum(count, 1), jnp.nan)
    return rows_of_all_devices(share, axis_name)

"""SFL (Rutherford et al., 2024): trains on levels that are won about half of the time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_fractions
from jaxagents.learners.curricula import level_agent, sample_levels, select, with_curriculum
from jaxagents.ops.checks import check_counts
from jaxagents.ops.levels import success_variance
from jaxagents.ops.rows import rows_of_all_devices
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class ChosenLevels:
    """Memory of the levels.

    Attributes:
        levels: levels of the next rollout, leaves `[B, ...]`, over all devices.
        chosen: levels with the highest scores in this cycle, leaves `[K, ...]`.
        score: float32 `[K]`, their scores; -inf for empty places.
        round: int32, number of rollouts since the cycle began.
    """

    levels: PyTree
    chosen: PyTree
    score: Array
    round: Array


def with_learnability(
    learner: Learner,
    sample_level: Callable[[Array], PyTree],
    *,
    num_levels: int,
    num_chosen: int = 100,
    num_judged: int = 8,
    num_trained: int = 32,
    chosen_share: float = 0.5,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that plays many new levels, and trains on those that it wins about half of the time.

    In every cycle, `num_judged` rollouts on new levels only judge them, by `p (1 - p)` for the share p of won episodes;
    the best of them become the chosen levels. The inner learner then learns from `num_trained` rollouts, in which a
    share of the levels is drawn uniformly from the chosen ones, and the others are new.

    Args:
        learner: learner for rollouts.
        sample_level: `(key) -> level`.
        num_levels: B, number of levels of a rollout over all devices.
        num_chosen: K, number of chosen levels. Paper: 100 to 1000.
        num_judged: number of rollouts that judge; they see `num_judged * num_levels` levels. Paper: about 5000 levels.
        num_trained: number of rollouts that train. Paper: about 50.
        chosen_share: rho, share of chosen levels in a rollout. Paper: 0.5 to 1.
        axis_name: mapped device axis.

    Returns:
        The learner, see `with_curriculum`. Metrics: `judged` and `learnability`, the mean over the chosen levels.

    Raises:
        ValueError: a number is out of its range, or fewer levels are judged than chosen.

    References:
        Rutherford et al. (2024), No regrets: investigating and improving regret approximations for curriculum
        discovery, algorithms 1 and 2.
    """
    check_counts(num_levels=num_levels, num_chosen=num_chosen, num_judged=num_judged, num_trained=num_trained)
    check_fractions(chosen_share=chosen_share)
    if num_judged * num_levels < num_chosen:
        raise ValueError(
            f"`num_judged` must be enough to choose {num_chosen} levels, got {num_judged} rollouts of {num_levels}; "
            f"try {-(-num_chosen // num_levels)}."
        )
    period, num_drawn = num_judged + num_trained, round(chosen_share * num_levels)

    new_levels = partial(sample_levels, sample_level)

    def init(keys: Array) -> ChosenLevels:
        none = jax.eval_shape(lambda key: new_levels(key, num_chosen), keys[0])
        return ChosenLevels(
            levels=new_levels(keys[0], num_levels),
            chosen=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), none),
            score=jnp.full(num_chosen, -jnp.inf, jnp.float32),
            round=jnp.zeros((), jnp.int32),
        )

    def judge(memory: ChosenLevels, rollout: Rollout) -> tuple[PyTree, Array]:
        """Returns the best of the chosen levels and those of a rollout, with their scores."""
        transition = rollout.transition
        ended = transition.terminated | transition.truncated
        score = rows_of_all_devices(success_variance(ended, transition.extras["success"]), axis_name)
        former = jnp.where(memory.round == 0, -jnp.inf, memory.score)
        best, place = jax.lax.top_k(jnp.concatenate([former, score]), num_chosen)
        both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[place], memory.chosen, memory.levels)
        return both, best

    def levels_of(memory: ChosenLevels, key: Array) -> PyTree:
        """Returns the levels of the next rollout."""
        new_key, draw_key = jax.random.split(key)
        new = new_levels(new_key, num_levels)
        # Levels on which no episode ended are drawn only if there are no others.
        known = jnp.where(memory.score > -jnp.inf, 0.0, -1e9)
        place = jax.random.categorical(draw_key, known, shape=(num_drawn,))
        drawn = jax.tree.map(lambda leaf, fresh: fresh.at[:num_drawn].set(leaf[place]), memory.chosen, new)
        return select(memory.round < num_judged, new, drawn)

    def update(
        memory: ChosenLevels, params: Params, rollout: Rollout, keys: Array
    ) -> tuple[ChosenLevels, Array, Metrics]:
        judged = memory.round < num_judged
        chosen, score = select(judged, judge(memory, rollout), (memory.chosen, memory.score))
        memory = memory.replace(chosen=chosen, score=score, round=(memory.round + 1) % period)
        known = score > -jnp.inf
        mean = jnp.sum(jnp.where(known, score, 0.0)) / jnp.maximum(jnp.sum(known), 1)
        metrics = {"judged": judged.astype(jnp.float32), "learnability": mean}
        return memory.replace(levels=levels_of(memory, keys[0])), ~judged, metrics

    return with_curriculum(learner, init, update)


def make_agent(environment: Environment, **options: Any) -> Agent:
    """Assembles an agent that trains on levels of high learnability.

    Args:
        environment: see `level_agent`; it reports `info["success"]`.
        **options: further arguments of `with_learnability` and of `level_agent`.
    """
    return level_agent(with_learnability, environment, **options)

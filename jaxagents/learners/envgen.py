"""EnvGen (Zala et al., 2024): levels made for what a learner cannot do yet."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.curricula import level_agent, sample_levels, select, with_curriculum
from jaxagents.ops.checks import check_counts
from jaxagents.ops.goals import lowest_success
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class Achievements:
    """Memory of levels and achievements.

    Attributes:
        levels: levels of the next rollout, leaves `[B, ...]`, over all devices.
        chosen: int32 `[K]`, achievements for which levels are made in this cycle.
        reached: float32 `[A]`, numbers of episodes of this cycle, in unchanged levels, that reached each achievement.
        episodes: float32, number of these episodes.
        round: int32, number of rollouts so far.
    """

    levels: PyTree
    chosen: Array
    reached: Array
    episodes: Array
    round: Array


def with_generated_levels(
    learner: Learner,
    sample_level: Callable[[Array], PyTree],
    *,
    num_levels: int,
    achievements: Sequence[str],
    prepare: Callable[[Array, PyTree, Array], PyTree],
    choose: Callable[[Array, Array], Array] = lowest_success,
    num_cycles: int = 4,
    num_generated: int = 20,
    num_original: int = 20,
    adapts: bool = True,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that alternates between levels made for some achievements and unchanged levels.

    A cycle has `num_generated` rollouts on levels that are each made for one of the chosen achievements, drawn
    uniformly, and `num_original` rollouts on unchanged levels, which also measure how often an episode reaches each
    achievement. Before the next cycle, achievements are chosen by these rates; before the first, as if none had ever
    been reached. After the last cycle, all levels are unchanged.

    Args:
        learner: learner for rollouts, which learns from all of them.
        sample_level: `(key) -> level`.
        num_levels: B, number of levels of a rollout over all devices.
        achievements: names of A numbers in `info["metrics"]` that are 1 once the episode has reached them, in the order
            of the indices of `prepare`.
        prepare: `(key, level, index of an achievement) -> level`.
        choose: `(key, success [A]) -> int32 [K]`, indices of achievements, see `ops.goals`.
        num_cycles: number of cycles; with 0, all levels are unchanged. Paper: 4.
        num_generated: number of rollouts in a cycle on generated levels.
        num_original: number of rollouts in a cycle on unchanged levels; with 0 nothing is measured, so nothing adapts.
        adapts: whether to choose achievements before every cycle; else only before the first.
        axis_name: mapped device axis.

    Returns:
        The learner, see `with_curriculum`. Metrics: `generated`, and `success`, the mean rate over the achievements in
        this cycle so far.

    Raises:
        ValueError: a number is out of its range, or there are no achievements.

    References:
        Zala et al. (2024), EnvGen: Generating and adapting environments via LLMs for training embodied agents,
        algorithm 1.

    Deviation: rules choose achievements and make levels, instead of a language model that writes configurations;
        success is measured on training episodes, instead of evaluation episodes.
    """
    check_counts(num_levels=num_levels, num_generated=num_generated)
    for name, number in (("num_cycles", num_cycles), ("num_original", num_original)):
        if number < 0:
            raise ValueError(f"`{name}` must not be negative, got {number}; try 4 cycles of 20 and 20 rollouts.")
    if not achievements:
        raise ValueError("`achievements` must be at least one, got none; try those of algorithm=envgen.")
    period = num_generated + num_original

    def is_generated(round: Array) -> Array:
        return (round < num_cycles * period) & (round % period < num_generated)

    def levels_of(key: Array, chosen: Array, round: Array) -> PyTree:
        new_key, choice_key, prepare_key = jax.random.split(key, 3)
        new = sample_levels(sample_level, new_key, num_levels)
        index = chosen[jax.random.randint(choice_key, (num_levels,), 0, chosen.size)]
        made = jax.vmap(prepare)(jax.random.split(prepare_key, num_levels), new, index)
        return select(is_generated(round), made, new)

    def init(keys: Array) -> Achievements:
        nothing, zero = jnp.zeros(len(achievements)), jnp.int32(0)
        chosen = choose(keys[0], nothing)
        levels = levels_of(keys[1], chosen, zero)
        return Achievements(levels=levels, chosen=chosen, reached=nothing, episodes=jnp.float32(0.0), round=zero)

    def count(rollout: Rollout) -> tuple[Array, Array]:
        """Returns how many episodes ended, and how many of them had reached each achievement."""
        transition = rollout.transition
        ended = transition.terminated | transition.truncated
        reached = [jnp.sum(jnp.where(ended, transition.extras["metrics"][name], 0.0)) for name in achievements]
        both = jnp.sum(ended, dtype=jnp.float32), jnp.stack(reached)
        return both if axis_name is None else jax.lax.psum(both, axis_name)

    def update(
        memory: Achievements, params: Params, rollout: Rollout, keys: Array
    ) -> tuple[Achievements, Literal[True], Metrics]:
        generated, (ended, reached) = is_generated(memory.round), count(rollout)
        episodes = memory.episodes + jnp.where(generated, 0.0, ended)
        reached = memory.reached + jnp.where(generated, 0.0, reached)
        success = reached / jnp.maximum(episodes, 1.0)
        round = memory.round + 1
        opens = (round % period == 0) & (round < num_cycles * period)
        renewed = opens & adapts & (episodes > 0.0)
        chosen = jnp.where(renewed, choose(keys[0], success), memory.chosen)
        following = Achievements(
            levels=levels_of(keys[1], chosen, round),
            chosen=chosen,
            reached=jnp.where(opens, 0.0, reached),
            episodes=jnp.where(opens, 0.0, episodes),
            round=round,
        )
        metrics = {"generated": generated.astype(jnp.float32), "success": jnp.mean(success)}
        return following, True, metrics

    return with_curriculum(learner, init, update)


def make_agent(
    environment: Environment, *, achievements: Sequence[str] = (), level: int | None = None, **options: Any
) -> Agent:
    """Assembles an agent that trains on levels made for what it cannot do yet.

    Args:
        environment: see `level_agent`; it reports achievements in `info["metrics"]`.
        achievements: see `with_generated_levels`.
        level: see `level_agent`.
        **options: further arguments of `with_generated_levels` and of `level_agent`.

    Raises:
        ValueError: the world does not report an achievement, or see `with_generated_levels`.
    """
    logged = jax.eval_shape(_first_info(environment, level), jax.random.key(0)).get("metrics", {})
    for name in achievements:
        if name not in logged:
            raise ValueError(
                f'`achievements` must be numbers that the world tells as info["metrics"], got {name!r} in '
                f"{environment.name}; try {', '.join(logged) or 'world=craft'}."
            )
    with_levels = partial(with_generated_levels, achievements=achievements)
    return level_agent(with_levels, environment, level=level, **options)


def _first_info(environment: Environment, level: int | None) -> Callable[[Array], dict[str, Any]]:
    return lambda key: dict(environment.reset(key, environment.sample_task(key, level))[1].info)

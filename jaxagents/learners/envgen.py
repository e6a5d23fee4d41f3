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
    """What is kept of levels and achievements.

    Attributes:
        levels: of the next rollout, leaves `[B, ...]`, over all devices.
        chosen: int32 `[K]`, achievements that levels are made for in this cycle.
        reached: float32 `[A]`, episodes in levels as they are in which an achievement was reached, in this cycle.
        episodes: float32, of them.
        round: int32, rollouts so far.
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
    """Makes a learner that trains in turn on levels made for some achievements, and on levels as they are.

    A cycle has `num_generated` rollouts on levels that are each made for one of the chosen achievements, drawn
    uniformly, and `num_original` on levels as they are, which also tell how often every achievement is reached in an
    episode. Before the next cycle, achievements are chosen by that; before the first, as if none were ever reached.
    After the last cycle, all levels are as they are.

    Args:
        learner: of rollouts, from all of which it learns.
        sample_level: `(key) -> level`.
        num_levels: B, of a rollout over all devices.
        achievements: A names of numbers in `info["metrics"]` that are 1 once the episode has reached them, in the order
            of the indices of `prepare`.
        prepare: `(key, level, index of an achievement) -> level`.
        choose: `(key, success [A]) -> int32 [K]`, indices of achievements, see `ops.goals`.
        num_cycles: cycles; with 0, all levels are as they are. Paper: 4.
        num_generated: rollouts of a cycle on levels that were made.
        num_original: rollouts of a cycle on levels as they are; 0 measures nothing, so nothing adapts.
        adapts: False chooses once, before the first cycle.
        axis_name: mapped device axis.

    Returns:
        The learner, see `with_curriculum`. Metrics: `generated`, and `success`, the mean over the achievements of what
        is known of this cycle.

    Raises:
        ValueError: a number is out of its range, or there are no achievements.

    References:
        Zala et al. (2024), EnvGen: Generating and adapting environments via LLMs for training embodied agents,
        algorithm 1.

    Deviation: achievements are chosen by a rule and levels made by one, in place of a language model that writes
        configurations; success is that of the training episodes, in place of episodes of an evaluation.
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
        """Returns how many episodes ended, and in how many each achievement had been reached."""
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
        environment: see `level_agent`; tells achievements as `info["metrics"]`.
        achievements: see `with_generated_levels`.
        level: see `level_agent`.
        **options: of `with_generated_levels` and of `level_agent`.

    Raises:
        ValueError: the world does not tell an achievement, or see `with_generated_levels`.
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

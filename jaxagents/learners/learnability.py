"""Curricula of levels that are neither won nor lost every time: sampling for learnability (SFL)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_counts, check_fractions
from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.learners.level_replay import make_level_agent
from jaxagents.learners.optimizers import take_if
from jaxagents.ops.levels import success_variance
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, Rollout


@struct.dataclass
class LearnabilityState:
    """State of the learner.

    Attributes:
        inner: of who learns from the rollouts.
        levels: of the next rollout, leaves `[B, ...]`, over all devices.
        chosen: levels of the highest scores of this cycle, leaves `[K, ...]`.
        score: float32 `[K]`, theirs; -inf where there is none yet.
        round: int32, rollouts since the cycle began.
    """

    inner: Any
    levels: PyTree
    chosen: PyTree
    score: Array
    round: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


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

    In every cycle, `num_judged` rollouts on new levels only judge them, by `p (1 - p)` of the share p of won episodes;
    the best of them are the chosen ones. The inner learner then learns from `num_trained` rollouts, in which a share of
    the levels is drawn evenly from the chosen ones and the others are new.

    Args:
        learner: of rollouts.
        sample_level: `(key) -> level`.
        num_levels: B, of a rollout over all devices.
        num_chosen: K. Paper: 100 to 1000.
        num_judged: rollouts that judge; they see `num_judged * num_levels` levels. Paper: 5000 levels or so.
        num_trained: rollouts that train. Paper: 50 or so.
        chosen_share: rho, share of the levels of a rollout that are chosen ones. Paper: 0.5 to 1.
        axis_name: mapped device axis.

    Returns:
        The learner; collectors act with `{"params", "levels"}`, as for `with_level_replay`. Metrics: `judged` and
        `learnability`, the mean over the chosen levels.

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

    def sample_levels(key: Array, count: int) -> PyTree:
        return jax.vmap(sample_level)(jax.random.split(key, count))

    def init(key: Array, start: LearnabilityState | Params | None = None) -> LearnabilityState:
        inner_key, level_key = jax.random.split(key)
        inner = learner.init(inner_key, start_of_inner(start, LearnabilityState))
        if isinstance(start, LearnabilityState):
            return start.replace(inner=inner)
        levels = sample_levels(level_key, num_levels)
        none = jax.eval_shape(lambda key: sample_levels(key, num_chosen), level_key)
        return LearnabilityState(
            inner=inner,
            levels=levels,
            chosen=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), none),
            score=jnp.full(num_chosen, -jnp.inf, jnp.float32),
            round=jnp.zeros((), jnp.int32),
        )

    def judge(state: LearnabilityState, rollout: Rollout) -> tuple[PyTree, Array]:
        """Returns the best of the chosen levels and those of a rollout, with their scores."""
        transition = rollout.transition
        ended = transition.terminated | transition.truncated
        score = success_variance(ended, transition.extras["success"])
        score = score if axis_name is None else jax.lax.all_gather(score, axis_name, tiled=True)
        former = jnp.where(state.round == 0, -jnp.inf, state.score)
        best, place = jax.lax.top_k(jnp.concatenate([former, score]), num_chosen)
        both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[place], state.chosen, state.levels)
        return both, best

    def levels_of(state: LearnabilityState, key: Array) -> PyTree:
        """Returns the levels of the rollout that is due."""
        new_key, draw_key = jax.random.split(key)
        new = sample_levels(new_key, num_levels)
        # Levels on which no episode ended are drawn only where there are no others.
        known = jnp.where(state.score > -jnp.inf, 0.0, -1e9)
        place = jax.random.categorical(draw_key, known, shape=(num_drawn,))
        drawn = jax.tree.map(lambda leaf, fresh: fresh.at[:num_drawn].set(leaf[place]), state.chosen, new)
        return _select(state.round < num_judged, new, drawn)

    def update(state: LearnabilityState, key: Array, rollout: Rollout) -> tuple[LearnabilityState, Metrics]:
        inner_key, level_key = jax.random.split(key)
        judged = state.round < num_judged
        inner, metrics = learner.update(state.inner, inner_key, rollout)
        chosen, score = _select(judged, judge(state, rollout), (state.chosen, state.score))
        inner = take_if(~judged, inner, state.inner)
        state = state.replace(inner=inner, chosen=chosen, score=score, round=(state.round + 1) % period)
        known = score > -jnp.inf
        mean = jnp.sum(jnp.where(known, score, 0.0)) / jnp.maximum(jnp.sum(known), 1)
        told = {"judged": judged.astype(jnp.float32), "learnability": mean}
        return state.replace(levels=levels_of(state, level_key)), {**metrics, **told}

    return wrap(learner, init, update, acting=lambda state, own: {"params": own, "levels": state.levels})


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    level: int | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent that trains on levels of high learnability.

    Args:
        environment: of one agent, which says `info["success"]`; its tasks are the levels.
        inner: `(environment, *, axis_name) -> Agent`, who learns.
        level: difficulty of new levels, where the world has some.
        axis_name: see `with_learnability`.
        **options: further arguments of `with_learnability`.

    Returns:
        The agent.
    """

    def choose(learner: Learner, sample_level: Callable[[Array], PyTree], num_levels: int) -> Learner:
        return with_learnability(learner, sample_level, num_levels=num_levels, axis_name=axis_name, **options)

    return make_level_agent(environment, inner(environment, axis_name=axis_name), choose, level)


def _select(condition: Array, when_true: PyTree, when_false: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), when_true, when_false)

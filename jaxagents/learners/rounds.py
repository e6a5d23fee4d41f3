"""Rounds of imitation and reinforcement: what was reinforced is imitated, and then reinforced again."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import replace_innermost
from jaxagents.ops.checks import check_counts
from jaxagents.types import Agent, Array, Collector, Environment, Episode, Learner, Mean, Metrics, Params, State


@struct.dataclass
class RoundsState:
    """States of both learners, which have the same parameters, and the number of updates so far, int32."""

    imitation: State
    reinforcement: State
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained and act."""
        return self.imitation.params


def make_rounds(imitation: Learner, reinforcement: Learner, *, num_collects: int, num_reinforced: int) -> Learner:
    """Makes a learner whose rounds are `num_collects` batches of imitation, then `num_reinforced` of reinforcement.

    Reinforcement restarts in every round, with the parameters at the end of the imitation; the next round plays the
    batches to imitate with the parameters at the end of the reinforcement. The imitation decides from which parameters
    it starts: with `restart`, `learners.raft` starts from the initial ones of the whole run.

    Args:
        imitation: learner that plays `num_collects` batches before it changes anything, see
            `learners.raft.make_iterated`.
        reinforcement: learner of `Episode` batches.
        num_collects: number of updates of the imitation in a round.
        num_reinforced: number of updates of the reinforcement in a round.

    Returns:
        The learner of `Episode` batches. Metrics are those of the active learner. Training several seeds in parallel is
        slow, because both learners' updates are computed for each of them every time.

    Raises:
        ValueError: a count is not positive.

    References:
        Deng et al. (2025), "OpenVLThinker: An Early Exploration to Complex Vision-Language Reasoning via Iterative
        Self-Improvement", section 3.
    """
    check_counts(num_collects=num_collects, num_reinforced=num_reinforced)

    def init(key: Array, start: RoundsState | Params | None = None) -> RoundsState:
        one, other = (start.imitation, start.reinforcement) if isinstance(start, RoundsState) else (start, start)
        first = imitation.init(key, one)
        return RoundsState(
            imitation=first,
            reinforcement=reinforcement.init(key, first.params if other is None else other),
            num_updates=jnp.int32(0),
        )

    def imitate(state: RoundsState, key: Array, batch: Episode) -> tuple[RoundsState, Metrics]:
        update_key, init_key = jax.random.split(key)
        after, metrics = imitation.update(state.imitation, update_key, batch)
        return state.replace(imitation=after, reinforcement=reinforcement.init(init_key, after.params)), metrics

    def reinforce(state: RoundsState, key: Array, batch: Episode) -> tuple[RoundsState, Metrics]:
        after, metrics = reinforcement.update(state.reinforcement, key, batch)
        same = replace_innermost(state.imitation, lambda inner: inner.replace(params=after.params))
        return state.replace(imitation=same, reinforcement=after), metrics

    def update(state: RoundsState, key: Array, batch: Episode) -> tuple[RoundsState, Metrics]:
        turns = [_counted(turn) for turn in (imitate, reinforce)]
        shapes = [jax.eval_shape(turn, state, key, batch)[1] for turn in turns]
        nothing = {name: Mean(total=jnp.float32(0.0), count=jnp.float32(0.0)) for name in {**shapes[0], **shapes[1]}}

        def take(turn: Callable[..., tuple[RoundsState, Metrics]]) -> Callable[..., tuple[RoundsState, Metrics]]:
            def taken(*arguments: Any) -> tuple[RoundsState, Metrics]:
                after, metrics = turn(*arguments)
                return after, {**nothing, **metrics}

            return taken

        imitates = state.num_updates % (num_collects + num_reinforced) < num_collects
        after, metrics = jax.lax.cond(imitates, *map(take, turns), state, key, batch)
        return after.replace(num_updates=state.num_updates + 1), metrics

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    imitation: Callable[..., Agent],
    num_collects: int,
    num_reinforced: int,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles rounds of iterated imitation and of a policy gradient for a text world.

    Args:
        environment: text world.
        imitation: `(environment, *, num_collects, axis_name) -> Agent`, `learners.raft.make_agent`.
        num_collects: see `make_rounds`.
        num_reinforced: see `make_rounds`; schedules of the reinforcement span one round.
        axis_name: mapped device axis to average gradients over.
        **options: further arguments of `learners.policy_gradient.make_agent`.

    Returns:
        The agent.
    """
    agent = policy_gradient.make_agent(environment, axis_name=axis_name, **options)
    imitating = imitation(environment, num_collects=num_collects, axis_name=axis_name)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        num_rounds = max(1, num_updates // (num_collects + num_reinforced))
        return make_rounds(
            imitating.make_learner(collector, num_rounds * num_collects),
            agent.make_learner(collector, num_reinforced),
            num_collects=num_collects,
            num_reinforced=num_reinforced,
        )

    return Agent(policy=agent.policy, make_learner=make_learner)


def _counted(turn: Callable[..., tuple[RoundsState, Metrics]]) -> Callable[..., tuple[RoundsState, Metrics]]:
    """Returns an update whose metrics are means, so that updates of the other learner do not count in them."""

    def counted(*arguments: Any) -> tuple[RoundsState, Metrics]:
        state, metrics = turn(*arguments)
        one = jnp.float32(1.0)
        return state, {
            name: value if isinstance(value, Mean) else Mean(total=jnp.asarray(value, jnp.float32), count=one)
            for name, value in metrics.items()
        }

    return counted

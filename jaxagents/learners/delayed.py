"""Rollouts that arrive late: each was played with the parameters of a fixed number of updates ago."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.combinators import params_to_act, start_of_inner, wrap, wrapper_agent
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, Policy, PyTree, Rollout, input_of


@struct.dataclass
class DelayedState:
    """State of the learner, parameters of recent updates `[longest + 1, ...]`, number of updates and delay, int32."""

    inner: Any
    past: Params
    num_updates: Array
    delay: Array

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def with_delayed_actor(learner: Learner, *, delay: int, longest: int | None = None) -> Learner:
    """Makes a learner that acts with the parameters of `delay` updates ago, or the initial ones until there are any.

    The actor of update u has the parameters after update `max(u - delay, 0)`; with `delay=0` there is no lag.

    Args:
        learner: learner whose parameters act with a delay.
        delay: number of updates, stored in the state, so that changing it does not require compiling again.
        longest: number of earlier parameters that are kept; None: equal to the delay.

    Returns:
        The learner.

    Raises:
        ValueError: `delay` is negative, or longer than the number of parameters kept.

    References:
        Petrenko et al. (2020), "Sample Factory", section 3.4: policy lag, the number of updates between acting and
        learning.
    """
    longest = delay if longest is None else longest
    if not 0 <= delay <= longest:
        raise ValueError(f"`delay` must be from 0 to `longest`, got {delay} and {longest}; try a longer one.")
    size = longest + 1

    def init(key: Array, start: DelayedState | Params | None = None) -> DelayedState:
        inner = learner.init(key, start_of_inner(start, DelayedState))
        acting = params_to_act(learner, inner)
        past = jax.tree.map(lambda leaf: jnp.tile(leaf[None], (size,) + (1,) * leaf.ndim), acting)
        return DelayedState(inner=inner, past=past, num_updates=jnp.int32(0), delay=jnp.int32(delay))

    def update(state: DelayedState, key: Array, batch: PyTree) -> tuple[DelayedState, Metrics]:
        inner, metrics = learner.update(state.inner, key, batch)
        count = state.num_updates + 1
        new = params_to_act(learner, inner)
        past = jax.tree.map(lambda kept, leaf: kept.at[count % size].set(leaf), state.past, new)
        return state.replace(inner=inner, past=past, num_updates=count), metrics

    def acting(state: DelayedState, own: Params) -> Params:
        del own
        return jax.tree.map(lambda kept: kept[(state.num_updates - state.delay) % size], state.past)

    return wrap(learner, init, update, acting=acting)


@struct.dataclass
class UnawareState:
    """State of a learner that treats every rollout as its own."""

    inner: Any

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def unaware_of_delay(learner: Learner, policy: Policy) -> Learner:
    """Makes a learner that treats every rollout as its own, regardless of who played it.

    The probabilities of actions at the time of acting are replaced by those under the parameters before the update, so
    that a surrogate is clipped around these, and nothing distinguishes old steps from fresh ones.

    Args:
        learner: learner for rollouts.
        policy: policy that acts.

    Returns:
        The learner. Metrics: `staleness`, the mean of `log mu(a) - log pi(a)`, an estimate of `KL(mu || pi)` for the
            actor mu and the learner pi.
    """

    def init(key: Array, start: UnawareState | Params | None = None) -> UnawareState:
        return UnawareState(inner=learner.init(key, start_of_inner(start, UnawareState)))

    def update(state: UnawareState, key: Array, rollout: Rollout) -> tuple[UnawareState, Metrics]:
        transition = rollout.transition
        carry = jax.tree.map(lambda leaf: leaf[0], rollout.carry)
        _, distribution = policy.apply(params_to_act(learner, state.inner), carry, input_of(transition))
        log_prob = jax.lax.stop_gradient(distribution.log_prob(transition.action))
        own = {"staleness": jnp.mean(transition.behavior_log_prob - log_prob)}
        rollout = rollout.replace(transition=transition.replace(behavior_log_prob=log_prob))
        inner, metrics = learner.update(state.inner, key, rollout)
        return state.replace(inner=inner), metrics | own  # type: ignore[operator]

    return wrap(learner, init, update)


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    delay: int = 0,
    longest: int | None = None,
    aware: bool = True,
    axis_name: str | None = None,
) -> Agent:
    """Assembles an agent of rollouts that learns from what it did some updates ago.

    Args:
        environment: environment that defines the spaces.
        inner: `(environment, *, axis_name) -> Agent`, which learns.
        delay: see `with_delayed_actor`.
        longest: see `with_delayed_actor`.
        aware: whether the learner gets the actor's probabilities of actions, see `unaware_of_delay`.
        axis_name: mapped device axis over which rollouts are split.
    """
    agent = inner(environment, axis_name=axis_name)

    def change(learner: Learner, *_: Any) -> Learner:
        learner = learner if aware else unaware_of_delay(learner, agent.policy)
        return with_delayed_actor(learner, delay=delay, longest=longest)

    change(Learner(init=None, update=None))  # Refuses invalid settings early.
    return wrapper_agent(agent, change)

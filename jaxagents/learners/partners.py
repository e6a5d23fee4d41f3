"""Language agents that learn together with, or against, a frozen copy of themselves."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import start_of_inner, wrap, wrapper_agent
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree


@struct.dataclass
class PartneredState:
    """State of a learner, and the parameters of its partner.

    Attributes:
        inner: state of the learner.
        partner: parameters with which the other seats act.
        num_updates: int32, so far.
    """

    inner: PyTree
    partner: Params
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def with_frozen_partner(learner: Learner, *, renew_every: int | None = None) -> Learner:
    """Makes a learner whose collector acts with two sets of parameters: its own, and a frozen copy of earlier ones.

    It is used with `language.dialogue.make_dialogue(..., partner=policy)`.

    Args:
        learner: learner of the policy's own turns.
        renew_every: number of updates after which the copy is renewed; None keeps the parameters from which the run
            starts.

    Returns:
        The learner; its `acting` gives `(params, partner's params)`.

    Raises:
        ValueError: `renew_every` is not positive.
    """
    if renew_every is not None and renew_every < 1:
        raise ValueError(f"`renew_every` must be at least 1, got {renew_every}; try null for never.")

    def init(key: Array, start: PartneredState | Params | None = None) -> PartneredState:
        inner = learner.init(key, start_of_inner(start, PartneredState))
        return PartneredState(inner=inner, partner=jax.tree.map(jnp.copy, inner.params), num_updates=jnp.int32(0))

    def update(state: PartneredState, key: Array, batch: PyTree) -> tuple[PartneredState, Metrics]:
        inner, metrics = learner.update(state.inner, key, batch)
        count, partner = state.num_updates + 1, state.partner
        if renew_every is not None:
            renewed = count % renew_every == 0
            partner = jax.tree.map(lambda new, old: jnp.where(renewed, new, old), inner.params, partner)
        return PartneredState(inner=inner, partner=partner, num_updates=count), metrics

    return wrap(learner, init, update, acting=lambda state, own: (own, state.partner))


def make_agent(environment: Environment, *, renew_every: int | None = None, **options: Any) -> Agent:
    """Assembles a policy-gradient agent that learns against a frozen copy; the collector needs `partner: true`.

    Args:
        environment: text world with several seats.
        renew_every: see `with_frozen_partner`.
        **options: further arguments of `learners.policy_gradient.make_agent`.
    """
    agent = policy_gradient.make_agent(environment, **options)
    return wrapper_agent(agent, lambda learner, *_: with_frozen_partner(learner, renew_every=renew_every))

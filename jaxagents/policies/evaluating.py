"""Policies that also give the values of states, for searches that need both."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxagents.policies.actor_critic import as_policy
from jaxagents.types import ActorCritic, Array, Carry, Params, PolicyInput, PyTree


class EvaluatingPolicy(NamedTuple):
    """A feed-forward `Policy`, and the actor-critic to which it belongs.

    Attributes:
        init: see `Policy`.
        initial_carry: see `Policy`.
        apply: see `Policy`.
        evaluate: `(params, carry, PolicyInput) -> (carry, distribution, value)`.
        draw_noise: see `Policy`.
    """

    init: Callable[[Array], Params]
    initial_carry: Callable[[tuple[int, ...]], Carry]
    apply: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any]]
    evaluate: Callable[[Params, Carry, PolicyInput], tuple[Carry, Any, Array]]
    draw_noise: Callable[[Array, int], PyTree] | None = None


def with_evaluation(actor_critic: ActorCritic) -> EvaluatingPolicy:
    """Makes the policy of an actor-critic that keeps its critic.

    Raises:
        ValueError: the actor-critic has a memory, which a search would have to track, or has no critic.
    """
    if not isinstance(actor_critic, ActorCritic):
        raise ValueError(
            f"`policy` must have a critic for a search, got a {type(actor_critic).__name__} without; try policy=mlp."
        )
    if jax.tree.leaves(actor_critic.initial_carry((1,))):
        raise ValueError("`policy` must be feed-forward for a search, got one with a carry; leave out its `memory`.")
    policy = as_policy(actor_critic)
    return EvaluatingPolicy(
        init=policy.init,
        initial_carry=policy.initial_carry,
        apply=policy.apply,
        evaluate=actor_critic.apply,
        draw_noise=policy.draw_noise,
    )

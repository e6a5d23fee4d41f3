"""Independent learning in a team (Tan, 1993): every agent has its own learner, and sees others as part of the world."""

import jax
import jax.numpy as jnp

from jaxagents.learners.combinators import side_by_side
from jaxagents.types import Array, Learner, Metrics, Rollout, State


def independent_agents(learner: Learner, num_agents: int) -> Learner:
    """Gives every agent of a team a learner: each has its own gradient norms, normalisation and moments.

    Args:
        learner: learner for the `Rollout`s of one agent.
        num_agents: N, number of agents.

    Returns:
        The learner of rollouts `[T, B, N, ...]`. Leaves of its state have a leading axis of N, as the parameters of
        `policies.teams.separate_parameters` do; metrics are means over the agents.

    References:
        Tan (1993), "Multi-Agent Reinforcement Learning: Independent vs. Cooperative Agents".
        De Witt et al. (2020), "Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?"
    """
    members = side_by_side(learner, num_agents)

    def update(state: State, key: Array, rollout: Rollout) -> tuple[State, Metrics]:
        state, metrics = members.update(state, key, split_agents(rollout))
        return state, jax.tree.map(lambda value: jnp.mean(value, axis=0), metrics)

    return members._replace(update=update)


def split_agents(rollout: Rollout) -> Rollout:
    """Puts the agent axis of a rollout first: leaves `[T, B, N, ...]` become `[N, T, B, ...]`; ends are repeated."""
    num_agents, transition = rollout.transition.reward.shape[2], rollout.transition
    shared = {name: getattr(transition, name) for name in ("terminated", "truncated", "first")}
    own = transition.replace(**dict.fromkeys(shared))
    own, carry = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 2, 0), (own, rollout.carry))
    repeated = {name: jnp.broadcast_to(flags, (num_agents, *flags.shape)) for name, flags in shared.items()}
    return Rollout(transition=own.replace(**repeated), carry=carry)

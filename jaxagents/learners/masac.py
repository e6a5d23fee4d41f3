"""MASAC: soft actor-critic (Haarnoja et al., 2018) for a team, whose critics see all agents (Lowe et al., 2017)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.learners import sac
from jaxagents.learners.agents import agent_weights, mean_over_agents
from jaxagents.types import (
    Agent,
    Array,
    Box,
    Carry,
    Environment,
    Learner,
    Metrics,
    Params,
    Policy,
    PolicyInput,
    PyTree,
    Sample,
    State,
)
from jaxagents.values.q_function import TwinQ


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., Policy],
    value: Callable[..., TwinQ],
    centralized: bool = True,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles SAC for a team with continuous actions: one policy and twin critics, which all agents share.

    Agent i minimises the losses of SAC with its own reward and `target_i = r_i + discount (min_e Q_e,i(s', a'_1 ...
    a'_N) - temperature log pi(a'_i | o'_i))`, with all `a'_j` drawn from the policy. With one agent this equals
    `learners.sac` bit by bit.

    Args:
        environment: environment with an agent axis and bounded continuous actions; observations are vectors, or those
            of `environments.teams.team_view`.
        policy: policy like that of `learners.sac.make_agent`, for one agent's observation.
        value: twin Q-function like that of `learners.sac.make_agent`.
        centralized: whether critics see what the whole team sees and does, see `make_team_critic`; False: independent
            SAC.
        axis_name: see `learners.sac.make_sac`.
        **options: further arguments of `learners.sac.make_agent`, except `model` and `explore`.

    Returns:
        The agent. Means of losses are over living agents, those of the metrics `q` and `entropy` over all.

    Raises:
        ValueError: there is no team, or observations are not vectors.

    References:
        Lowe et al. (2017), "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments", section 4.1.
        Bettini et al. (2024), "BenchMARL: Benchmarking Multi-Agent Reinforcement Learning" (`masac`, `isac`).

    Deviation: an agent's policy gradient uses only its own action, as in Lowe et al., not the others' actions in its
        critic, as in BenchMARL; the return of an agent that dies ends at its death.
    """
    num_agents = environment.num_agents
    if num_agents < 1:
        raise ValueError(f"`environment` must be a team, got {environment.name!r} without one; try algorithm=sac.")
    return sac.make_agent(
        environment,
        policy=lambda *spaces: make_team_policy(policy(*spaces)),
        value=partial(make_team_critic, value=value, num_agents=num_agents, centralized=centralized),
        model=lambda learner, *parts, axis_name: of_team(learner, num_agents, axis_name=axis_name),
        axis_name=axis_name,
        **options,
    )


def make_team_critic(
    observation_space: PyTree, action_space: Box, *, value: Callable[..., TwinQ], num_agents: int, centralized: bool
) -> TwinQ:
    """Makes critics of every agent's action that also take the others into account.

    The critic of agent i sees its observation and action, then those of agents i + 1, i + 2, ... in cyclic order; with
    a `team_view`, the team's state replaces the others' observations. Dead agents are zeros. No gradient flows to the
    actions of others.

    Args:
        observation_space: observation space of one agent.
        action_space: action space of one agent.
        value: `(observation_space, action_space) -> TwinQ`.
        num_agents: N, number of agents.
        centralized: whether to include the others.

    Returns:
        The critics, for observations `{"seen": [R N, ...], "alive": bool [R N]}` and actions `[R N, A]` in which the
        agents of a team follow each other.

    Raises:
        ValueError: observations are not vectors.
    """
    own, team = _split(observation_space)
    if not all(isinstance(space, Box) and len(space.shape) == 1 for space in (own, own if team is None else team)):
        raise ValueError(
            f"`environment` of a team's critics must show vectors, or those of `team_view`, got {observation_space}."
        )
    others = num_agents - 1
    further = others * (own.shape[0] if team is None else 0) + others * action_space.shape[0]
    further += 0 if team is None else team.shape[0]
    twin_q = value(Box((own.shape[0] + centralized * further,)), action_space)

    def see(observation: PyTree, action: Array) -> Array:
        seen, alive = observation["seen"], observation["alive"][:, None]
        own, team = _split(seen)
        if not centralized:
            return own
        action = jax.lax.stop_gradient(jnp.tanh(action))
        state = _of_others(jnp.where(alive, own, 0.0), num_agents) if team is None else team
        return jnp.concatenate([own, state, _of_others(jnp.where(alive, action, 0.0), num_agents)], axis=-1)

    def with_view(function: Callable[..., Any] | None) -> Any:
        if function is None:
            return None
        return lambda params, observation, action, *rest: function(params, see(observation, action), action, *rest)

    names = ("apply", "drop_out", "fit")
    return twin_q._replace(**{name: with_view(getattr(twin_q, name)) for name in names})


def make_team_policy(policy: Policy) -> Policy:
    """Makes a policy for the environments' observations that ignores the flags which `of_team` adds to them.

    Args:
        policy: policy for the observation of one agent.
    """

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any]:
        observation = inputs.observation
        if isinstance(observation, Mapping) and "alive" in observation:
            inputs = inputs.replace(observation=observation["seen"])
        return policy.apply(params, carry, inputs)

    return policy._replace(apply=apply)


def of_team(learner: Learner, num_agents: int, *, axis_name: str | None = None) -> Learner:
    """Makes a learner of a team's samples from one of single agents, which become further rows of its batch.

    Args:
        learner: learner for `Sample` batches, whose observations are those of `make_team_critic`.
        num_agents: N, number of agents.
        axis_name: mapped axis over which the batch is split.

    Returns:
        The learner of leaves `[n, B, N, ...]`. `extras["agent_mask"]` and `extras["next_agent_mask"]`, bool `[n, B,
        N]`, say who is alive: dead agents have weight zero, and every agent has its own end.

    Raises:
        ValueError: when traced, the rewards do not have N agents.
    """

    def update(state: State, key: Array, batch: Sample) -> tuple[State, Metrics]:
        state, metrics = learner.update(state, key, _to_rows(num_agents, batch, axis_name))
        alive = batch.transition.extras.get("agent_mask")
        priority: Any = metrics["priority"]
        priority = mean_over_agents(priority.reshape(-1, num_agents), None if alive is None else alive[0])
        return state, {**metrics, "priority": priority}

    return learner._replace(update=update)


def _to_rows(num_agents: int, batch: Sample, axis_name: str | None) -> Sample:
    step = batch.transition
    if step.reward.shape[2:] != (num_agents,):
        raise ValueError(f"`reward` must be [n, B, {num_agents}] for the team, got {step.reward.shape}.")
    everybody = jnp.ones(step.reward.shape, bool)
    alive = step.extras.get("agent_mask", everybody)
    next_alive = step.extras.get("next_agent_mask", everybody)
    weight = batch.weight[:, None] * agent_weights(alive[0], axis_name=axis_name)

    def to_rows(leaf: Array) -> Array:
        return leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:])

    def of_each(flags: Array) -> Array:
        return jnp.broadcast_to(flags[..., None], everybody.shape)

    rows = step.replace(
        observation={"seen": step.observation, "alive": alive},
        terminated=of_each(step.terminated) | ~next_alive,
        truncated=of_each(step.truncated),
        first=of_each(step.first),
        next_observation={"seen": step.next_observation, "alive": next_alive},
        action_mask=None,
        extras={},
    )
    return batch.replace(transition=jax.tree.map(to_rows, rows), weight=weight.reshape(-1))


def _of_others(rows: Array, num_agents: int) -> Array:
    """Returns the data of agents i + 1, i + 2, ... of each team, float32 `[R N, (N - 1) F]`, from rows `[R N, F]`."""
    agent = np.arange(num_agents)
    order = (agent[:, None] + agent[1:]) % num_agents
    teams = rows.reshape(-1, num_agents, rows.shape[-1])
    return teams[:, order].reshape(rows.shape[0], (num_agents - 1) * rows.shape[-1])


def _split(tree: PyTree) -> tuple[PyTree, PyTree | None]:
    """Returns what an agent sees itself, and what its team sees if there is a `team_view`."""
    return (tree["own"], tree["team"]) if isinstance(tree, Mapping) and {"own", "team"} <= {*tree} else (tree, None)

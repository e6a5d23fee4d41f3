"""MANSA (Mguni et al., 2023): a team that calls a central learner when it pays off."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.agents import mean_over_agents, require_agents, team_state
from jaxagents.learners.combinators import params_of
from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.optimizers import of_each_agent
from jaxagents.learners.qmix import make_team, make_value_decomposition
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import Number
from jaxagents.ops.checks import check_counts
from jaxagents.ops.schedules import linear_schedule
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.policies.switching import make_switched, split_mask
from jaxagents.policies.teams import separate_parameters
from jaxagents.types import (
    Agent,
    Array,
    Box,
    Carry,
    Discrete,
    Environment,
    Learner,
    Metrics,
    Params,
    PolicyInput,
    PyTree,
    Sample,
)
from jaxagents.values.q_function import QFunction

SWITCH_EPSILON = linear_schedule(start=0.5, end=0.05, num_updates=10_000)
"""The usual share of switches drawn evenly."""
_OF_AGENTS = ("agent_mask", "next_agent_mask", "next_action_mask")
"""Extras with an agent axis, which the switch has not."""


@struct.dataclass
class SwitchingState:
    """States of three learners, and the cost as an array (changing it needs no new compilation).

    Attributes:
        learners: learners by name: `independent`, `team`, `switch`.
        switching_cost: float32, cost of a call.
    """

    learners: dict[str, Any]
    switching_cost: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of `policies.switching.make_switched`."""
        return {name: state.params for name, state in self.learners.items()}


def make_switching(
    independent: Learner,
    team: Learner,
    switch: Learner,
    *,
    num_actions: int,
    switching_cost: float,
    axis_name: str | None = None,
) -> Learner:
    """Makes one learner from three, over `Sample` batches of `environments.calls.with_calls`.

    A step is a call, `g = 1`, if an action is `num_actions` or more. The independent learner learns from the steps
    without a call, the team's learner from calls only, and the switch, which chooses `g`, from all steps, with the
    rewards `mean_i r_i - switching_cost g`: it learns to call if the gain exceeds the cost.

    Args:
        independent: learner of the agents' own actions.
        team: central learner of the same actions.
        switch: learner of one action in {0, 1} for the team, whose observation has the agent axis.
        num_actions: A, number of actions of the world.
        switching_cost: c, cost of a call, in units of the reward. Zero with a budget of calls.
        axis_name: mapped axis over which batches are spread.

    Returns:
        The learner; wrap it in `with_replay`. `metrics["priority"]` is the larger error of the switch and of the
        learner to which the step belongs; `call_rate` is the share of calls in the sample, and the metrics of the three
        learners begin with their names.

    Raises:
        ValueError: `num_actions` is not positive, or the cost is negative.

    References:
        Mguni et al. (2023), "MANSA: Learning Fast and Slow in Multi-Agent Systems".

    Deviation: losses are averaged over the whole batch, with weight zero for the steps of the other learner, instead of
        separate buffers. The switch learns by Q-learning, which the paper mentions beside soft actor-critic.
    """
    check_counts(num_actions=num_actions)
    if switching_cost < 0.0:
        raise ValueError(f"`switching_cost` must not be negative, got {switching_cost}; try 0 for calls that are free.")
    learners = {"independent": independent, "team": team, "switch": switch}

    def init(key: Array, start: SwitchingState | Params | None = None) -> SwitchingState:
        keys = dict(zip(learners, jax.random.split(key, len(learners)), strict=True))
        starts = start.learners if isinstance(start, SwitchingState) else params_of(start)
        return SwitchingState(
            learners={
                name: learner.init(keys[name], None if starts is None else starts[name])
                for name, learner in learners.items()
            },
            switching_cost=jnp.float32(switching_cost),
        )

    def update(state: SwitchingState, key: Array, batch: Sample) -> tuple[SwitchingState, Metrics]:
        require_agents(batch.transition)
        samples, call = split_sample(batch, num_actions=num_actions, switching_cost=state.switching_cost)
        keys = dict(zip(learners, jax.random.split(key, len(learners)), strict=True))
        states, metrics, priority = {}, {}, {}  # type: dict[str, Any], dict[str, Any], dict[str, Any]
        for name, learner in learners.items():
            states[name], own = learner.update(state.learners[name], keys[name], samples[name])
            own = dict(own)
            priority[name] = own.pop("priority")
            metrics |= {f"{name}_{metric}": value for metric, value in own.items()}
        metrics["loss"] = sum(metrics[f"{name}_loss"] for name in learners)
        call_rate = jnp.mean(call, dtype=jnp.float32)
        metrics["call_rate"] = call_rate if axis_name is None else jax.lax.pmean(call_rate, axis_name)
        metrics["priority"] = jnp.maximum(
            priority["switch"], jnp.where(call, priority["team"], priority["independent"])
        )
        return state.replace(learners=states), metrics

    return Learner(init=init, update=update)


def split_sample(batch: Sample, *, num_actions: int, switching_cost: Array | float) -> tuple[dict[str, Sample], Array]:
    """Splits a batch into the parts from which the independent learner, the central learner and the switch learn.

    Args:
        batch: leaves `[n, B, N, ...]`, actions in `0 .. 2 A - 1`.
        num_actions: A, number of actions of the world.
        switching_cost: c, cost of a call.

    Returns:
        The batches `independent` and `team`, with actions in `0 .. A - 1` and weight zero if the first step belongs to
        the other; the batch `switch`, with the team's mean reward minus costs, whose action `[n, B]` is whether it
        called; and whether the first step was a call, bool `[B]`. Costs of later steps are part of n-step returns.
    """
    transition = batch.transition
    call = jnp.any(transition.action >= num_actions, axis=-1)
    of_agents = dict(transition.extras)
    of_switch = {name: value for name, value in of_agents.items() if name not in _OF_AGENTS}
    if "next_action_mask" in of_agents:
        masks = split_mask(of_agents["next_action_mask"])
        of_agents["next_action_mask"], of_switch["next_action_mask"] = masks
    agents = transition.replace(action=transition.action % num_actions, action_mask=None, extras=of_agents)
    switch = transition.replace(
        action=call.astype(jnp.int32),
        reward=mean_over_agents(transition.reward, of_agents.get("agent_mask")) - switching_cost * call,
        action_mask=None,
        extras=of_switch,
    )
    samples = {
        "independent": Sample(transition=agents, weight=batch.weight * ~call[0]),
        "team": Sample(transition=agents, weight=batch.weight * call[0]),
        "switch": Sample(transition=switch, weight=batch.weight),
    }
    return samples, call[0]


def see_team(make_q_function: Callable[..., QFunction], num_agents: int, observation_space: PyTree) -> QFunction:
    """Makes the values of calling or not, as a function of what the team sees.

    Args:
        make_q_function: `(observation_space, action_space) -> QFunction`.
        num_agents: N, number of agents.
        observation_space: observation space of one agent.

    Returns:
        The function, from observations `[T, B, N, *shape]` to `[T, B, 2]`.
    """
    shapes = jax.tree.map(
        lambda space: jax.ShapeDtypeStruct((1, num_agents, *space.shape), space.dtype), observation_space
    )
    size = jax.eval_shape(team_state, shapes).shape[-1]
    q_function = make_q_function(Box((size,)), Discrete(2))

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Array]:
        seen = team_state(inputs.observation, num_leading=2)
        return q_function.apply(params, carry, inputs.replace(observation=seen))

    return q_function._replace(apply=apply)


def make_agent(
    environment: Environment,
    *,
    value: Callable[..., QFunction],
    mixer: nn.Module,
    switch: Callable[..., QFunction],
    switching_cost: float,
    switch_epsilon: Number = SWITCH_EPSILON,
    share_parameters: bool = True,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles MANSA: independent Q-learning, value decomposition, and a switch between them.

    Args:
        environment: environment from `environments.calls.with_calls`; defines the spaces and the number of agents.
        value: `(observation_space, action_space) -> QFunction` of one agent, for both learners of the world's actions.
        mixer: see `make_value_decomposition`.
        switch: `(observation_space, action_space) -> QFunction` on what the team sees (see `team_state`), a vector.
        switching_cost: see `make_switching`.
        switch_epsilon: share of random switches. Paper: 0.5 at first. It falls more slowly than that of the agents,
            because a call of agents that act at random is worth nothing.
        share_parameters: whether all agents share parameters.
        axis_name: see `make_dqn`.
        **options: further arguments of `make_dqn`, for all three, and of `replay_agent`.

    Raises:
        ValueError: the environment is not from `with_calls`, or a number is out of its range.
    """
    _require_calls(environment)
    space, num_agents = environment.observation_space, environment.num_agents
    num_actions = environment.action_space.num_values // 2  # type: ignore[union-attr]
    q_function = value(space, Discrete(num_actions))
    if not share_parameters:
        q_function = separate_parameters(q_function, num_agents)
    switch_q = see_team(switch, num_agents, space)

    def make_learner(optimizer: optax.GradientTransformation, **options: Any) -> Learner:
        own = optimizer if share_parameters else of_each_agent(optimizer, num_agents)
        return make_switching(
            make_dqn(q_function, own, **options),
            make_value_decomposition(
                q_function, mixer, optimizer, num_agents=num_agents, observation_space=space, **options
            ),
            make_dqn(switch_q, optimizer, **options | {"epsilon": switch_epsilon}),
            num_actions=num_actions,
            switching_cost=switching_cost,
            axis_name=axis_name,
        )

    policy = make_switched(
        make_epsilon_greedy(q_function),
        make_epsilon_greedy(make_team(q_function, mixer, num_agents, space)),
        make_epsilon_greedy(switch_q),
    )
    return replay_agent(make_learner, policy, environment, axis_name=axis_name, **options)


def _require_calls(environment: Environment) -> None:
    timestep = jax.eval_shape(lambda key: environment.reset(key, environment.sample_task(key))[1], jax.random.key(0))
    if "calls" not in timestep.info.get("metrics", {}):
        raise ValueError(
            f"`environment` must have actions that call the central learner, got {environment.name!r} without; try "
            "`environments.calls.with_calls` around it."
        )

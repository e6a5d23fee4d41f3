"""QMIX (Rashid et al., 2018) and VDN (Sunehag et al., 2018): the value of a team from those of its agents."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.agents import mean_over_agents, per_agent, team_state
from jaxagents.learners.dqn import DQNState, Minimised, make_dqn, sequence_priority
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import Bound
from jaxagents.ops.value_distributions import select_action
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.policies.teams import separate_parameters
from jaxagents.types import (
    Agent,
    Array,
    Carry,
    Environment,
    Learner,
    Metrics,
    Params,
    PolicyInput,
    PyTree,
    QView,
    Sample,
)
from jaxagents.values.q_function import QFunction


def make_value_decomposition(
    q_function: QFunction,
    mixer: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    num_agents: int,
    observation_space: PyTree,
    **options: Any,
) -> Learner:
    """Makes a DQN of the team's value, over `Sample` batches with an agent axis.

    Minimises `mean(weight * huber(return + discount^n Q_target(s_t+n, a*) - Q(s_t, a_t)))` over the steps t to learn
    from, where `Q(s, a) = mixer(q_1(h_1, a_1), ..., q_N(h_N, a_N), s)` and `a*` contains the best action of every
    agent. Rewards are means over living agents, like the episode's return. Dead agents, and padding, add a value of
    zero.

    Args:
        q_function: Q-function of one agent, applied along the agent axis; `h_i` is its observation, or its memory of
            the sequence. For separate Q-functions, see `separate_parameters`.
        mixer: module of `networks.mixers`; sums give VDN, monotonic mixtures give QMIX.
        optimizer: optax transformation, including clipping and schedule.
        num_agents: N, number of agents.
        observation_space: observation space of one agent; defines the size of the state (see
            `learners.agents.team_state`).
        **options: further arguments of `make_dqn`.

    Returns:
        The learner; wrap it in `with_replay`. Its network is `{"agents", "mixer"}`. `extras["next_action_mask"]` (bool
        `[n, B, N, A]`) restricts the maxima, and `extras["agent_mask"]` and `extras["next_agent_mask"]` (bool `[n, B,
        N]`) say who is alive.

    Raises:
        ValueError: a number is out of its range, there is no team, or the values are noisy or distributions.

    References:
        Sunehag et al. (2018), equation 2; Rashid et al. (2018), equation 6; double Q-learning as in the latter's code.
    """
    _require_expectations(q_function, num_agents, observation_space, options)
    team = make_team(q_function, mixer, num_agents, observation_space)
    learner = make_dqn(team, optimizer, objective=partial(_loss, mixer), **options)

    def update(state: DQNState, key: Array, batch: Sample) -> tuple[DQNState, Metrics]:
        return learner.update(state, key, _share_rewards(num_agents, batch))

    return learner._replace(update=update)


def make_team(q_function: QFunction, mixer: nn.Module, num_agents: int, observation_space: PyTree) -> QFunction:
    """Makes the values by which the agents act, with the parameters of a value decomposition.

    Args:
        q_function: see `make_value_decomposition`.
        mixer: see `make_value_decomposition`.
        num_agents: N, number of agents.
        observation_space: observation space of one agent.

    Returns:
        The function, with parameters `{"agents", "mixer"}`.

    Raises:
        ValueError: there is no team.
    """
    if num_agents < 1:
        raise ValueError(f"`num_agents` must be at least 1, got {num_agents}; try `learner=dqn` without an agent axis.")

    def init(key: Array) -> Params:
        agents_key, mixer_key = jax.random.split(key)
        observation = jax.tree.map(lambda space: jnp.zeros((1, num_agents, *space.shape)), observation_space)
        return {
            "agents": q_function.init(agents_key),
            "mixer": mixer.init(mixer_key, jnp.zeros((1, num_agents)), team_state(observation)),
        }

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Array]:
        return q_function.apply(params["agents"], carry, inputs)

    return q_function._replace(init=init, apply=apply)


def make_agent(
    environment: Environment,
    *,
    value: Callable[..., QFunction],
    mixer: nn.Module,
    share_parameters: bool = True,
    **options: Any,
) -> Agent:
    """Assembles value decomposition for a team.

    Args:
        environment: environment that defines the spaces and the number of agents.
        value: `(observation_space, action_space) -> QFunction` of one agent.
        mixer: see `make_value_decomposition`.
        share_parameters: whether all agents share parameters.
        **options: further arguments of `make_value_decomposition` and of `replay_agent`.
    """
    space, num_agents = environment.observation_space, environment.num_agents
    q_function = value(space, environment.action_space)
    if not share_parameters:
        q_function = separate_parameters(q_function, num_agents)
    make_learner = partial(make_value_decomposition, q_function, mixer, num_agents=num_agents, observation_space=space)
    policy = make_epsilon_greedy(make_team(q_function, mixer, num_agents, space))
    return replay_agent(make_learner, policy, environment, **options)


def _loss(
    mixer: nn.Module,
    network: Params,
    target_network: Params,
    values: Array,
    view: QView,
    batch: Sample,
    *,
    slots: Mapping[str, Bound],
    share: Array,
) -> Minimised:
    def mix(params: Params, q: Array, alive: Array | None, observation: PyTree) -> Array:
        state = team_state(observation, num_leading=2)
        return mixer.apply(params["mixer"], q if alive is None else jnp.where(alive, q, 0.0), state)

    of_best, _ = slots["target"](view.replace(reward=jnp.zeros_like(view.reward), discount=jnp.ones_like(view.reward)))
    step, last = view.transition, view.last
    team_q = mix(network, select_action(values, view.action), step.extras.get("agent_mask"), step.observation)
    next_team_q = mix(target_network, of_best, last.extras.get("next_agent_mask"), last.next_observation)
    target = jax.lax.stop_gradient(view.reward[..., 0] + view.discount[..., 0] * next_team_q)
    losses, summary = slots["loss"](team_q, target)
    total, error = jnp.mean(batch.weight[None] * losses), jnp.abs(target - team_q)
    metrics = {"loss": total, "absolute_error": jnp.mean(error), "q": jnp.mean(team_q)}
    return total, (metrics, sequence_priority(error, share), summary)


def _share_rewards(num_agents: int, batch: Sample) -> Sample:
    """Gives every agent the mean reward over living agents."""
    transition = batch.transition
    if transition.reward.shape[2:] != (num_agents,):
        raise ValueError(f"`reward` must be [n, B, {num_agents}] for the mixer, got {transition.reward.shape}.")
    mean = mean_over_agents(transition.reward, transition.extras.get("agent_mask"))
    return batch.replace(transition=transition.replace(reward=per_agent(mean, transition.reward)))


def _require_expectations(
    q_function: QFunction, num_agents: int, observation_space: PyTree, options: Mapping[str, Any]
) -> None:
    """Refuses values that a mixture of expectations cannot use."""
    if num_agents < 1:
        return  # `make_team` refuses this.
    if q_function.draw_noise or q_function.draw_learning_noise:
        raise ValueError("`value` must be without noise in a mixture, got one with noise; try value.noise_scale=null.")
    if options.get("target"):
        raise ValueError(
            f"`target` must be left out of a mixture, got {options['target']}; targets are of the team, see `double`."
        )
    observation = jax.tree.map(
        lambda space: jnp.zeros((1, 1, num_agents, *space.shape), space.dtype), observation_space
    )
    inputs = PolicyInput(observation=observation, first=jnp.ones((1, 1), bool))
    carry = q_function.initial_carry((1, num_agents))
    values = jax.eval_shape(lambda key: q_function.apply(q_function.init(key), carry, inputs)[1], jax.random.key(0))
    if not isinstance(values, jax.ShapeDtypeStruct):
        raise ValueError(
            f"`value.distribution` must be null in a mixture, got {type(values).__name__}; expectations are mixed."
        )

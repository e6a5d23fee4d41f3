"""QMIX (Rashid et al., 2018) and VDN (Sunehag et al., 2018): the value of a team from those of its agents."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.agents import mean_over_agents, team_state
from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.q_values import discount_per_step
from jaxagents.learners.replay import first_step, gather_step, replay_agent
from jaxagents.ops.returns import n_step_transition
from jaxagents.ops.value_distributions import mask_q, select_action
from jaxagents.policies.actor_critic import act
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.policies.teams import separate_parameters
from jaxagents.types import Agent, Array, Carry, Environment, Learner, Params, PolicyInput, PyTree, Sample
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
    """Makes DQN of the team's value, over `Sample` batches with an agent axis.

    Minimises `mean(weight * huber(return + discount^n Q_target(s_n, a*) - Q(s_0, a_0)))`, where
    `Q(s, a) = mixer(q_1(o_1, a_1), ..., q_N(o_N, a_N), s)` and `a*` holds the best action of every agent. Rewards are
    means over the living agents, as the episode's return is. Dead agents, and those that only pad, add a value of zero.

    Args:
        q_function: of one agent, feed-forward, applied along the agent axis; see `separate_parameters` for one of each.
        mixer: a module of `networks.mixers`; sums give VDN, monotonic mixtures QMIX.
        optimizer: an optax transformation, clipping and schedule included.
        num_agents: N.
        observation_space: of one agent; gives the size of the state (see `learners.agents.team_state`).
        **options: further arguments of `make_dqn`.

    Returns:
        The learner; wrap it in `with_replay`. Its network is `{"agents", "mixer"}`. `extras["next_action_mask"]` (bool
        `[n, B, N, A]`) restricts the maxima, `extras["agent_mask"]` and `extras["next_agent_mask"]` (bool `[n, B, N]`)
        say who is alive.

    Raises:
        ValueError: a number is out of its range, there is no team, or the values have a memory or are distributions.

    References:
        Sunehag et al. (2018), equation 2; Rashid et al. (2018), equation 6; double Q-learning as in the latter's code.
    """
    _require_expectations(q_function, num_agents, observation_space, options)
    team = make_team(q_function, mixer, num_agents, observation_space)
    return make_dqn(team, optimizer, objective=partial(_loss, q_function, mixer, num_agents), **options)


def make_team(q_function: QFunction, mixer: nn.Module, num_agents: int, observation_space: PyTree) -> QFunction:
    """Makes the values that the agents act by, of the parameters of a value decomposition.

    Args:
        q_function: see `make_value_decomposition`.
        mixer: see `make_value_decomposition`.
        num_agents: N.
        observation_space: of one agent.

    Returns:
        The function; parameters `{"agents", "mixer"}`.

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
        environment: gives the spaces and the number of agents.
        value: `(observation_space, action_space) -> QFunction` of one agent.
        mixer: see `make_value_decomposition`.
        share_parameters: False gives every agent parameters of its own.
        **options: of `make_value_decomposition` and of `replay_agent`.
    """
    space, num_agents = environment.observation_space, environment.num_agents
    q_function = value(space, environment.action_space)
    if not share_parameters:
        q_function = separate_parameters(q_function, num_agents)
    make_learner = partial(make_value_decomposition, q_function, mixer, num_agents=num_agents, observation_space=space)
    policy = make_epsilon_greedy(make_team(q_function, mixer, num_agents, space))
    return replay_agent(make_learner, policy, environment, **options)


def _loss(
    q_function: QFunction,
    mixer: nn.Module,
    num_agents: int,
    network: Params,
    target_network: Params,
    batch: Sample,
    *,
    discount: Array,
    loss: Callable[..., tuple[Array, dict[str, PyTree]]],
    double: bool,
) -> tuple[Array, tuple[dict[str, Array], Array, dict[str, PyTree]]]:
    transition = batch.transition
    if transition.reward.shape[2:] != (num_agents,):
        raise ValueError(f"`reward` must be [n, B, {num_agents}] for the mixer, got {transition.reward.shape}.")
    agent_mask = transition.extras.get("agent_mask")
    reward, bootstrap_discount, index = n_step_transition(
        mean_over_agents(transition.reward, agent_mask),
        transition.terminated,
        transition.truncated,
        discount=discount_per_step(transition, discount),
    )
    observation, next_observation = first_step(transition.observation), gather_step(transition.next_observation, index)

    def values(params: Params, observation: PyTree) -> Array:
        inputs = PolicyInput(observation=observation, first=jnp.ones(transition.first.shape[1:], bool))
        return act(q_function, params["agents"], (), inputs)[1]

    next_q = values(target_network, next_observation)
    selector = values(network, next_observation) if double else next_q
    next_action_mask = gather_step(transition.extras.get("next_action_mask"), index)
    next_action = jnp.argmax(mask_q(selector, next_action_mask), axis=-1)

    def mix(params: Params, q: Array, alive: Array | None, observation: PyTree) -> Array:
        return mixer.apply(params["mixer"], q if alive is None else jnp.where(alive, q, 0.0), team_state(observation))

    q = select_action(values(network, observation), first_step(transition.action))
    team_q = mix(network, q, first_step(agent_mask), observation)
    next_alive = gather_step(transition.extras.get("next_agent_mask"), index)
    next_team_q = mix(target_network, select_action(next_q, next_action), next_alive, next_observation)
    target = jax.lax.stop_gradient(reward + bootstrap_discount * next_team_q)
    error = target - team_q
    losses, summary = loss(team_q, target)
    total = jnp.mean(batch.weight * losses)
    metrics = {"loss": total, "absolute_error": jnp.mean(jnp.abs(error)), "q": jnp.mean(team_q)}
    return total, (metrics, jnp.abs(error), summary)


def _require_expectations(
    q_function: QFunction, num_agents: int, observation_space: PyTree, options: Mapping[str, Any]
) -> None:
    """Refuses what the mixture of values has no place for."""
    if num_agents < 1:
        return  # Refused with the team.
    if jax.tree.leaves(q_function.initial_carry((1,))) or q_function.draw_noise:
        found = "noise" if q_function.draw_noise else "a memory"
        raise ValueError(
            f"`value` must be feed-forward and without noise in a mixture, got one with {found}; try policy=mlp, or "
            "policy=team_mlp in a world whose agents see their team."
        )
    if unread := [name for name in ("burn_in", "num_steps", "target") if options.get(name)]:
        raise ValueError(
            f"`{unread[0]}` must be left out of a mixture, got {options[unread[0]]}; targets are of the team, of all "
            "steps of a sequence."
        )
    observation = jax.tree.map(
        lambda space: jnp.zeros((1, 1, num_agents, *space.shape), space.dtype), observation_space
    )
    inputs = PolicyInput(observation=observation, first=jnp.ones((1, 1), bool))
    values = jax.eval_shape(lambda key: q_function.apply(q_function.init(key), (), inputs)[1], jax.random.key(0))
    if not isinstance(values, jax.ShapeDtypeStruct):
        raise ValueError(
            f"`value.distribution` must be null in a mixture, got {type(values).__name__}; expectations are mixed."
        )

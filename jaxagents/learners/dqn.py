"""Deep Q-networks with double, dueling, multi-step and prioritised variants, of one agent or of independent ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.agents import living_weights, mean_over_living, per_agent, require_agents
from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import Trainable, carry_over, descend, init_optimizer
from jaxagents.learners.replay import first_step, gather_step, make_replay_agent
from jaxagents.learners.slots import Numbers, Slot, numbers_of, with_numbers
from jaxagents.losses.q import double_q_target, q_target, select_action
from jaxagents.losses.value import huber_loss
from jaxagents.ops.returns import n_step_transition
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, Sample, Transition
from jaxagents.values.q_function import QFunction
from jaxagents.values.teams import separate_parameters


@struct.dataclass
class DQNState:
    """Networks, optimiser state, and hyper-parameters as arrays (a changed number is the same program)."""

    network: Params
    target_network: Params
    opt_state: optax.OptState
    num_updates: Array
    hyperparameters: dict[str, Array]
    slots: dict[str, Numbers]

    @property
    def params(self) -> Params:
        """Returns the parameters of `policies.epsilon_greedy`, with the epsilon that is due."""
        start, end = self.hyperparameters["epsilon_start"], self.hyperparameters["epsilon_end"]
        fraction = jnp.minimum(self.num_updates / self.hyperparameters["epsilon_decay_updates"], 1.0)
        return {"network": self.network, "epsilon": start + fraction * (end - start)}


def make_dqn(
    q_function: QFunction,
    optimizer: optax.GradientTransformation,
    *,
    discount: float = 0.99,
    double: bool = True,
    huber_delta: float = 1.0,
    target_update_period: int = 1,
    target_update_rate: float = 0.005,
    epsilon_start: float = 1.0,
    epsilon_end: float = 0.05,
    epsilon_decay_updates: int = 10_000,
    loss: Slot | None = None,
    target: Slot | None = None,
    objective: Callable[..., tuple[Array, tuple[dict[str, Array], Array]]] | None = None,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes DQN over `Sample` batches; the length of their sequences is the `n` of the n-step targets.

    Minimises `mean(weight * huber(return + discount^n Q_target(s_n, argmax_a Q(s_n, a)) - Q(s_0, a_0)))`. Every
    `target_update_period` updates, `Q_target` moves to `Q` by the share `target_update_rate`: a period of thousands and
    a rate of 1 are the copies of DQN, a period of 1 and a small rate are Polyak averaging.

    Args:
        q_function: of a discrete space.
        optimizer: an optax transformation, clipping and schedule included.
        discount: gamma in [0, 1], per step.
        double: True selects the next action by the online network, False by the target network.
        huber_delta: where the loss turns linear, in units of the value. Paper: 1.
        target_update_period: in updates.
        target_update_rate: in (0, 1].
        epsilon_start: share of random actions before the first update.
        epsilon_end: share after `epsilon_decay_updates`.
        epsilon_decay_updates: updates over which the share falls linearly.
        loss: `(value, target) -> per element`; null takes `huber_loss`. Floats of a partial are kept in the state as
            arrays.
        target: `(reward, discount, next_q, next_q_selector, *, next_action_mask) -> target`, of the target network and
            of the online network; null takes that of `double`.
        objective: another loss of the same parameters, `(network, target_network, sample, *, discount, loss, double) ->
            (loss, (metrics, priority [B]))`; null takes the one above.
        trainable: prefix pytree of bool of the network's parameters, see `descend`; null: everything learns.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner; wrap it in `with_replay`. `metrics["priority"]` is `|error|`, float32 `[B]`.
        `transition.extras["next_action_mask"]` (bool `[n, B, A]`), where present, restricts the maximum;
        `transition.extras["perspective"]` multiplies the discount, as in PPO. With an agent axis (rewards `[n, B, N]`)
        it is independent Q-learning: the mean over agents, of the living where `extras["agent_mask"]` says who is.

    Raises:
        ValueError: if a number is out of its range.

    References:
        Mnih et al. (2015), algorithm 1; Van Hasselt, Guez and Silver (2016), equation 4; Tan (1993), section 4.

    Deviation: multi-step targets have no off-policy correction, as in Hessel et al. (2018), equation 1.
    """
    fractions = {"discount": discount, "epsilon_start": epsilon_start, "epsilon_end": epsilon_end}
    positive = {"huber_delta": huber_delta, "epsilon_decay_updates": epsilon_decay_updates}
    positive |= {"target_update_period": target_update_period, "target_update_rate": target_update_rate}
    check_fractions(**fractions, target_update_rate=target_update_rate)
    check_positive(**positive)
    hyperparameters = fractions | positive
    slots = {"loss": loss, "target": target or (double_q_target if double else q_target)}

    def evaluate(network: Params, state: DQNState, batch: Sample) -> tuple[Array, tuple[dict[str, Array], Array]]:
        numbers = state.hyperparameters
        terms = {"loss": partial(huber_loss, delta=numbers["huber_delta"])} | with_numbers(slots, state.slots)
        arguments = {"discount": numbers["discount"], "loss": terms["loss"]}
        if objective is not None:
            return objective(network, state.target_network, batch, double=double, **arguments)
        return _loss(
            q_function, network, state.target_network, batch, target=terms["target"], axis_name=axis_name, **arguments
        )

    def init(key: Array, start: DQNState | Params | None = None) -> DQNState:
        network = q_function.init(key) if start is None else params_of(start)["network"]
        # Copies, because a donated state must not hold one buffer twice.
        target_network, opt_state = jax.tree.map(jnp.copy, network), init_optimizer(optimizer, network, trainable)
        if isinstance(start, DQNState):
            target_network, opt_state = start.target_network, carry_over(opt_state, start.opt_state)
        return DQNState(
            network=network,
            target_network=target_network,
            opt_state=opt_state,
            num_updates=jnp.zeros((), jnp.int32),
            hyperparameters={name: jnp.float32(value) for name, value in hyperparameters.items()},
            slots=numbers_of(slots),
        )

    def update(state: DQNState, key: Array, batch: Sample) -> tuple[DQNState, Metrics]:
        del key
        require_agents(batch.transition)
        grads, (metrics, priority) = jax.grad(evaluate, has_aux=True)(state.network, state, batch)
        if axis_name is not None:
            metrics = jax.lax.pmean(metrics, axis_name)
        network, opt_state, gradient_norm = descend(
            grads, state.network, state.opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        num_updates = state.num_updates + 1
        due = num_updates % state.hyperparameters["target_update_period"].astype(jnp.int32) == 0
        rate = jnp.where(due, state.hyperparameters["target_update_rate"], 0.0)
        new_state = state.replace(
            network=network,
            target_network=optax.incremental_update(network, state.target_network, rate),
            opt_state=opt_state,
            num_updates=num_updates,
        )
        metrics = metrics | {"gradient_norm": gradient_norm, "epsilon": state.params["epsilon"]}
        return new_state, metrics | {"priority": priority}

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    value: Callable[..., QFunction],
    optimizer: Callable[..., optax.GradientTransformation],
    buffer: Any,
    updates_per_rollout: int = 1,
    normalize_observations: bool = False,
    share_parameters: bool = True,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles DQN for an environment of one agent, or independent Q-learning for a team.

    Args:
        environment: gives the spaces.
        value: `(observation_space, action_space) -> QFunction`.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        buffer: `data.buffers.Buffer`.
        updates_per_rollout: see `with_replay`.
        normalize_observations: standardises observations by running statistics of the samples.
        share_parameters: False gives every agent of a team parameters of its own.
        axis_name: see `make_dqn`.
        **options: further arguments of `make_dqn`.

    Returns:
        The agent.

    Raises:
        ValueError: parameters that are not shared, without a team.
    """
    q_function = value(environment.observation_space, environment.action_space)
    if not share_parameters:
        q_function = separate_parameters(q_function, environment.num_agents, environment.observation_space)
    make = partial(make_dqn, q_function, axis_name=axis_name, **options)
    make(optax.identity())  # Refuses settings before anything is compiled.
    return make_replay_agent(
        make_epsilon_greedy(q_function),
        lambda num_updates: make(optimizer(num_updates * updates_per_rollout)),
        buffer,
        environment.observation_space,
        updates_per_rollout=updates_per_rollout,
        normalize_observations=normalize_observations,
        axis_name=axis_name,
    )


def discount_per_step(transition: Transition, discount: Array) -> Array:
    """Returns the discount of every step, `[n, B]`, negative where the opponent values the successor."""
    return jnp.broadcast_to(discount * transition.extras.get("perspective", 1.0), transition.terminated.shape)


def _loss(
    q_function: QFunction,
    network: Params,
    target_network: Params,
    batch: Sample,
    *,
    discount: Array,
    loss: Callable[..., Array],
    target: Callable[..., Array],
    axis_name: str | None,
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    transition = batch.transition
    reward = transition.reward
    reward, bootstrap_discount, index = n_step_transition(
        reward,
        per_agent(transition.terminated, reward),
        per_agent(transition.truncated, reward),
        discount=per_agent(discount_per_step(transition, discount), reward),
    )
    # Agents share the ends of their episodes.
    index = index if index.ndim == 1 else index[:, 0]
    q = q_function.apply(network, first_step(transition.observation))
    action = first_step(transition.action)
    next_observation = gather_step(transition.next_observation, index)
    next_action_mask = gather_step(transition.extras.get("next_action_mask"), index)
    targets = jax.lax.stop_gradient(
        target(
            reward,
            bootstrap_discount,
            q_function.apply(target_network, next_observation),
            q_function.apply(network, next_observation),
            next_action_mask=next_action_mask,
        )
    )
    chosen = select_action(q, action)
    losses, error = loss(chosen, targets), targets - chosen
    agent_mask = first_step(transition.extras.get("agent_mask"))
    weight = per_agent(batch.weight, error)
    if agent_mask is not None:
        weight = weight * living_weights(agent_mask, axis_name=axis_name)
    total = jnp.mean(weight * losses)
    metrics = {"loss": total, "absolute_error": jnp.mean(jnp.abs(error)), "q": jnp.mean(q)}
    priority = jnp.abs(error)
    return total, (metrics, priority if priority.ndim == 1 else mean_over_living(priority, agent_mask))

"""DQN (Mnih et al., 2015): double, dueling, multi-step, distributional, recurrent; for one agent or a team."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.agents import agent_weights, mean_over_agents, per_agent, require_agents
from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import (
    Trainable,
    apply_updates,
    carry_over,
    init_optimizer,
    learning_rate_of,
    of_each_agent,
)
from jaxagents.learners.q_values import values_of_sample
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import Bound, Number, SettingsState, Slot, make_settings, without_memory
from jaxagents.losses.q import double_q_target, q_loss, q_target
from jaxagents.ops.checks import check_counts
from jaxagents.ops.schedules import linear_schedule
from jaxagents.ops.value_distributions import Values, expected_values, select_action
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.policies.teams import separate_parameters
from jaxagents.types import Agent, Array, Environment, Learner, Metrics, Params, PyTree, QView, Sample
from jaxagents.values.q_function import QFunction

Minimised = tuple[Array, tuple[dict[str, Array], Array, dict[str, PyTree]]]
Objective = Callable[..., Minimised]
EPSILON = linear_schedule(start=1.0, end=0.05, num_updates=10_000)
"""The usual share of random actions."""


@struct.dataclass
class DQNState:
    """State of the learner.

    Attributes:
        network: parameters of the online network.
        target_network: parameters of the target network.
        opt_state: state of the optimiser.
        num_updates: int32, number of updates so far.
        epsilon: float32, current share of random actions.
        settings: hyper-parameters that can change, and slots.
    """

    network: Params
    target_network: Params
    opt_state: optax.OptState
    num_updates: Array
    epsilon: Array
    settings: SettingsState

    @property
    def params(self) -> Params:
        """Returns the parameters of `policies.epsilon_greedy`, with the current epsilon."""
        return {"network": self.network, "epsilon": self.epsilon}


def make_dqn(
    q_function: QFunction,
    optimizer: optax.GradientTransformation,
    *,
    discount: Number = 0.99,
    num_steps: int | None = None,
    burn_in: int = 0,
    double: bool = True,
    huber_delta: Number = 1.0,
    target_update_period: Number = 1,
    target_update_rate: Number = 0.005,
    epsilon: Number = EPSILON,
    priority_max_share: Number = 0.9,
    loss: Slot | None = None,
    target: Slot | None = None,
    objective: Objective | None = None,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes DQN over `Sample` batches.

    Minimises `mean(weight * loss(Q(s_t, a_t), return_t + discount^n Q_target(s_t+n, argmax_a Q(s_t+n, a))))`; sequences
    of `burn_in + n + k` steps have `k + 1` steps to learn from. Every `target_update_period` updates, `Q_target` moves
    towards `Q` by the fraction `target_update_rate`: a period of thousands and a rate of 1 give the copies of DQN; a
    period of 1 and a small rate give Polyak averaging. Every number may be a schedule (see `ops.schedules`), and every
    slot a `Stateful`.

    Args:
        q_function: Q-function, whose distribution, memory and noise give C51, QR-DQN, IQN, R2D2 and noisy nets.
        optimizer: optax transformation, including clipping and schedule.
        discount: gamma in [0, 1], per step.
        num_steps: n; null uses all steps of a sequence after the burn-in.
        burn_in: number of first steps of a sequence that only warm up the memory, from the stored carry.
        double: whether the online network selects the next action; else the target network does.
        huber_delta: error from which the loss is linear, in units of the value. Paper: 1.
        target_update_period: number of updates between updates of the target network.
        target_update_rate: fraction by which the target network moves, in (0, 1].
        epsilon: share of random actions.
        priority_max_share: eta, weight of a sequence's largest error in its priority; the mean has the rest. R2D2: 0.9.
        loss: `(values of the actions, targets) -> per element`; null: `losses.q.q_loss`.
        target: `(view: QView) -> targets`; null: chosen by `double`.
        objective: replacement of the mean loss, `(network, target_network, values, view, sample, *, slots, share) ->
            (loss, (metrics, priority [B], summaries))` with the values of the steps and the slots `loss` and `target`;
            for `share`, see `sequence_priority`.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        trainable: prefix pytree of bool of the network's parameters, see `apply_updates`; null: everything is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner; wrap it in `with_replay`. `metrics["priority"]` is that of `|error|`, or of the loss for
        distributions, float32 `[B]`. If present, `transition.extras["next_action_mask"]` (bool `[n, B, A]`) restricts
        the maximum, and `transition.extras["perspective"]` multiplies the discount, as in PPO. With an agent axis
        (rewards `[n, B, N]`), it is independent Q-learning: the mean over (living, `extras["agent_mask"]`) agents.

    Raises:
        ValueError: a number is out of its range.

    References:
        Mnih et al. (2015), algorithm 1; Van Hasselt, Guez and Silver (2016), equation 4; Tan (1993), section 4.

    Deviation: multi-step targets have no off-policy correction, as in Hessel et al. (2018), equation 1.
    """
    fractions = {"discount": discount, "priority_max_share": priority_max_share, "epsilon": epsilon}
    positive = {"huber_delta": huber_delta, "target_update_period": target_update_period}
    positive |= {"target_update_rate": target_update_rate}
    _check_numbers(num_steps, burn_in, fractions | {"target_update_rate": target_update_rate}, positive)
    target = target or (double_q_target if double else q_target)
    settings = make_settings(fractions | positive, {"loss": loss, "target": target})
    values_of = partial(values_of_sample, q_function, num_steps=num_steps, burn_in=burn_in, axis_name=axis_name)

    def evaluate(network: Params, state: DQNState, batch: Sample, key: Array) -> tuple[Array, Any]:
        numbers, slots = settings.open(state.settings)
        terms = without_memory({"loss": partial(q_loss, delta=numbers["huber_delta"])}) | slots
        values, view = values_of(network, state.target_network, batch, key, discount=numbers["discount"])
        minimised = objective or partial(_loss, axis_name=axis_name)
        share = numbers["priority_max_share"]
        return minimised(network, state.target_network, values, view, batch, slots=terms, share=share)

    def init(key: Array, start: DQNState | Params | None = None) -> DQNState:
        network = q_function.init(key) if start is None else params_of(start)["network"]
        # Copies, because a donated state must not contain the same buffer twice.
        target_network, opt_state = jax.tree.map(jnp.copy, network), init_optimizer(optimizer, network, trainable)
        if isinstance(start, DQNState):
            target_network, opt_state = start.target_network, carry_over(opt_state, start.opt_state)
        opened = settings.init(num_updates)
        return DQNState(
            network=network,
            target_network=target_network,
            opt_state=opt_state,
            num_updates=jnp.zeros((), jnp.int32),
            epsilon=jnp.copy(settings.open(opened)[0]["epsilon"]),
            settings=opened,
        )

    def update(state: DQNState, key: Array, batch: Sample) -> tuple[DQNState, Metrics]:
        require_agents(batch.transition)
        numbers, _ = settings.open(state.settings)
        grads, (metrics, priority, summary) = jax.grad(evaluate, has_aux=True)(state.network, state, batch, key)
        if axis_name is not None:
            metrics = jax.lax.pmean(metrics, axis_name)
        network, opt_state, gradient_norm = apply_updates(
            grads, state.network, state.opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        due = (state.num_updates + 1) % numbers["target_update_period"].astype(jnp.int32) == 0
        rate = jnp.where(due, numbers["target_update_rate"], 0.0)
        closed = settings.close(state.settings, summary, axis_name=axis_name)
        new_state = state.replace(
            network=network,
            target_network=optax.incremental_update(network, state.target_network, rate),
            opt_state=opt_state,
            num_updates=state.num_updates + 1,
            epsilon=jnp.copy(settings.open(closed)[0]["epsilon"]),
            settings=closed,
        )
        metrics |= learning_rate_of(optimizer, state.opt_state)
        metrics |= {"gradient_norm": gradient_norm, "epsilon": numbers["epsilon"]}
        return new_state, metrics | {"priority": priority}

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    value: Callable[..., QFunction],
    optimizer: Callable[..., optax.GradientTransformation],
    share_parameters: bool = True,
    **options: Any,
) -> Agent:
    """Assembles DQN for an environment with one agent, or independent Q-learning for a team.

    Args:
        environment: environment that defines the spaces.
        value: `(observation_space, action_space) -> QFunction`.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        share_parameters: whether the agents of a team share parameters and gradients; else see `of_each_agent`.
        **options: further arguments of `make_dqn` and of `replay_agent`.

    Raises:
        ValueError: parameters are not shared, but there is no team.
    """
    q_function, num_agents = value(environment.observation_space, environment.action_space), environment.num_agents
    if not share_parameters:
        q_function = separate_parameters(q_function, num_agents)
    of_all = optimizer if share_parameters else lambda steps: of_each_agent(optimizer(steps), num_agents)
    make_learner = partial(make_dqn, q_function)
    return replay_agent(make_learner, make_epsilon_greedy(q_function), environment, optimizer=of_all, **options)


def sequence_priority(error: Array, share: Array) -> Array:
    """Computes `share max_l error_l + (1 - share) mean_l error_l` over the L steps of a sequence, `[L, B] -> [B]`.

    References:
        Kapturowski et al. (2019), section 2.3.
    """
    return share * jnp.max(error, axis=0) + (1.0 - share) * jnp.mean(error, axis=0)


def _check_numbers(
    num_steps: int | None, burn_in: int, fractions: Mapping[str, Number], positive: Mapping[str, Number]
) -> None:
    check_counts(num_steps=num_steps)
    if burn_in < 0:
        raise ValueError(f"`burn_in` must not be negative, got {burn_in}; try 0.")
    check_fractions(**fractions)
    check_positive(**positive)


def _loss(
    network: Params,
    target_network: Params,
    values: Values,
    view: QView,
    batch: Sample,
    *,
    slots: Mapping[str, Bound],
    share: Array,
    axis_name: str | None,
) -> Minimised:
    del network, target_network
    targets, summary = slots["target"](view)
    targets, chosen = jax.lax.stop_gradient(targets), select_action(values, view.action)
    losses, summary_of_loss = slots["loss"](chosen, targets)
    # For distributions, the distance from the target is the loss itself.
    error = jnp.abs(targets - chosen) if isinstance(chosen, jax.Array) else losses
    agent_mask = view.transition.extras.get("agent_mask")
    weight = per_agent(batch.weight[None], error)
    if agent_mask is not None:
        weight = weight * agent_weights(agent_mask, axis_name=axis_name)
    total = jnp.mean(weight * losses)
    metrics = {"loss": total, "absolute_error": jnp.mean(error), "q": jnp.mean(expected_values(values))}
    priority = error if error.ndim == 2 else mean_over_agents(error, agent_mask)
    return total, (metrics, sequence_priority(priority, share), summary | summary_of_loss)

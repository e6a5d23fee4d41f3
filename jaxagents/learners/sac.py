"""Off-policy actor-critics of continuous actions: SAC with automatic temperature, TD3, DDPG."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.actor_critic_terms import (
    choose_actions,
    critic_loss_of,
    policy_loss_of,
    targets_of,
    temperature_loss_of,
)
from jaxagents.learners.checks import check_counts, check_fractions, check_positive
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import Trainable, carry_over, descend, init_optimizer, parts_of
from jaxagents.learners.replay import make_replay_agent
from jaxagents.learners.slots import (
    Number,
    Numbers,
    Slot,
    arrays_of,
    bind,
    memory_of,
    numbers_due,
    numbers_of,
    remember,
)
from jaxagents.losses.q import sac_actor_loss, sac_critic_loss, soft_q_target
from jaxagents.ops.distributions import sample_action
from jaxagents.types import (
    Agent,
    Array,
    Box,
    Environment,
    Learner,
    Metrics,
    Params,
    Policy,
    PyTree,
    Sample,
)
from jaxagents.values.q_function import TwinQ


@struct.dataclass
class SACState:
    """Networks, optimiser states, and hyper-parameters as arrays (a changed number is the same program).

    Attributes:
        params: of the policy.
        critic: of the twin critics.
        target_critic: their moving average.
        target_params: moving average of the policy; None where targets follow the policy itself.
        log_temperature: float32 `[]`.
        opt_states: one for each of `policy`, `critic` and `temperature`.
        hyperparameters: float32 arrays.
        slots: floats of the losses, by slot.
        memory: of numbers and slots that remember something.
        num_updates: int32, updates done.
    """

    params: Params
    critic: Params
    target_critic: Params
    target_params: Params | None
    log_temperature: Array
    opt_states: dict[str, optax.OptState]
    hyperparameters: dict[str, Array]
    slots: dict[str, Numbers]
    memory: dict[str, PyTree]
    num_updates: Array


class _Parts(NamedTuple):
    """What init and updates share, static."""

    policy: Policy
    twin_q: TwinQ
    optimizers: dict[str, optax.GradientTransformation]
    hyperparameters: dict[str, Number]
    slots: dict[str, Slot]
    policy_period: int
    target_policy: bool
    num_updates: int
    trainable: Trainable
    axis_name: str | None


def make_sac(
    policy: Policy,
    twin_q: TwinQ,
    policy_optimizer: optax.GradientTransformation,
    q_optimizer: optax.GradientTransformation,
    temperature_optimizer: optax.GradientTransformation,
    action_space: Box,
    *,
    discount: Number = 0.99,
    target_update_rate: Number = 0.005,
    target_entropy: Number | None = None,
    initial_temperature: float = 1.0,
    critic_loss: Slot = sac_critic_loss,
    actor_loss: Slot = sac_actor_loss,
    target: Slot = soft_q_target,
    action: Slot = sample_action,
    next_action: Slot = sample_action,
    policy_period: int = 1,
    target_policy: bool = False,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes soft actor-critic over `Sample` batches; the length of their sequences is the `n` of the n-step targets.

    One update descends, in this order, `mean(weight * sum_i (Q_i - target)^2 / 2)` for the critics,
    `mean(temperature * log_prob - min_i Q_i)` for the policy and `mean(-temperature * (log_prob + target_entropy))` for
    the logarithm of the temperature. Truncated steps bootstrap, terminated ones do not. The first three numbers may be
    schedules (see `ops.schedules`), and every slot a `Remembering`.

    Args:
        policy: feed-forward, with a reparameterised distribution.
        twin_q: of the same spaces.
        policy_optimizer: an optax transformation.
        q_optimizer: an optax transformation, of the critics.
        temperature_optimizer: an optax transformation, of the logarithm of the temperature.
        action_space: a bounded box; actions of samples are those before their squashing.
        discount: gamma in [0, 1], per step.
        target_update_rate: share by which the target critics move per update, in (0, 1].
        target_entropy: in nats, of the action in its own units; null takes `D (log((high - low) / 2) - 1)` for D
            action dimensions, which is the paper's `-D` for actions in `[-1, 1]`.
        initial_temperature: positive.
        critic_loss: `(q [2, B], target [B]) -> [B]`.
        actor_loss: `(q [2, B], log_prob [B], temperature) -> [B]`.
        target: `(reward, discount, next_q [2, B], next_log_prob, temperature) -> [B]`.
        action: `(distribution, key) -> action` of one state, at which the policy is improved; it remembers nothing.
        next_action: the same, of the successors, in the targets.
        policy_period: critics' updates for each of policy and targets. TD3: 2.
        target_policy: whether targets follow a moving average of the policy. TD3 and DDPG: yes.
        num_updates: of the whole run, for schedules and slots that ask how far it is.
        trainable: prefix pytree of bool of `{"policy", "critic", "temperature"}`, see `descend`; null: everything
            learns.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner; wrap it in `with_replay`. `metrics["priority"]` is the mean of both `|error|`, float32 `[B]`.

    Raises:
        ValueError: if a number is out of its range, the actions are unbounded or the policy is recurrent.

    References:
        Haarnoja et al. (2018b), "Soft Actor-Critic Algorithms and Applications", algorithm 1.

    Deviation: the temperature's loss is that of its logarithm, as in the released code; multi-step targets leave out
        the entropy of the steps between.
    """
    check_counts(policy_period=policy_period)
    _check_arguments(policy, action_space, discount, target_update_rate, initial_temperature)
    target_entropy = _entropy_of_paper(action_space) if target_entropy is None else target_entropy
    slots = {"critic_loss": critic_loss, "actor_loss": actor_loss, "target": target}
    slots |= {"action": action, "next_action": next_action}
    optimizers = {"policy": policy_optimizer, "critic": q_optimizer, "temperature": temperature_optimizer}
    hyperparameters = {"discount": discount, "target_update_rate": target_update_rate, "target_entropy": target_entropy}

    counts = {"policy_period": policy_period, "num_updates": num_updates}
    static = counts | {"target_policy": target_policy, "trainable": trainable, "axis_name": axis_name}
    parts = _Parts(policy, twin_q, optimizers, hyperparameters, slots, **static)
    return Learner(init=partial(_init, parts, initial_temperature), update=partial(_update, parts))


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., Policy],
    value: Callable[..., TwinQ],
    policy_optimizer: Callable[..., optax.GradientTransformation],
    q_optimizer: Callable[..., optax.GradientTransformation],
    temperature_optimizer: Callable[..., optax.GradientTransformation],
    buffer: Any,
    updates_per_rollout: int = 1,
    importance_exponent: Number = 0.4,
    normalize_observations: bool = False,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles SAC for an environment.

    Args:
        environment: gives the spaces.
        policy: `(observation_space, action_space) -> Policy`.
        value: `(observation_space, action_space) -> TwinQ`.
        policy_optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        q_optimizer: as `policy_optimizer`.
        temperature_optimizer: as `policy_optimizer`.
        buffer: `data.buffers.Buffer`.
        updates_per_rollout: see `with_replay`.
        importance_exponent: see `with_replay`.
        normalize_observations: standardises observations by running statistics of the samples.
        axis_name: see `make_sac`.
        **options: further arguments of `make_sac`.

    Returns:
        The agent.
    """
    spaces = environment.observation_space, environment.action_space
    actor, twin_q = policy(*spaces), value(*spaces)

    def make(num_updates: int) -> Learner:
        optimizers = [
            make(num_updates * updates_per_rollout) for make in (policy_optimizer, q_optimizer, temperature_optimizer)
        ]
        learner_updates = {"num_updates": num_updates * updates_per_rollout}
        space = environment.action_space
        return make_sac(actor, twin_q, *optimizers, space, axis_name=axis_name, **learner_updates, **options)

    make(1)  # Refuses settings before anything is compiled.
    return make_replay_agent(
        actor,
        make,
        buffer,
        environment.observation_space,
        updates_per_rollout=updates_per_rollout,
        importance_exponent=importance_exponent,
        normalize_observations=normalize_observations,
        axis_name=axis_name,
    )


def _entropy_of_paper(action_space: Box) -> float:
    return math.prod(action_space.shape) * (math.log(0.5 * (action_space.high - action_space.low)) - 1.0)


def _init(parts: _Parts, initial_temperature: float, key: Array, start: SACState | Params | None = None) -> SACState:
    policy_key, critic_key = jax.random.split(key)
    params = parts.policy.init(policy_key) if start is None else params_of(start)
    critic = parts.twin_q.init(critic_key)
    log_temperature = jnp.log(jnp.float32(initial_temperature))
    trained = {"policy": params, "critic": critic, "temperature": log_temperature}
    flags = parts_of(parts.trainable, trained)
    state = SACState(
        params=params,
        critic=critic,
        # Copies, because a donated state must not hold one buffer twice.
        target_critic=jax.tree.map(jnp.copy, critic),
        target_params=jax.tree.map(jnp.copy, params) if parts.target_policy else None,
        log_temperature=log_temperature,
        opt_states={
            name: init_optimizer(optimizer, trained[name], flags[name]) for name, optimizer in parts.optimizers.items()
        },
        hyperparameters=arrays_of(parts.hyperparameters),
        slots=numbers_of(parts.slots),
        memory=memory_of(parts.hyperparameters | parts.slots, parts.num_updates),
        num_updates=jnp.zeros((), jnp.int32),
    )
    return _go_on(state, start) if isinstance(start, SACState) else state


def _update(parts: _Parts, state: SACState, key: Array, batch: Sample) -> tuple[SACState, Metrics]:
    next_key, key = jax.random.split(key)
    twin_q, temperature = parts.twin_q, jnp.exp(state.log_temperature)
    numbers = numbers_due(parts.hyperparameters, state.hyperparameters, state.memory)
    bound = bind(parts.slots, state.slots, state.memory)
    draw, draw_next = (
        partial(choose_actions, parts.policy, bound[name], parts.axis_name) for name in ("action", "next_action")
    )
    following = state.params if state.target_params is None else state.target_params
    targets, noted = targets_of(
        draw_next,
        twin_q,
        bound["target"],
        following,
        state.target_critic,
        numbers["discount"],
        temperature,
        next_key,
        batch,
    )
    trained = {"policy": state.params, "critic": state.critic, "temperature": state.log_temperature}
    flags, opt_states, summaries = parts_of(parts.trainable, trained), {}, dict(noted)

    def step(name: str, loss: Callable[[Params], tuple[Array, Any]]) -> tuple[Params, Any]:
        grads, (auxiliary, noted) = jax.grad(loss, has_aux=True)(trained[name])
        summaries.update(noted)
        params, opt_states[name], _ = descend(
            grads,
            trained[name],
            state.opt_states[name],
            parts.optimizers[name],
            axis_name=parts.axis_name,
            trainable=flags[name],
        )
        return params, auxiliary

    critic, (critic_metrics, priority) = step(
        "critic", lambda critic: critic_loss_of(twin_q, bound["critic_loss"], critic, batch, targets)
    )
    params, (policy_metrics, log_prob) = step(
        "policy", partial(policy_loss_of, draw, twin_q, bound["actor_loss"], critic, temperature, key, batch)
    )
    log_temperature, _ = step("temperature", partial(temperature_loss_of, log_prob, numbers["target_entropy"]))
    rate = numbers["target_update_rate"]
    if parts.policy_period > 1:
        due = (state.num_updates + 1) % parts.policy_period == 0
        old, new = (state.params, state.opt_states["policy"]), (params, opt_states["policy"])
        params, opt_states["policy"] = jax.tree.map(partial(jnp.where, due), new, old)
        rate = jnp.where(due, rate, 0.0)
    choices = parts.hyperparameters | parts.slots
    new_state = state.replace(
        params=params,
        critic=critic,
        target_critic=optax.incremental_update(critic, state.target_critic, rate),
        target_params=optax.incremental_update(params, state.target_params, rate) if parts.target_policy else None,
        log_temperature=log_temperature,
        opt_states=opt_states,
        memory=remember(choices, state.memory, summaries, axis_name=parts.axis_name),
        num_updates=state.num_updates + 1,
    )
    metrics = critic_metrics | policy_metrics
    if parts.axis_name is not None:
        metrics = jax.lax.pmean(metrics, parts.axis_name)
    return new_state, metrics | {"temperature": temperature, "priority": priority}


def _go_on(state: SACState, earlier: SACState) -> SACState:
    """Returns a new state with what an earlier one has learned."""
    is_without = state.target_params is None or earlier.target_params is None
    return state.replace(
        critic=earlier.critic,
        target_critic=earlier.target_critic,
        target_params=state.target_params if is_without else earlier.target_params,
        log_temperature=earlier.log_temperature,
        opt_states={name: carry_over(fresh, earlier.opt_states[name]) for name, fresh in state.opt_states.items()},
    )


def _check_arguments(
    policy: Policy, action_space: Box, discount: float, target_update_rate: float, initial_temperature: float
) -> None:
    check_fractions(discount=discount, target_update_rate=target_update_rate)
    check_positive(initial_temperature=initial_temperature, target_update_rate=target_update_rate)
    if not isinstance(action_space, Box) or not math.isfinite(action_space.high - action_space.low):
        raise ValueError(f"`action_space` must be a bounded Box, got {action_space}; try `make_dqn`.")
    if jax.tree.leaves(policy.initial_carry((1,))):
        raise ValueError("`policy` must be feed-forward, got one with a carry; leave out its `memory`.")

"""Soft actor-critic with twin critics and automatic temperature."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import Trainable, carry_over, descend, init_optimizer, parts_of
from jaxagents.learners.replay import first_step, gather_step, make_replay_agent
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
from jaxagents.losses.q import sac_actor_loss, sac_critic_loss, sac_temperature_loss, soft_q_target
from jaxagents.ops.returns import n_step_transition
from jaxagents.policies.actor_critic import act
from jaxagents.types import (
    Agent,
    Array,
    Box,
    Environment,
    Learner,
    Metrics,
    Params,
    Policy,
    PolicyInput,
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
        log_temperature: float32 `[]`.
        opt_states: one for each of `policy`, `critic` and `temperature`.
        hyperparameters: float32 arrays.
        slots: floats of the losses, by slot.
        memory: of numbers and slots that remember something.
    """

    params: Params
    critic: Params
    target_critic: Params
    log_temperature: Array
    opt_states: dict[str, optax.OptState]
    hyperparameters: dict[str, Array]
    slots: dict[str, Numbers]
    memory: dict[str, PyTree]


class _Parts(NamedTuple):
    """What init and updates share, static."""

    policy: Policy
    twin_q: TwinQ
    optimizers: dict[str, optax.GradientTransformation]
    hyperparameters: dict[str, Number]
    slots: dict[str, Slot]
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
    _check_arguments(policy, action_space, discount, target_update_rate, initial_temperature)
    target_entropy = _entropy_of_paper(action_space) if target_entropy is None else target_entropy
    slots = {"critic_loss": critic_loss, "actor_loss": actor_loss, "target": target}
    optimizers = {"policy": policy_optimizer, "critic": q_optimizer, "temperature": temperature_optimizer}
    hyperparameters = {"discount": discount, "target_update_rate": target_update_rate, "target_entropy": target_entropy}

    parts = _Parts(policy, twin_q, optimizers, hyperparameters, slots, num_updates, trainable, axis_name)
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


_Bound = Callable[..., tuple[Array, dict[str, PyTree]]]


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
        log_temperature=log_temperature,
        opt_states={
            name: init_optimizer(optimizer, trained[name], flags[name]) for name, optimizer in parts.optimizers.items()
        },
        hyperparameters=arrays_of(parts.hyperparameters),
        slots=numbers_of(parts.slots),
        memory=memory_of(parts.hyperparameters | parts.slots, parts.num_updates),
    )
    return _go_on(state, start) if isinstance(start, SACState) else state


def _update(parts: _Parts, state: SACState, key: Array, batch: Sample) -> tuple[SACState, Metrics]:
    next_key, key = jax.random.split(key)
    twin_q, temperature = parts.twin_q, jnp.exp(state.log_temperature)
    numbers = numbers_due(parts.hyperparameters, state.hyperparameters, state.memory)
    bound = bind(parts.slots, state.slots, state.memory)
    draw = partial(_sample_actions, parts.policy, parts.axis_name)
    targets, noted = _targets(draw, twin_q, bound["target"], state, numbers["discount"], temperature, next_key, batch)
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
        "critic", lambda critic: _critic_loss(twin_q, bound["critic_loss"], critic, batch, targets)
    )
    params, (policy_metrics, log_prob) = step(
        "policy", partial(_policy_loss, draw, twin_q, bound["actor_loss"], critic, temperature, key, batch)
    )
    log_temperature, _ = step("temperature", partial(_temperature_loss, log_prob, numbers["target_entropy"]))
    choices = parts.hyperparameters | parts.slots
    new_state = state.replace(
        params=params,
        critic=critic,
        target_critic=optax.incremental_update(critic, state.target_critic, numbers["target_update_rate"]),
        log_temperature=log_temperature,
        opt_states=opt_states,
        memory=remember(choices, state.memory, summaries, axis_name=parts.axis_name),
    )
    metrics = critic_metrics | policy_metrics
    if parts.axis_name is not None:
        metrics = jax.lax.pmean(metrics, parts.axis_name)
    return new_state, metrics | {"temperature": temperature, "priority": priority}


def _go_on(state: SACState, earlier: SACState) -> SACState:
    """Returns a new state with what an earlier one has learned."""
    return state.replace(
        critic=earlier.critic,
        target_critic=earlier.target_critic,
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


def _critic_loss(
    twin_q: TwinQ, critic_loss: _Bound, critic: Params, batch: Sample, target: Array
) -> tuple[Array, tuple[tuple[dict[str, Array], Array], dict[str, PyTree]]]:
    q = twin_q.apply(critic, first_step(batch.transition.observation), first_step(batch.transition.action))
    losses, noted = critic_loss(q, target)
    loss = jnp.mean(batch.weight * losses)
    metrics, priority = {"critic_loss": loss, "q": jnp.mean(q)}, jnp.mean(jnp.abs(q - target[None]), axis=0)
    return loss, ((metrics, priority), noted)


def _policy_loss(
    sample_actions: Callable[..., tuple[Array, Array]],
    twin_q: TwinQ,
    actor_loss: _Bound,
    critic: Params,
    temperature: Array,
    key: Array,
    batch: Sample,
    params: Params,
) -> tuple[Array, tuple[tuple[dict[str, Array], Array], dict[str, PyTree]]]:
    observation = first_step(batch.transition.observation)
    action, log_prob = sample_actions(params, key, observation)
    losses, noted = actor_loss(twin_q.apply(critic, observation, action), log_prob, temperature)
    loss = jnp.mean(losses)
    return loss, (({"policy_loss": loss, "entropy": -jnp.mean(log_prob)}, log_prob), noted)


def _temperature_loss(
    log_prob: Array, target_entropy: Array, log_temperature: Array
) -> tuple[Array, tuple[tuple[()], dict[str, PyTree]]]:
    return jnp.mean(sac_temperature_loss(log_temperature, log_prob, target_entropy)), ((), {})


def _sample_actions(
    policy: Policy, axis_name: str | None, params: Params, key: Array, observation: PyTree
) -> tuple[Array, Array]:
    """Draws unsquashed actions `[B, A]` with log-probabilities `[B]`, one stream per global index of the sample."""
    batch_size = jax.tree.leaves(observation)[0].shape[0]
    carry, first = policy.initial_carry((batch_size,)), jnp.ones(batch_size, bool)
    _, distribution = act(policy, params, carry, PolicyInput(observation=observation, first=first))
    start = 0 if axis_name is None else jax.lax.axis_index(axis_name) * batch_size
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, start + jnp.arange(batch_size))
    action = jax.vmap(lambda distribution, key: distribution.sample(key))(distribution, keys)
    return action, distribution.log_prob(action)


def _targets(
    sample_actions: Callable[..., tuple[Array, Array]],
    twin_q: TwinQ,
    target: _Bound,
    state: SACState,
    discount: Array,
    temperature: Array,
    key: Array,
    batch: Sample,
) -> tuple[Array, dict[str, PyTree]]:
    """Computes the targets of the critics, float32 `[B]`."""
    transition = batch.transition
    reward, discount, index = n_step_transition(
        transition.reward, transition.terminated, transition.truncated, discount=discount
    )
    next_observation = gather_step(transition.next_observation, index)
    next_action, next_log_prob = sample_actions(state.params, key, next_observation)
    next_q = twin_q.apply(state.target_critic, next_observation, next_action)
    return target(reward, discount, next_q, next_log_prob, temperature)

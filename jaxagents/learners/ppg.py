"""PPG (Cobbe et al., 2021), phasic policy gradient: PPO with phases in which values train the policy's torso."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_fractions
from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.learners.minibatches import minibatches_of_device, to_sequences, update_in_minibatches
from jaxagents.learners.optimizers import carry_over, init_optimizer
from jaxagents.learners.ppo import PPOState, make_ppo, values_of
from jaxagents.learners.rollouts import rollout_agent
from jaxagents.losses.value import squared_loss
from jaxagents.ops.checks import check_counts
from jaxagents.ops.conditions import cond
from jaxagents.ops.returns import lambda_returns
from jaxagents.policies.actor_critic import as_policy
from jaxagents.types import (
    REPLICATED,
    ActorCritic,
    Agent,
    Array,
    Environment,
    Learner,
    Mean,
    Metrics,
    Params,
    PolicyInput,
    PyTree,
    Rollout,
    input_of,
)


@struct.dataclass
class _Memory:
    """Data of an auxiliary phase: leaves `[P, T, B, ...]` of P rollouts, and sequences of them."""

    inputs: PolicyInput
    target: Array
    former: Any = ()
    carry: Any = ()


@struct.dataclass
class PPGState:
    """State of the learner, moments of the auxiliary optimiser, recent rollouts, and number of updates, int32."""

    inner: PPOState
    opt_state: optax.OptState
    memory: _Memory
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the learner."""
        return self.inner.params


def with_auxiliary_phase(
    learner: Learner,
    actor_critic: ActorCritic,
    optimizer: optax.GradientTransformation,
    rollout: Rollout,
    *,
    discount: float,
    trace_decay: float,
    period: int,
    num_epochs: int,
    num_minibatches: int,
    kl_coefficient: float,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner of rollouts with an auxiliary phase every few updates.

    The phase minimises `mean((V - target)^2 / 2 + kl_coefficient KL(policy before the phase || policy))` over the steps
    of the last `period` rollouts, with lambda-returns computed when each rollout arrived.

    Args:
        learner: learner of a feed-forward actor-critic whose value does not train a shared torso.
        actor_critic: the same actor-critic, but with a value that trains the torso.
        optimizer: optax transformation for the phase.
        rollout: shapes of a rollout over all devices.
        discount: discount of the targets, in [0, 1].
        trace_decay: trace decay of the targets, in [0, 1].
        period: P, number of updates between two phases.
        num_epochs: number of passes over the rollouts.
        num_minibatches: number of minibatches, with one optimiser step each, per pass.
        kl_coefficient: weight of the divergence from the policy before the phase.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner.

    References:
        Cobbe et al. (2021), Phasic policy gradient, algorithm 1 and section 3.3 (one network instead of two).
    """
    check_counts(period=period, num_epochs=num_epochs, num_minibatches=num_minibatches)
    example = jax.eval_shape(lambda rollout: _Memory(input_of(rollout.transition), rollout.transition.reward), rollout)
    counts = {"num_epochs": num_epochs, "num_minibatches": num_minibatches}

    def init(key: Array, start: PPGState | Params | None = None) -> PPGState:
        inner = learner.init(key, start_of_inner(start, PPGState))
        opt_state = init_optimizer(optimizer, inner.params)
        return PPGState(
            inner=inner,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, PPGState) else opt_state,
            memory=jax.tree.map(lambda leaf: jnp.zeros((period, *leaf.shape), leaf.dtype), example),
            num_updates=jnp.int32(0),
        )

    def update(state: PPGState, key: Array, rollout: Rollout) -> tuple[PPGState, Metrics]:
        key, phase_key = jax.random.split(key)
        transition = rollout.transition
        _, _, next_value = values_of(actor_critic, state.params, rollout)
        ends = transition.terminated, transition.truncated
        target = lambda_returns(transition.reward, *ends, next_value, discount=discount, trace_decay=trace_decay)
        new = _Memory(input_of(transition), target)
        place = state.num_updates % period
        memory = jax.tree.map(lambda kept, leaf: kept.at[place].set(leaf), state.memory, new)
        inner, metrics = learner.update(state.inner, key, rollout)
        due = (place == period - 1).astype(jnp.int32)
        if axis_name is not None:
            # These already agree on all devices; this tells the compiler so.
            due = jax.lax.pmin(due, axis_name)
        phase = partial(_phase, actor_critic, optimizer, kl_coefficient, counts, axis_name, phase_key, memory)
        params, opt_state, loss = cond(due > 0, phase, _skip, inner.params, state.opt_state)
        count = due.astype(jnp.float32)
        metrics = {**metrics, "auxiliary_loss": Mean(total=count * loss, count=count)}
        inner = inner.replace(params=params)
        return PPGState(inner=inner, opt_state=opt_state, memory=memory, num_updates=state.num_updates + 1), metrics

    def partition(state: PPGState, of_inner: PyTree) -> PPGState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated.replace(inner=of_inner, memory=jax.tree.map(lambda leaf: 2, state.memory))

    return wrap(learner, init, update, partition=partition)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., ActorCritic],
    optimizer: Callable[..., optax.GradientTransformation],
    auxiliary_period: int = 16,
    auxiliary_epochs: int = 6,
    auxiliary_minibatches: int = 16,
    auxiliary_kl: float = 1.0,
    num_epochs: int = 1,
    discount: float = 0.99,
    trace_decay: float = 0.95,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles PPG for an environment with one agent.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space, *, detach_value=False) -> ActorCritic` with one torso.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`, for each kind of phase.
        auxiliary_period: see `with_auxiliary_phase`. Paper: 32.
        auxiliary_epochs: number of epochs in an auxiliary phase. Paper: 6.
        auxiliary_minibatches: number of minibatches in an epoch of an auxiliary phase.
        auxiliary_kl: `kl_coefficient` of `with_auxiliary_phase`. Paper: 1.
        num_epochs: see `make_ppo`. Paper: 1.
        discount: see `make_ppo`; not a schedule.
        trace_decay: see `make_ppo`; not a schedule.
        axis_name: see `make_ppo`.
        **options: further arguments of `make_ppo` and of `rollout_agent`.

    Raises:
        ValueError: a number is out of its range, or the policy is not an actor-critic with one torso and without
            memory.
    """
    check_fractions(discount=discount, trace_decay=trace_decay)
    spaces = environment.observation_space, environment.action_space
    joint = policy(*spaces)
    params = jax.eval_shape(joint.init, jax.random.key(0))
    if not isinstance(joint, ActorCritic) or jax.tree.leaves(joint.initial_carry((1,))) or "torso" in params["critic"]:
        raise ValueError(
            "`policy` must be an actor-critic of one torso without memory for PPG; try policy.shared=true."
        )
    if environment.num_agents:
        raise ValueError(f"`num_agents` must be 0 for PPG, got {environment.num_agents}; try `learner=ppo`.")
    numbers: dict[str, Any] = {"discount": discount, "trace_decay": trace_decay}

    def around(learner: Learner, shapes: Callable[[], Rollout], num_updates: int) -> Learner:
        num_phases = max(1, num_updates // auxiliary_period)  # A run that is shorter than a period has none.
        return with_auxiliary_phase(
            learner,
            joint,
            optimizer(num_phases * auxiliary_epochs * auxiliary_minibatches),
            shapes(),
            period=auxiliary_period,
            num_epochs=auxiliary_epochs,
            num_minibatches=auxiliary_minibatches,
            kl_coefficient=auxiliary_kl,
            axis_name=axis_name,
            **numbers,
        )

    make_learner = partial(make_ppo, policy(*spaces, detach_value=True), num_epochs=num_epochs, **numbers)
    options |= {"optimizer": optimizer, "around": around, "axis_name": axis_name}
    return rollout_agent(make_learner, as_policy(joint), environment, **options)


def _phase(
    actor_critic: ActorCritic,
    optimizer: optax.GradientTransformation,
    kl_coefficient: float,
    counts: dict[str, int],
    axis_name: str | None,
    key: Array,
    memory: _Memory,
    params: Params,
    opt_state: optax.OptState,
) -> tuple[Params, optax.OptState, Array]:
    """Learns from the recent rollouts; returns parameters, moments and the mean loss."""
    memory = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), memory)
    num_steps, num_envs = memory.target.shape
    _, former, _ = actor_critic.apply(params, actor_critic.initial_carry((num_envs,)), memory.inputs)

    def objective(params: Params, batch: _Memory) -> tuple[Array, tuple[dict[str, Array], dict[str, PyTree]]]:
        carry = actor_critic.initial_carry(batch.target.shape[1:])
        _, distribution, value = actor_critic.apply(params, carry, batch.inputs)
        loss = jnp.mean(squared_loss(value, batch.target) + kl_coefficient * batch.former.kl_divergence(distribution))
        return loss, ({"loss": loss}, {})

    params, opt_state, metrics, _ = update_in_minibatches(
        objective,
        params,
        opt_state,
        optimizer,
        to_sequences(memory.replace(former=former), 1),
        minibatches_of_device(key, num_steps, num_envs, **counts, axis_name=axis_name),
        axis_name=axis_name,
    )
    return params, opt_state, metrics["loss"]


def _skip(params: Params, opt_state: optax.OptState) -> tuple[Params, optax.OptState, Array]:
    return params, opt_state, jnp.zeros(())

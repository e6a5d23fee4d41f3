"""Generations of agents: each starts afresh, and is taught by the previous one in the first part of its training."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import params_of, replace_innermost, wrap, wrapper_agent
from jaxagents.learners.minibatches import minibatches_of_device, to_sequences, update_in_minibatches
from jaxagents.learners.optimizers import init_optimizer
from jaxagents.ops.checks import check_counts, require_positive
from jaxagents.ops.conditions import cond
from jaxagents.types import (
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
class GenerationState:
    """State of the learner.

    Attributes:
        inner: state of the learner that learns from the rollouts.
        teacher: parameters of the previous generation, or the own initial ones if there is none.
        opt_state: moments of the optimiser for imitation.
        is_taught: bool, whether there is a previous generation.
        num_updates: int32, number of updates so far.
    """

    inner: Any
    teacher: Params
    opt_state: optax.OptState
    is_taught: Array
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


@struct.dataclass
class _Lesson:
    """Steps of a rollout, leaves `[T, B, ...]`, and the teacher's action distributions there."""

    inputs: PolicyInput
    teacher: Any
    carry: Any = ()


def with_teaching_generation(
    learner: Learner,
    actor_critic: ActorCritic,
    optimizer: optax.GradientTransformation,
    *,
    num_taught: int,
    num_epochs: int = 1,
    num_minibatches: int = 4,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner of rollouts that starts afresh, and imitates the policy from which it would have continued.

    In each of the first `num_taught` updates, after the learner has learned from a rollout, `KL(teacher || policy)` is
    minimised over its steps. The teacher is the starting point of the run, such as the previous stage; without one,
    nothing is taught.

    Args:
        learner: learner of a feed-forward policy; `(key, None)` starts with random parameters.
        actor_critic: actor-critic that is trained.
        optimizer: optax transformation for the lessons.
        num_taught: number of updates with a lesson.
        num_epochs: number of passes over a rollout.
        num_minibatches: number of minibatches, with one optimiser step each, per pass.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. Metrics: `teacher_kl`, the mean over the lessons.

    Raises:
        ValueError: a number is not positive.

    References:
        Open-Ended Learning Team (2021), Open-ended learning leads to generally capable agents, section 5.3
        (generational training).

    Deviation: the divergence has separate optimiser steps, instead of a term in the same loss; no member of a
        population is selected, because the previous generation is a single agent.
    """
    check_counts(num_taught=num_taught, num_epochs=num_epochs, num_minibatches=num_minibatches)
    counts = {"num_epochs": num_epochs, "num_minibatches": num_minibatches}

    def init(key: Array, start: Any = None) -> GenerationState:
        inner = learner.init(key, None)
        return GenerationState(
            inner=inner,
            teacher=jax.tree.map(jnp.array, inner.params if start is None else params_of(start)),
            opt_state=init_optimizer(optimizer, inner.params),
            is_taught=jnp.bool_(start is not None),
            num_updates=jnp.int32(0),
        )

    def update(state: GenerationState, key: Array, rollout: Rollout) -> tuple[GenerationState, Metrics]:
        learn_key, lesson_key = jax.random.split(key)
        inner, metrics = learner.update(state.inner, learn_key, rollout)
        due = state.is_taught & (state.num_updates < num_taught)
        lesson = partial(_teach, actor_critic, optimizer, counts, axis_name, lesson_key, rollout)
        params, opt_state, kl = cond(due, lesson, _skip, state.teacher, inner.params, state.opt_state)
        count = due.astype(jnp.float32)
        metrics = {**metrics, "teacher_kl": Mean(total=count * kl, count=count)}
        inner = replace_innermost(inner, lambda own: own.replace(params=params))
        return state.replace(inner=inner, opt_state=opt_state, num_updates=state.num_updates + 1), metrics

    return wrap(learner, init, update)


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    policy: Callable[..., ActorCritic],
    optimizer: Callable[..., optax.GradientTransformation],
    num_taught: int = 0,
    num_epochs: int = 1,
    num_minibatches: int = 4,
    axis_name: str | None = None,
) -> Agent:
    """Assembles an agent that the previous stage teaches; without lessons, it continues from that stage.

    Args:
        environment: environment of one agent.
        inner: `(environment, *, axis_name) -> Agent`, which learns with the same policy.
        policy: `(observation_space, action_space) -> ActorCritic`, feed-forward.
        optimizer: `(optimiser steps) -> optax.GradientTransformation` for the lessons.
        num_taught: see `with_teaching_generation`; 0 gives the inner agent alone.
        num_epochs: see `with_teaching_generation`.
        num_minibatches: see `with_teaching_generation`.
        axis_name: see `with_teaching_generation`.

    Raises:
        ValueError: the policy has a memory or no critic, or `num_taught` is negative.
    """
    require_positive("num_taught", num_taught + 1)
    actor_critic = policy(environment.observation_space, environment.action_space)
    if not isinstance(actor_critic, ActorCritic) or jax.tree.leaves(actor_critic.initial_carry((1,))):
        raise ValueError("`policy` must be an actor-critic without memory to be taught; leave out its `memory`.")
    agent = inner(environment, axis_name=axis_name)
    if not num_taught:
        return agent
    counts = {"num_taught": num_taught, "num_epochs": num_epochs, "num_minibatches": num_minibatches}

    def change(learner: Learner, *_: Any) -> Learner:
        rule = optimizer(num_taught * num_epochs * num_minibatches)
        return with_teaching_generation(learner, actor_critic, rule, axis_name=axis_name, **counts)

    return wrapper_agent(agent, change)


def _teach(
    actor_critic: ActorCritic,
    optimizer: optax.GradientTransformation,
    counts: dict[str, int],
    axis_name: str | None,
    key: Array,
    rollout: Rollout,
    teacher: Params,
    params: Params,
    opt_state: optax.OptState,
) -> tuple[Params, optax.OptState, Array]:
    """Imitates the teacher on a rollout; returns parameters, moments and the mean divergence."""
    num_steps, num_envs = rollout.transition.reward.shape
    inputs = input_of(rollout.transition)
    _, advice, _ = actor_critic.apply(teacher, actor_critic.initial_carry((num_envs,)), inputs)

    def objective(params: Params, batch: _Lesson) -> tuple[Array, tuple[dict[str, Array], dict[str, PyTree]]]:
        carry = actor_critic.initial_carry(batch.inputs.first.shape[1:])
        _, distribution, _ = actor_critic.apply(params, carry, batch.inputs)
        kl = jnp.mean(batch.teacher.kl_divergence(distribution))
        return kl, ({"kl": kl}, {})

    params, opt_state, metrics, _ = update_in_minibatches(
        objective,
        params,
        opt_state,
        optimizer,
        to_sequences(_Lesson(inputs=inputs, teacher=advice), 1),
        minibatches_of_device(key, num_steps, num_envs, **counts, axis_name=axis_name),
        axis_name=axis_name,
    )
    return params, opt_state, metrics["kl"]


def _skip(teacher: Params, params: Params, opt_state: optax.OptState) -> tuple[Params, optax.OptState, Array]:
    del teacher
    return params, opt_state, jnp.zeros(())

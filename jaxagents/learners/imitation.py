"""Imitation of the actions in samples: behaviour cloning of a data set, DAgger with an expert's labels."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.agents import agent_weights
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import Trainable, apply_updates, carry_over, init_optimizer, learning_rate_of
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import SettingsState, Slot, make_settings
from jaxagents.losses.imitation import negative_log_likelihood
from jaxagents.policies.actor_critic import as_policy
from jaxagents.types import (
    ActorCritic,
    Agent,
    Array,
    Carry,
    Environment,
    Learner,
    Metrics,
    Params,
    Policy,
    PolicyInput,
    Sample,
    input_of,
)


@struct.dataclass
class ImitationState:
    """State of the learner.

    Attributes:
        params: parameters of the policy.
        opt_state: state of the optimiser.
        settings: slots.
    """

    params: Params
    opt_state: optax.OptState
    settings: SettingsState


def make_imitation(
    policy: Policy,
    optimizer: optax.GradientTransformation,
    *,
    loss: Slot = negative_log_likelihood,
    condition: Callable[[Carry, Sample], tuple[Carry, PolicyInput, Array]] | None = None,
    objective: Callable[..., Array] | None = None,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes the learner that minimises `mean(weight * loss(pi(. | s), a))` over the steps of `Sample` batches.

    Args:
        policy: policy to be trained; one with memory is unrolled over the sequence, from the stored carry or an empty
            one.
        optimizer: an optax transformation.
        loss: `(distribution [n, B], action [n, B, ...]) -> [n, B]`.
        condition: `(carry, batch) -> (carry, inputs [n, B], mask [n, B])`, further inputs of the policy and which steps
            count, as in decision transformers; None: the inputs in the transitions, and all steps.
        objective: `(policy, params, key, batch, axis_name) -> [n, B]`, which replaces the above, as in diffusion
            policies.
        num_updates: number of updates of the whole run, for slots that depend on progress.
        trainable: parameters that are trained, see `apply_updates`.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner.

    References:
        Pomerleau (1991); Ross, Gordon and Bagnell (2011), section 3.
    """
    settings = make_settings(slots={"loss": loss})

    def evaluate(params: Params, state: ImitationState, key: Array, batch: Sample) -> tuple[Array, Any]:
        if objective is not None:
            total = jnp.mean(batch.weight[None] * objective(policy, params, key, batch, axis_name))
            return total, ({"loss": total}, {})
        transition = batch.transition
        carry = batch.carry
        if not jax.tree.leaves(carry):
            carry = policy.initial_carry(transition.terminated.shape[1:])
        inputs, weight = input_of(transition), batch.weight[None]
        if condition is not None:
            carry, inputs, mask = condition(carry, batch)
            weight = weight * agent_weights(mask, axis_name=axis_name)
        _, distribution = policy.apply(params, carry, inputs)
        losses, summary = settings.open(state.settings)[1]["loss"](distribution, transition.action)
        total = jnp.mean(weight * losses)
        return total, ({"loss": total, "entropy": jnp.mean(distribution.entropy())}, summary)

    def init(key: Array, start: ImitationState | Params | None = None) -> ImitationState:
        params = policy.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        if isinstance(start, ImitationState):
            opt_state = carry_over(opt_state, start.opt_state)
        return ImitationState(params=params, opt_state=opt_state, settings=settings.init(num_updates))

    def update(state: ImitationState, key: Array, batch: Sample) -> tuple[ImitationState, Metrics]:
        grads, (metrics, summary) = jax.grad(evaluate, has_aux=True)(state.params, state, key, batch)
        if axis_name is not None:
            metrics = jax.lax.pmean(metrics, axis_name)
        params, opt_state, norm = apply_updates(
            grads, state.params, state.opt_state, optimizer, axis_name=axis_name, trainable=trainable
        )
        metrics |= {"gradient_norm": norm} | learning_rate_of(optimizer, state.opt_state)
        closed = settings.close(state.settings, summary, axis_name=axis_name)
        return state.replace(params=params, opt_state=opt_state, settings=closed), metrics

    return Learner(init=init, update=update)


def make_agent(environment: Environment, *, policy: Callable[..., Policy | ActorCritic], **options: Any) -> Agent:
    """Assembles imitation for an environment.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> ` what acts; a critic in it is kept for a later stage.
        **options: further arguments of `make_imitation` and of `replay_agent`; a buffer holds rollouts with an expert's
            labels.
    """
    actor = policy(environment.observation_space, environment.action_space)
    actor = as_policy(actor) if isinstance(actor, ActorCritic) else actor
    return replay_agent(partial(make_imitation, actor), actor, environment, **options)

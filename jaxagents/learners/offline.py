"""Actor-critics for continuous actions that learn from fixed data, with slots for TD3+BC, CQL, Cal-QL, IQL, AWAC."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import params_of
from jaxagents.learners.offline_terms import Parts, critic_loss_of, policy_loss_of, value_loss_of
from jaxagents.learners.optimizers import apply_updates, carry_over, learning_rate_of, take_if
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import Number, SettingsState, Slot, make_settings
from jaxagents.losses.offline import advantage_weighted_policy_loss, expectile_loss, twin_target
from jaxagents.ops.checks import check_counts
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
from jaxagents.values.state_value import StateValue


@struct.dataclass
class OfflineState:
    """State of the learner.

    Attributes:
        params: parameters of the policy.
        critic: parameters of the twin critics.
        value: parameters of the state-value function; an empty pytree without one.
        target_critic: moving average of the critics.
        target_params: moving average of the policy.
        opt_states: optimiser states for each of `policy`, `critic` and `value`.
        settings: hyper-parameters that can change, and slots.
        num_updates: int32, number of updates so far.
    """

    params: Params
    critic: Params
    value: Params
    target_critic: Params
    target_params: Params
    opt_states: dict[str, optax.OptState]
    settings: SettingsState
    num_updates: Array


def make_offline_actor_critic(
    policy: Policy,
    twin_q: TwinQ,
    state_value: StateValue | None,
    policy_optimizer: optax.GradientTransformation,
    value_optimizer: optax.GradientTransformation,
    action_space: Box,
    *,
    discount: Number = 0.99,
    target_update_rate: Number = 0.005,
    target: Slot = twin_target,
    value_loss: Slot = expectile_loss,
    critic_term: Slot | None = None,
    policy_loss: Slot = advantage_weighted_policy_loss,
    action: Slot = sample_action,
    next_action: Slot = sample_action,
    num_sampled: int = 10,
    policy_period: int = 1,
    num_updates: int = 1,
    axis_name: str | None = None,
) -> Learner:
    """Makes an actor-critic over `Sample` batches of a data set, or of replay.

    One update minimises, in this order: `value_loss` for the state values, against the target critics for the actions
    in the data; `sum_i (Q_i - target)^2 / 2` and `critic_term` for the critics; `policy_loss` for the policy. Targets
    of the critics use the moving average of the policy. Numbers may be schedules, and every slot a `Stateful`.

    Args:
        policy: feed-forward policy with a reparameterised distribution.
        twin_q: twin Q-function for the same spaces.
        state_value: state-value function; None if `target` and `policy_loss` do not need one.
        policy_optimizer: an optax transformation.
        value_optimizer: optax transformation for the critics and the state values.
        action_space: bounded box; actions in samples are unsquashed.
        discount: gamma in [0, 1], per step.
        target_update_rate: fraction by which targets move per update of the policy, in (0, 1].
        target: `(view: TargetView) -> [B]`.
        value_loss: `(value [B], q [B]) -> [B]`.
        critic_term: `(view: SampledView) -> [B]`, added to the loss of the critics; null: no term.
        policy_loss: `(view: ActorView) -> [B]`.
        action: `(distribution, key) -> action` for one state, with which the policy is evaluated.
        next_action: the same for the successors, in the targets.
        num_sampled: number of actions for `critic_term` from each of the uniform distribution, the policy, and the
            policy at the successor. CQL: 10.
        policy_period: number of critic updates per update of policy and targets; the policy's schedule counts all.
            TD3+BC: 2.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. `metrics["priority"]` is the mean of both `|error|`, float32 `[B]`.

    Raises:
        ValueError: a number is out of its range, or the policy is recurrent.

    References:
        Fujimoto and Gu (2021), TD3+BC; Kumar et al. (2020), CQL; Nakamoto et al. (2023), Cal-QL; Kostrikov, Nair and
        Levine (2022), IQL; Nair et al. (2020), AWAC.

    Deviation: all targets use a moving average of the policy, as in TD3; CORL's CQL uses the policy itself.
    Deviation: the temperature of CQL is fixed, and its critics are updated before the policy; CORL learns the
        temperature, updates the policy first, and normalises observations (here an option).
    """
    check_counts(policy_period=policy_period, num_sampled=num_sampled)
    check_fractions(discount=discount, target_update_rate=target_update_rate)
    check_positive(target_update_rate=target_update_rate)
    if jax.tree.leaves(policy.initial_carry((1,))):
        raise ValueError("`policy` must be feed-forward, got one with a carry; leave out its `memory`.")
    slots = {"target": target, "value_loss": value_loss, "critic_term": critic_term, "policy_loss": policy_loss}
    slots |= {"action": action, "next_action": next_action}
    parts = Parts(
        policy=policy,
        twin_q=twin_q,
        state_value=state_value,
        optimizers={"policy": policy_optimizer, "critic": value_optimizer, "value": value_optimizer},
        action_space=action_space,
        settings=make_settings({"discount": discount, "target_update_rate": target_update_rate}, slots),
        num_sampled=num_sampled,
        policy_period=policy_period,
        num_updates=num_updates,
        axis_name=axis_name,
    )
    return Learner(init=partial(_init, parts), update=partial(_update, parts))


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., Policy],
    value: Callable[..., TwinQ],
    state_value: Callable[..., StateValue] | None = None,
    policy_optimizer: Callable[..., optax.GradientTransformation],
    value_optimizer: Callable[..., optax.GradientTransformation],
    **options: Any,
) -> Agent:
    """Assembles an offline actor-critic for an environment.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> Policy`.
        value: `(observation_space, action_space) -> TwinQ`.
        state_value: `(observation_space) -> StateValue`; None if the slots do not need one.
        policy_optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        value_optimizer: see `policy_optimizer`.
        **options: further arguments of `make_offline_actor_critic` and of `replay_agent`; a buffer is for a later stage
            with environment interaction.
    """
    spaces = environment.observation_space, environment.action_space
    actor, twin_q = policy(*spaces), value(*spaces)
    of_states = None if state_value is None else state_value(environment.observation_space)

    def make_learner(optimizers: Sequence[optax.GradientTransformation], **options: Any) -> Learner:
        parts: tuple[Any, ...] = (actor, twin_q, of_states, *optimizers, environment.action_space)
        return make_offline_actor_critic(*parts, **options)

    def optimizer(num_steps: int) -> list[optax.GradientTransformation]:
        return [policy_optimizer(num_steps), value_optimizer(num_steps)]

    return replay_agent(make_learner, actor, environment, optimizer=optimizer, **options)


def _init(parts: Parts, key: Array, start: OfflineState | Params | None = None) -> OfflineState:
    policy_key, critic_key, value_key = jax.random.split(key, 3)
    params = parts.policy.init(policy_key) if start is None else params_of(start)
    critic = parts.twin_q.init(critic_key)
    value = {} if parts.state_value is None else parts.state_value.init(value_key)
    trained = {"policy": params, "critic": critic, "value": value}
    state = OfflineState(
        params=params,
        critic=critic,
        value=value,
        # Copies, because a donated state must not contain the same buffer twice.
        target_critic=jax.tree.map(jnp.copy, critic),
        target_params=jax.tree.map(jnp.copy, params),
        opt_states={name: optimizer.init(trained[name]) for name, optimizer in parts.optimizers.items()},
        settings=parts.settings.init(parts.num_updates),
        num_updates=jnp.zeros((), jnp.int32),
    )
    if not isinstance(start, OfflineState):
        return state
    learned = {name: getattr(start, name) for name in ("critic", "value", "target_critic", "target_params")}
    return state.replace(**learned, opt_states=carry_over(state.opt_states, start.opt_states))


def _update(parts: Parts, state: OfflineState, key: Array, batch: Sample) -> tuple[OfflineState, Metrics]:
    numbers, bound = parts.settings.open(state.settings)
    summaries, metrics = {}, {}
    trained = {"policy": state.params, "critic": state.critic, "value": state.value}
    opt_states = dict(state.opt_states)
    keys = dict(zip(("target", "sampled", "action"), jax.random.split(key, 3), strict=True))

    def step(name: str, loss: Callable[..., tuple[Array, tuple[Metrics, PyTree]]], *arguments: Any) -> Params:
        grads, (own, summary) = jax.grad(loss, argnums=len(arguments), has_aux=True)(*arguments, trained[name])
        summaries.update(summary)
        metrics.update(own)
        optimizer = parts.optimizers[name]
        params, opt_states[name], _ = apply_updates(
            grads, trained[name], state.opt_states[name], optimizer, axis_name=parts.axis_name
        )
        return params

    value = step("value", value_loss_of, parts, bound, state, batch) if parts.state_value is not None else state.value
    critic = step("critic", critic_loss_of, parts, bound, state, value, numbers["discount"], keys, batch)
    params = step("policy", policy_loss_of, parts, bound, state, critic, value, keys["action"], batch)
    due = (state.num_updates + 1) % parts.policy_period == 0
    old, new = (state.params, state.opt_states["policy"]), (params, opt_states["policy"])
    params, opt_states["policy"] = take_if(due, new, old)
    rate = jnp.where(due, numbers["target_update_rate"], 0.0)
    new_state = state.replace(
        params=params,
        critic=critic,
        value=value,
        target_critic=optax.incremental_update(critic, state.target_critic, rate),
        target_params=optax.incremental_update(params, state.target_params, rate),
        opt_states=opt_states,
        settings=parts.settings.close(state.settings, summaries, axis_name=parts.axis_name),
        num_updates=state.num_updates + 1,
    )
    priority = metrics.pop("priority")
    if parts.axis_name is not None:
        metrics = jax.lax.pmean(metrics, parts.axis_name)
    metrics |= learning_rate_of(parts.optimizers["policy"], state.opt_states["policy"])
    return new_state, metrics | {"priority": priority}

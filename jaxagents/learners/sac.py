"""SAC (Haarnoja et al., 2018) with automatic temperature; its slots also give TD3 (Fujimoto et al., 2018) and MPO."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.actor_critic_terms import (
    check_actor_critic,
    choose_actions,
    critic_loss_of,
    dual_loss_of,
    entropy_of_paper,
    improvement_loss_of,
    policy_loss_of,
    some_critics,
    successor_of,
    temperature_loss_of,
)
from jaxagents.learners.checks import check_fractions
from jaxagents.learners.combinators import params_of
from jaxagents.learners.optimizers import (
    Trainable,
    apply_updates,
    carry_over,
    init_optimizer,
    learning_rate_of,
    parts_of,
    take_if,
)
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import Bound, Number, Numbers, Settings, SettingsState, Slot, make_settings
from jaxagents.losses.q import sac_actor_loss, sac_critic_loss, soft_q_target
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
from jaxagents.values.q_function import TwinQ, with_statistics


@struct.dataclass
class SACState:
    """State of the learner.

    Attributes:
        params: parameters of the policy.
        critic: parameters of the critics.
        target_critic: moving average of the critics; None for critics with batch normalisation.
        target_params: moving average of the policy; None if targets use the policy itself.
        log_temperature: float32 `[]`, or several scalars by name.
        opt_states: optimiser states for each of `policy`, `critic` and `temperature`.
        settings: hyper-parameters that can change, and slots.
        num_updates: int32, number of updates so far.
    """

    params: Params
    critic: Params
    target_critic: Params | None
    target_params: Params | None
    log_temperature: PyTree
    opt_states: dict[str, optax.OptState]
    settings: SettingsState
    num_updates: Array


class _Parts(NamedTuple):
    """Static values that init and updates share."""

    policy: Policy
    twin_q: TwinQ
    optimizers: dict[str, optax.GradientTransformation]
    settings: Settings
    policy_period: int
    target_period: int
    num_actions: int
    num_target_critics: int | None
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
    initial_temperature: float | Mapping[str, float] = 1.0,
    critic_loss: Slot = sac_critic_loss,
    actor_loss: Slot = sac_actor_loss,
    target: Slot = soft_q_target,
    action: Slot = sample_action,
    next_action: Slot = sample_action,
    improve: Slot | None = None,
    policy_period: int = 1,
    target_period: int = 1,
    num_actions: int = 1,
    num_target_critics: int | None = None,
    target_policy: bool = False,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes soft actor-critic over `Sample` batches; the length of their sequences is the `n` of the n-step targets.

    One update minimises, in this order, `mean(weight * sum_i (Q_i - target)^2 / 2)` for the critics, `mean(weight *
    (temperature * log_prob - min_i Q_i))` for the policy and `mean(-weight * temperature * (log_prob +
    target_entropy))` for the log-temperature. Truncated steps bootstrap, terminated ones do not. The first three
    numbers may be schedules (see `ops.schedules`), and every slot a `Stateful`.

    Args:
        policy: feed-forward policy with a reparameterised distribution.
        twin_q: twin Q-function for the same spaces.
        policy_optimizer: an optax transformation.
        q_optimizer: optax transformation for the critics.
        temperature_optimizer: optax transformation for the log-temperature.
        action_space: bounded box; actions in samples are unsquashed.
        discount: gamma in [0, 1], per step.
        target_update_rate: fraction by which the target critics move per update, in (0, 1].
        target_entropy: target of the entropy in nats, for the action in its own units; null: `D (log((high - low) / 2)
            - 1)` for D action dimensions, which is the paper's `-D` for actions in `[-1, 1]`.
        initial_temperature: positive number; several by name if `improve` needs them.
        critic_loss: `(q [E, B], target [B]) -> [B]` for E critics.
        actor_loss: `(q [E, B], log_prob [B], temperature) -> [B]`.
        target: `(reward [B], discount [B], next_q [E, K, B], next_log_prob [K, B], temperature) -> [K, B]`, which is
            averaged over the K actions.
        action: `(distribution, key) -> action` for one state, with which the policy is improved; it has no memory.
        next_action: the same for the successors, in the targets.
        improve: `(ImprovementView, temperature) -> (loss of the policy [B], of the temperatures [B])`, see
            `losses.mpo`, which replaces `actor_loss` and `action`; null: these are used.
        policy_period: number of critic updates per update of policy and temperature; their schedules count all. TD3: 2.
        target_period: the same for the targets. TD3: 2.
        num_actions: K, number of actions drawn at each successor, and at each state for `improve`. MPO: 20.
        num_target_critics: number of critics that are drawn for the targets of every update; null: all. REDQ: 2 of 10.
        target_policy: whether targets use a moving average of the policy. TD3 and DDPG: yes.
        num_updates: number of updates of the whole run, for schedules and slots that depend on progress.
        trainable: prefix pytree of bool of `{"policy", "critic", "temperature"}`, see `apply_updates`; null: everything
            is trained.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner; wrap it in `with_replay`. `metrics["priority"]` is the mean of both `|error|`, float32 `[B]`.

    Raises:
        ValueError: a number is out of its range, the actions are unbounded, or the policy is recurrent.

    References:
        Haarnoja et al. (2018b), "Soft Actor-Critic Algorithms and Applications", algorithm 1.
        Chen et al. (2021), "Randomized Ensembled Double Q-Learning", algorithm 1 (num_target_critics, policy_period).
        Bhatt et al. (2024), "CrossQ", figure 2: critics with batch normalisation have no separate target networks.

    Deviation: the temperature's loss is that of its logarithm, as in the released code; multi-step targets leave out
        the entropy of the steps between.
    """
    counts: dict[str, int | None] = {"policy_period": policy_period, "target_period": target_period}
    counts |= {"num_actions": num_actions, "num_target_critics": num_target_critics}
    check_counts(**counts)
    check_fractions(discount=discount, target_update_rate=target_update_rate)
    check_actor_critic(policy, twin_q, action_space, target_update_rate, initial_temperature, num_target_critics)
    if improve is not None and (twin_q.fit is not None or not target_policy):
        raise ValueError(
            "`improve` must have targets of policy and critics; try target_policy=true without batch norm."
        )
    target_entropy = entropy_of_paper(action_space) if target_entropy is None else target_entropy
    slots: dict[str, Slot | None] = {"critic_loss": critic_loss, "actor_loss": actor_loss, "target": target}
    slots |= {"action": action, "next_action": next_action, "improve": improve}
    optimizers = {"policy": policy_optimizer, "critic": q_optimizer, "temperature": temperature_optimizer}
    hyperparameters = {"discount": discount, "target_update_rate": target_update_rate, "target_entropy": target_entropy}

    static: dict[str, Any] = counts | {
        "num_updates": num_updates,
        "target_policy": target_policy,
        "trainable": trainable,
        "axis_name": axis_name,
    }
    parts = _Parts(policy, twin_q, optimizers, make_settings(hyperparameters, slots), **static)
    return Learner(init=partial(_init, parts, initial_temperature), update=partial(_update, parts))


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., Policy],
    value: Callable[..., TwinQ],
    policy_optimizer: Callable[..., optax.GradientTransformation],
    q_optimizer: Callable[..., optax.GradientTransformation],
    temperature_optimizer: Callable[..., optax.GradientTransformation],
    model: Callable[..., Learner] | None = None,
    explore: Callable[..., Policy] | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles SAC for an environment with bounded continuous actions.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> Policy`.
        value: `(observation_space, action_space) -> TwinQ`.
        policy_optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        q_optimizer: see `policy_optimizer`.
        temperature_optimizer: see `policy_optimizer`.
        model: `(learner, policy, observation_space, action_space, *, axis_name) -> Learner` that imagines additional
            samples, see `learners.mbpo`; None: only real steps are used.
        explore: `(policy, twin_q, observation_space, action_space) -> Policy` that acts instead of the policy, with the
            parameters in the states of `model`, see `learners.meee`; None: the policy acts.
        axis_name: see `make_sac`.
        **options: further arguments of `make_sac` and of `replay_agent`.
    """
    spaces = environment.observation_space, environment.action_space
    actor, twin_q = policy(*spaces), value(*spaces)

    def make_learner(optimizers: Sequence[optax.GradientTransformation], **options: Any) -> Learner:
        parts: tuple[Any, ...] = (actor, twin_q, *optimizers, environment.action_space)
        learner = make_sac(*parts, **options)
        return learner if model is None else model(learner, actor, *spaces, axis_name=axis_name)

    def optimizer(num_steps: int) -> list[optax.GradientTransformation]:
        return [make(num_steps) for make in (policy_optimizer, q_optimizer, temperature_optimizer)]

    acting = actor if explore is None else explore(actor, twin_q, *spaces)
    return replay_agent(make_learner, acting, environment, optimizer=optimizer, axis_name=axis_name, **options)


def _init(parts: _Parts, initial_temperature: Any, key: Array, start: SACState | Params | None = None) -> SACState:
    policy_key, critic_key = jax.random.split(key)
    params = parts.policy.init(policy_key) if start is None else params_of(start)
    critic = parts.twin_q.init(critic_key)
    initial_temperature = dict(initial_temperature) if isinstance(initial_temperature, Mapping) else initial_temperature
    log_temperature = jax.tree.map(lambda number: jnp.log(jnp.float32(number)), initial_temperature)
    trained = {"policy": params, "critic": critic, "temperature": log_temperature}
    flags = parts_of(parts.trainable, trained)
    state = SACState(
        params=params,
        critic=critic,
        # Copies, because a donated state must not contain the same buffer twice.
        target_critic=jax.tree.map(jnp.copy, critic) if parts.twin_q.fit is None else None,
        target_params=jax.tree.map(jnp.copy, params) if parts.target_policy else None,
        log_temperature=log_temperature,
        opt_states={
            name: init_optimizer(optimizer, trained[name], flags[name]) for name, optimizer in parts.optimizers.items()
        },
        settings=parts.settings.init(parts.num_updates),
        num_updates=jnp.zeros((), jnp.int32),
    )
    return _go_on(state, start) if isinstance(start, SACState) else state


def _update(parts: _Parts, state: SACState, key: Array, batch: Sample) -> tuple[SACState, Metrics]:
    next_key, key, subset_key, *dropout_keys = jax.random.split(key, 5)
    temperature = jax.tree.map(jnp.exp, state.log_temperature)
    numbers, bound = parts.settings.open(state.settings)
    following = state.params if state.target_params is None else state.target_params
    draw_next = partial(choose_actions, parts.policy, bound["next_action"], parts.axis_name)
    successor = successor_of(draw_next, following, numbers["discount"], _keys(next_key, parts.num_actions), batch)
    trained = {"policy": state.params, "critic": state.critic, "temperature": state.log_temperature}
    flags, opt_states, summaries = parts_of(parts.trainable, trained), {}, {}

    def step(name: str, loss: Callable[[Params], tuple[Array, Any]]) -> tuple[Params, Any]:
        grads, (auxiliary, summary) = jax.grad(loss, has_aux=True)(trained[name])
        summaries.update(summary)
        params, opt_states[name], _ = apply_updates(
            grads,
            trained[name],
            state.opt_states[name],
            parts.optimizers[name],
            axis_name=parts.axis_name,
            trainable=flags[name],
        )
        return params, auxiliary

    target_critic = state.target_critic
    some = None if target_critic is None else some_critics(target_critic, parts.num_target_critics, subset_key)
    losses = bound["critic_loss"], bound["target"]
    arguments = parts.twin_q, *losses, some, temperature, dropout_keys[0], parts.axis_name, successor, batch
    critic, (critic_metrics, priority, statistics) = step("critic", partial(critic_loss_of, *arguments))
    if statistics is not None:
        critic = with_statistics(critic, statistics)
    policy_loss, temperature_loss = _losses_of_policy(
        parts, state, bound, numbers, temperature, critic, (key, dropout_keys[1]), batch
    )
    params, (policy_metrics, seen) = step("policy", policy_loss)
    log_temperature, _ = step("temperature", partial(temperature_loss, seen))
    if parts.policy_period > 1:
        due, names = (state.num_updates + 1) % parts.policy_period == 0, ("policy", "temperature")
        old = (state.params, state.log_temperature, {name: state.opt_states[name] for name in names})
        new = (params, log_temperature, {name: opt_states[name] for name in names})
        params, log_temperature, chosen = take_if(due, new, old)
        opt_states |= chosen
    rate = numbers["target_update_rate"]
    if parts.target_period > 1:
        rate = jnp.where((state.num_updates + 1) % parts.target_period == 0, rate, 0.0)
    new_state = state.replace(
        params=params,
        critic=critic,
        target_critic=None if target_critic is None else optax.incremental_update(critic, target_critic, rate),
        target_params=optax.incremental_update(params, state.target_params, rate) if parts.target_policy else None,
        log_temperature=log_temperature,
        opt_states=opt_states,
        settings=parts.settings.close(state.settings, summaries, axis_name=parts.axis_name),
        num_updates=state.num_updates + 1,
    )
    metrics = critic_metrics | policy_metrics
    if parts.axis_name is not None:
        metrics = jax.lax.pmean(metrics, parts.axis_name)
    metrics |= learning_rate_of(parts.optimizers["policy"], state.opt_states["policy"])
    temperatures = temperature if isinstance(temperature, dict) else {"temperature": temperature}
    return new_state, metrics | temperatures | {"priority": priority}


def _losses_of_policy(
    parts: _Parts,
    state: SACState,
    bound: Mapping[str, Bound],
    numbers: Numbers,
    temperature: PyTree,
    critic: Params,
    keys: tuple[Array, Array],
    batch: Sample,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns `(params) -> (loss, ((metrics, seen), summaries))`, and `(seen, log_temperature) -> ...` likewise."""
    if "improve" in bound:
        key, targets = _keys(keys[0], parts.num_actions), (state.target_params, state.target_critic)
        improved = parts.policy, parts.twin_q, bound["improve"], temperature, key
        loss = partial(improvement_loss_of, *improved, parts.axis_name, *targets, batch)
        return loss, partial(dual_loss_of, bound["improve"], batch.weight)
    draw = partial(choose_actions, parts.policy, bound["action"], parts.axis_name)
    arguments = draw, parts.twin_q, bound["actor_loss"], critic, temperature, keys, parts.axis_name, batch
    return partial(policy_loss_of, *arguments), partial(temperature_loss_of, batch.weight, numbers["target_entropy"])


def _keys(key: Array, count: int) -> Array:
    return key[None] if count == 1 else jax.random.split(key, count)


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

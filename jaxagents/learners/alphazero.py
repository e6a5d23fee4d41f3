"""AlphaZero (Silver et al., 2018): the policy imitates the results of searches, the value predicts outcomes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.combinators import params_of
from jaxagents.learners.minibatches import minibatches_of_device, to_sequences, update_in_minibatches
from jaxagents.learners.optimizers import Trainable, carry_over, init_optimizer
from jaxagents.learners.rollouts import rollout_agent
from jaxagents.learners.settings import Number, SettingsState, make_settings
from jaxagents.losses.imitation import search_cross_entropy
from jaxagents.losses.value import squared_loss
from jaxagents.ops.checks import check_counts
from jaxagents.ops.returns import lambda_returns
from jaxagents.policies.evaluating import with_evaluation
from jaxagents.types import (
    ActorCritic,
    Agent,
    Array,
    Carry,
    Environment,
    Learner,
    Metrics,
    Params,
    PolicyInput,
    PyTree,
    Rollout,
    Transition,
    input_of,
    input_of_successor,
)


@struct.dataclass
class AlphaZeroState:
    """State of the learner.

    Attributes:
        params: parameters of the actor-critic.
        opt_state: state of the optimiser.
        settings: hyper-parameters that can change.
    """

    params: Params
    opt_state: optax.OptState
    settings: SettingsState


@struct.dataclass
class AlphaZeroBatch:
    """Steps with their targets, leaves `[T, B, ...]`.

    Attributes:
        transition: transition with `extras["search_policy"]`.
        target: float32, targets of the value.
        carry: empty tuple.
    """

    transition: Transition
    target: Array
    carry: tuple[()] = ()


def make_alphazero(
    actor_critic: ActorCritic,
    optimizer: optax.GradientTransformation,
    *,
    num_epochs: int = 1,
    num_minibatches: int = 4,
    discount: Number = 1.0,
    trace_decay: Number = 1.0,
    value_coefficient: Number = 1.0,
    num_updates: int = 1,
    trainable: Trainable = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes AlphaZero over rollouts of `search.self_play`.

    Minimises `-sum_a w(a) log pi(a | s) + value_coefficient (V(s) - G)^2 / 2`, with the improved policy w of the search
    and the lambda-return G. With a decay of 1, G is the outcome of the game for the player who acts in s, or the value
    at the end of the rollout if the game has not ended. Numbers may be schedules.

    Args:
        actor_critic: feed-forward actor-critic.
        optimizer: an optax transformation.
        num_epochs: number of passes over every rollout.
        num_minibatches: number of minibatches, with one optimiser step each, per pass.
        discount: gamma in [0, 1], per step; `extras["perspective"]` reverses its sign if the opponent acts next.
        trace_decay: lambda.
        value_coefficient: weight of the value's loss.
        num_updates: number of updates of the whole run, for schedules.
        trainable: parameters that are trained, see `apply_updates`.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner.

    Raises:
        ValueError: a number is out of its range.

    References:
        Silver et al. (2018), A general reinforcement learning algorithm that masters chess, shogi and Go, equation 1.

    Deviation: it learns from the newest games only, without replay; weights are regularised by the optimiser.
    """
    check_counts(num_epochs=num_epochs, num_minibatches=num_minibatches)
    fractions = {"discount": discount, "trace_decay": trace_decay}
    check_fractions(**fractions)
    settings = make_settings(fractions | {"value_coefficient": value_coefficient})

    def init(key: Array, start: AlphaZeroState | Params | None = None) -> AlphaZeroState:
        params = actor_critic.init(key) if start is None else params_of(start)
        opt_state = init_optimizer(optimizer, params, trainable)
        return AlphaZeroState(
            params=params,
            opt_state=carry_over(opt_state, start.opt_state) if isinstance(start, AlphaZeroState) else opt_state,
            settings=settings.init(num_updates),
        )

    def update(state: AlphaZeroState, key: Array, rollout: Rollout) -> tuple[AlphaZeroState, Metrics]:
        num_steps, num_envs = rollout.transition.terminated.shape
        counts = {"num_epochs": num_epochs, "num_minibatches": num_minibatches}
        indices = minibatches_of_device(key, num_steps, num_envs, **counts, axis_name=axis_name)
        numbers, _ = settings.open(state.settings)
        target = outcomes(actor_critic, state.params, rollout.transition, numbers["discount"], numbers["trace_decay"])
        batch = to_sequences(AlphaZeroBatch(transition=rollout.transition, target=target), 1)
        params, opt_state, metrics, _ = update_in_minibatches(
            partial(_loss, actor_critic, numbers["value_coefficient"]),
            state.params,
            state.opt_state,
            optimizer,
            batch,
            indices,
            trainable=trainable,
            axis_name=axis_name,
        )
        return state.replace(params=params, opt_state=opt_state, settings=settings.close(state.settings)), metrics

    return Learner(init=init, update=update)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[..., ActorCritic],
    value_bound: float | None = 1.0,
    **options: Any,
) -> Agent:
    """Assembles AlphaZero for an environment with one stream of rewards.

    Args:
        environment: environment that defines the spaces.
        policy: `(observation_space, action_space) -> ActorCritic`.
        value_bound: c in values `c tanh(v / c)`, the largest return; None: no bound. Without a bound, a lost position
            can seem worse than a loss, so that it is not defended.
        **options: further arguments of `make_alphazero` and of `rollout_agent`.

    Returns:
        The agent; outside a search it acts with the policy alone.

    Raises:
        ValueError: the policy has no critic, or it has a memory, or the bound is not positive.
    """
    check_positive(value_bound=value_bound)
    actor_critic = policy(environment.observation_space, environment.action_space)
    with_evaluation(actor_critic)  # Refuses policies without a critic.
    actor_critic = actor_critic if value_bound is None else _bounded(actor_critic, value_bound)
    return rollout_agent(partial(make_alphazero, actor_critic), with_evaluation(actor_critic), environment, **options)


def _bounded(actor_critic: ActorCritic, bound: float) -> ActorCritic:
    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, Any, Array]:
        carry, distribution, value = actor_critic.apply(params, carry, inputs)
        return carry, distribution, bound * jnp.tanh(value / bound)

    return actor_critic._replace(apply=apply)


def outcomes(
    actor_critic: ActorCritic, params: Params, transition: Transition, discount: Array, trace_decay: Array
) -> Array:
    """Computes lambda-returns for the player who acts at each step, float32 `[T, B]`."""
    num_envs = transition.terminated.shape[1]
    _, _, next_value = actor_critic.apply(
        params, actor_critic.initial_carry((num_envs,)), input_of_successor(transition)
    )
    discount = jnp.broadcast_to(discount * transition.extras.get("perspective", 1.0), transition.reward.shape)
    ends = transition.terminated, transition.truncated
    returns = lambda_returns(transition.reward, *ends, next_value, discount=discount, trace_decay=trace_decay)
    return jax.lax.stop_gradient(returns)


def _loss(
    actor_critic: ActorCritic, value_coefficient: Array, params: Params, batch: AlphaZeroBatch
) -> tuple[Array, tuple[dict[str, Array], dict[str, PyTree]]]:
    transition = batch.transition
    carry = actor_critic.initial_carry((transition.terminated.shape[1],))
    _, distribution, value = actor_critic.apply(params, carry, input_of(transition))
    weights = transition.extras["search_policy"]
    policy_loss = jnp.mean(search_cross_entropy(distribution, weights, transition.extras.get("search_actions")))
    value_loss = jnp.mean(squared_loss(value, batch.target))
    certainty = jnp.sum(weights * jnp.log(jnp.where(weights > 0.0, weights, 1.0)), axis=-1)
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "search_entropy": -jnp.mean(certainty)}
    loss = policy_loss + value_coefficient * value_loss
    return loss, (metrics | {"loss": loss}, {})

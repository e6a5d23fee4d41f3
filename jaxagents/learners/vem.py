"""VEM (Zheng et al., 2025): rewards a policy with action values, fitted once to labelled steps and then frozen."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import wrapper_agent
from jaxagents.learners.estimators import Estimator, with_estimator
from jaxagents.learners.turn_values import TurnValues, TurnValueState, cross_entropy, make_turn_values
from jaxagents.ops.episodes import acting_turns
from jaxagents.types import Agent, Array, Collector, Environment, Episode, Learner, Mean, Metrics, Params


def make_action_values(values: TurnValues, *, hard: bool = True, axis_name: str | None = None) -> Estimator:
    """Makes an action value with two levels, which replaces the rewards of turns.

    p is the probability that an action is good; it is fitted by cross-entropy to whether the world rewarded its turn. A
    turn earns `level / 2`, where the level is 2 if p > 1/2, else 1.

    Args:
        values: turn values, with sigmoid(Q) = p.
        hard: whether to use the level; False: rewards are the mean level, `(1 + p) / 2`.
        axis_name: mapped device axis to average over.

    Returns:
        The estimator, for `with_estimator` with `num_fitted`. Metrics: `action_value_loss` (log 2 = 0.69 for a constant
        guess) and `action_value_accuracy`, relative to the world's rewards.

    References:
        Zheng et al. (2025), "VEM: Environment-Free Exploration for Training GUI Agent with Value Environment Model",
        section 3; microsoft/GUI-Agent-RL@c405c50, train.py:72-96.
    """

    def init(key: Array, params: Params, start: TurnValueState | None = None) -> TurnValueState:
        del key
        return values.init(params, start)

    def judge(state: TurnValueState, episode: Episode) -> tuple[Episode, Array]:
        value = values.judge(state.params, episode)[1]
        good = (value > 0.0).astype(jnp.float32) if hard else jax.nn.sigmoid(value)
        return episode.replace(reward=jnp.where(acting_turns(episode), 0.5 + 0.5 * good, 0.0)), value

    def fit(state: TurnValueState, key: Array, episode: Episode, value: Array) -> TurnValueState:
        del key
        slope = cross_entropy(value, episode.reward > 0.0, acting_turns(episode), axis_name=axis_name)[1]
        return values.step(state, episode, 0.0, slope)

    def describe(episode: Episode, value: Array) -> Metrics:
        counted, paid = acting_turns(episode), episode.reward > 0.0
        right = jnp.sum(counted & ((value > 0.0) == paid), dtype=jnp.float32)
        accuracy = Mean(total=right, count=jnp.maximum(jnp.sum(counted, dtype=jnp.float32), 1.0))
        loss = cross_entropy(value, paid, counted, axis_name=axis_name)[0]
        return {"action_value_loss": loss, "action_value_accuracy": accuracy}

    return Estimator(init=init, judge=judge, describe=describe, fit=fit)


def make_agent(
    environment: Environment,
    *,
    estimator_optimizer: Callable[..., optax.GradientTransformation],
    num_fitted: int,
    hard: bool = True,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent rewarded with a frozen action value, for a text world with one seat.

    Args:
        environment: text world with one seat, whose turn rewards say whether actions are good.
        estimator_optimizer: `(steps of the fit) -> optax.GradientTransformation`.
        num_fitted: number of first updates, in which the values learn and the policy does not; then the values are
            frozen.
        hard: see `make_action_values`.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: see `make_action_values`.
        **options: further arguments of `learners.policy_gradient.make_agent`; the policy has a value head.
    """
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, **both, **options)
    policy = agent.policy

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        del collector, num_updates
        values = make_turn_values(policy.model, policy.layout, estimator_optimizer(num_fitted), **both)
        estimator = make_action_values(values, hard=hard, axis_name=axis_name)
        return with_estimator(learner, estimator, num_exploring=num_fitted, num_fitted=num_fitted)

    return wrapper_agent(agent, change)

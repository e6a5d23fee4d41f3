"""PRIME (Cui et al., 2025): implicit process rewards, the log-ratios of a model that learns outcomes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import wrapper_agent
from jaxagents.learners.estimators import Estimator, with_estimator
from jaxagents.learners.microbatches import make_microbatches, score_episodes, weighted_gradient
from jaxagents.learners.optimizers import apply_updates, carry_over, init_optimizer
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    LanguageModel,
    Layout,
    Learner,
    Mean,
    Metrics,
    Params,
)


@struct.dataclass
class ImplicitRewardState:
    """Parameters of the reward model, its initial parameters, its optimiser state, and its numbers as arrays."""

    params: Params
    reference: Params
    opt_state: optax.OptState
    numbers: dict[str, Array]


def make_implicit_rewards(
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    coefficient: float = 0.05,
    weight: float = 1.0,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
) -> Estimator:
    """Makes a model of outcomes whose log-ratio to its initial parameters is a reward of every token.

    `r_l = coefficient (log phi_l - log phi0_l)` for a sampled token. An episode succeeds with probability
    `sigmoid(sum_l r_l)`, to which phi is fitted by cross-entropy; no turn needs a label. The reward of a turn becomes
    its own reward plus `weight` times the sum of r over its tokens.

    Args:
        model: language model of the same kind as the policy; phi starts as a copy of the policy.
        layout: layout of the episodes.
        optimizer: optimiser of phi.
        coefficient: beta, scale of the implicit rewards.
        weight: weight of the implicit rewards relative to the reward of the world.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The estimator, for `with_estimator`. Metrics: `outcome_loss` (cross-entropy, log 2 = 0.69 for a constant guess)
        and `outcome_accuracy`, both before the step.

    References:
        Cui et al. (2025), "Process Reinforcement through Implicit Rewards" (PRIME), algorithm 1 and eq. 3 (0.05);
        Yuan et al. (2024), "Free Process Rewards without Process Labels", proposition 3.1.

    Deviation: rewards belong to turns, and the baseline is a separate choice (`advantage=rloo_turn`); the paper's
        belong to tokens, minus the mean over the other episodes of their mean token reward.
    """
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)

    def init(key: Array, params: Params, start: ImplicitRewardState | None = None) -> ImplicitRewardState:
        del key
        fresh = start is None
        params = jax.tree.map(jnp.copy, params) if fresh else start.params
        opt_state = init_optimizer(optimizer, params)
        return ImplicitRewardState(
            params=params,
            reference=jax.tree.map(jnp.copy, params) if fresh else start.reference,
            opt_state=opt_state if fresh else carry_over(opt_state, start.opt_state),
            numbers={"coefficient": jnp.float32(coefficient), "weight": jnp.float32(weight)},
        )

    def judge(state: ImplicitRewardState, episode: Episode) -> tuple[Episode, Array]:
        now, before = (
            score_episodes(model, microbatches, params, episode, fields=("log_prob",)).log_prob
            for params in (state.params, state.reference)
        )
        implicit = state.numbers["coefficient"] * jnp.sum(jnp.where(episode.action_mask, now - before, 0.0), axis=2)
        return episode.replace(reward=episode.reward + state.numbers["weight"] * implicit), implicit

    def fit(state: ImplicitRewardState, key: Array, episode: Episode, implicit: Array) -> ImplicitRewardState:
        del key
        logit, success = _logit_and_success(episode, implicit)
        slope = state.numbers["coefficient"] * (jax.nn.sigmoid(logit) - success) / success.shape[0]
        slope = jnp.where(episode.action_mask, slope[:, None, None], 0.0)
        grads = weighted_gradient(model, microbatches, state.params, episode, "log_prob", slope)
        params, opt_state, _ = apply_updates(grads, state.params, state.opt_state, optimizer, axis_name=axis_name)
        return state.replace(params=params, opt_state=opt_state)

    return Estimator(init=init, judge=judge, describe=_describe, fit=fit)


def _logit_and_success(episode: Episode, implicit: Array) -> tuple[Array, Array]:
    return jnp.sum(implicit, axis=1), episode.success.astype(jnp.float32)


def _describe(episode: Episode, implicit: Array) -> Metrics:
    logit, success = _logit_and_success(episode, implicit)
    count = jnp.float32(success.shape[0])
    metrics = {
        "outcome_loss": jnp.sum(optax.sigmoid_binary_cross_entropy(logit, success)),
        "outcome_accuracy": jnp.sum((logit > 0.0) == episode.success, dtype=jnp.float32),
    }
    return {name: Mean(total=total, count=count) for name, total in metrics.items()}


def make_agent(
    environment: Environment,
    *,
    estimator_optimizer: Callable[..., optax.GradientTransformation],
    coefficient: float = 0.05,
    weight: float = 1.0,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent with implicit rewards of turns for a text world with one seat.

    Args:
        environment: a text world with one seat.
        estimator_optimizer: `(updates of the whole run) -> optax.GradientTransformation` for the model of outcomes.
        coefficient: see `make_implicit_rewards`.
        weight: see `make_implicit_rewards`.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: see `make_implicit_rewards`.
        **options: further arguments of `learners.policy_gradient.make_agent`.
    """
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, **both, **options)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        model, layout, steps = agent.policy.model, agent.policy.layout, estimator_optimizer(num_updates)
        estimator = make_implicit_rewards(model, layout, steps, coefficient=coefficient, weight=weight, **both)
        return with_estimator(learner, estimator)

    return wrapper_agent(agent, change)

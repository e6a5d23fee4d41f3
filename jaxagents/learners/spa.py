"""SPA-RL (Wang et al., 2025): stepwise progress attribution, the share of each turn in the outcome."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import wrapper_agent
from jaxagents.learners.estimators import Estimator, with_estimator
from jaxagents.learners.microbatches import Microbatches, make_microbatches, score_episodes, weighted_gradient
from jaxagents.learners.optimizers import apply_updates, carry_over, init_optimizer
from jaxagents.ops.checks import require_positive
from jaxagents.ops.episodes import episode_return, last_action_token_mask
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
class ProgressState:
    """Parameters of the estimator, their optimiser state, and `contribution` and `grounding` as arrays."""

    params: Params
    opt_state: optax.OptState
    numbers: dict[str, Array]


def make_progress_estimator(
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    contribution: float = 1.0,
    grounding: float = 0.5,
    num_steps: int = 1,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
) -> Estimator:
    """Makes an estimator of the contribution of turns to the outcome of an episode.

    It starts as a copy of the model that is trained; c_t is its value in the context of the last token of turn t. It
    replaces the reward of a turn by `contribution c_t + grounding executable_t`, and is fitted to `mean_b (sum_t c_t -
    return)^2`.

    Args:
        model: language model with a value head, which estimates the contributions.
        layout: layout of the episodes.
        optimizer: optimiser of the estimator.
        contribution: alpha, weight of c_t.
        grounding: beta, reward of a turn whose action could be executed.
        num_steps: number of gradient steps per update, on the whole batch.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The estimator, for `with_estimator`. Metrics: `progress_loss` before the steps; `progress_explained`, the share
        of the variance of the batch's returns that it explains, below zero if a constant is better; and
        `executable_fraction`.

    Raises:
        ValueError: the model has no value head, `num_steps` is not positive, or (when the update is traced) the
            episodes are of a game with several seats, whose returns cannot be summed.

    References:
        Wang et al. (2025), "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution", eq. 4 to 7.

    Deviation: without `num_fitted`, it continues to learn from the policy's episodes; the paper fits it once.
    Deviation: it evaluates a turn before the last sampled token, which is the end mark unless the action was truncated.
    """
    if model.value is None:
        raise ValueError("`model` must have a value head to estimate progress; try model.network.value_head=true.")
    require_positive("num_steps", num_steps)
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)

    def init(key: Array, params: Params, start: ProgressState | None = None) -> ProgressState:
        del key
        params = jax.tree.map(jnp.copy, params) if start is None else start.params
        opt_state = init_optimizer(optimizer, params)
        return ProgressState(
            params=params,
            opt_state=opt_state if start is None else carry_over(opt_state, start.opt_state),
            numbers={"contribution": jnp.float32(contribution), "grounding": jnp.float32(grounding)},
        )

    def judge(state: ProgressState, episode: Episode) -> tuple[Episode, Array]:
        progress = contributions(model, microbatches, state.params, episode)
        executed = (episode.valid & episode.action_valid).astype(jnp.float32)
        reward = state.numbers["contribution"] * progress + state.numbers["grounding"] * executed
        return episode.replace(reward=reward), progress

    def step(state: ProgressState, episode: Episode, progress: Array) -> ProgressState:
        error = jnp.sum(progress, axis=1) - episode_return(episode)
        slope = jnp.where(last_action_token_mask(episode), (2.0 * error / error.shape[0])[:, None, None], 0.0)
        grads = weighted_gradient(model, microbatches, state.params, episode, "value", slope)
        params, opt_state, _ = apply_updates(grads, state.params, state.opt_state, optimizer, axis_name=axis_name)
        return state.replace(params=params, opt_state=opt_state)

    def fit(state: ProgressState, key: Array, episode: Episode, progress: Array) -> ProgressState:
        del key

        def again(_: Array, fitted: ProgressState) -> ProgressState:
            return step(fitted, episode, contributions(model, microbatches, fitted.params, episode))

        return jax.lax.fori_loop(1, num_steps, again, step(state, episode, progress))

    def describe(episode: Episode, progress: Array) -> Metrics:
        return _describe(episode, jnp.sum(progress, axis=1) - episode_return(episode), axis_name)

    return Estimator(init=init, judge=judge, describe=describe, fit=fit)


def _describe(episode: Episode, error: Array, axis_name: str | None) -> Metrics:
    outcome = episode_return(episode)
    sums = {
        "error": jnp.mean(jnp.square(error)),
        "first": jnp.mean(outcome),
        "second": jnp.mean(jnp.square(outcome)),
    }
    if axis_name is not None:
        sums = jax.lax.pmean(sums, axis_name)
    variance = sums["second"] - jnp.square(sums["first"])
    executed = jnp.sum(episode.valid & episode.action_valid, dtype=jnp.float32)
    return {
        "progress_loss": sums["error"],
        "progress_explained": jnp.where(variance > 1e-6, 1.0 - sums["error"] / jnp.maximum(variance, 1e-6), 0.0),
        "executable_fraction": Mean(total=executed, count=jnp.sum(episode.valid, dtype=jnp.float32)),
    }


def contributions(model: LanguageModel, microbatches: Microbatches, params: Params, episode: Episode) -> Array:
    """Computes the contribution of every turn to the outcome, `[B, T]`, zero for absent turns."""
    value = score_episodes(model, microbatches, params, episode, fields=("value",)).value
    return jnp.sum(jnp.where(last_action_token_mask(episode), value, 0.0), axis=2)


def make_agent(
    environment: Environment,
    *,
    estimator_optimizer: Callable[..., optax.GradientTransformation],
    contribution: float = 1.0,
    grounding: float = 0.5,
    num_exploring: int = 0,
    num_fitted: int | None = None,
    num_estimator_steps: int = 1,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent with estimated progress as reward for a text world.

    Args:
        environment: text world.
        estimator_optimizer: `(steps of the estimator) -> optax.GradientTransformation`.
        contribution: see `make_progress_estimator`.
        grounding: see `make_progress_estimator`.
        num_exploring: see `with_estimator`.
        num_fitted: see `with_estimator`.
        num_estimator_steps: number of gradient steps of the estimator per update.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: see `make_progress_estimator`.
        **options: further arguments of `learners.policy_gradient.make_agent`; the policy has a value head.
    """
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, **both, **options)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        estimator = make_progress_estimator(
            agent.policy.model,
            agent.policy.layout,
            estimator_optimizer(num_updates * num_estimator_steps),
            contribution=contribution,
            grounding=grounding,
            num_steps=num_estimator_steps,
            **both,
        )
        return with_estimator(learner, estimator, num_exploring=num_exploring, num_fitted=num_fitted)

    return wrapper_agent(agent, change)

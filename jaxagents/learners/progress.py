"""Rewards of turns from an estimator whose contributions add up to the outcome: SPA-RL."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.learners.microbatches import Microbatches, make_microbatches
from jaxagents.learners.optimizers import carry_over, descend, init_optimizer
from jaxagents.learners.policy_gradient import make_agent as make_policy_gradient_agent
from jaxagents.learners.scoring import score_episodes, weighted_gradient
from jaxagents.ops.episodes import episode_return, last_action_token_mask
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    LanguageModel,
    LanguagePolicy,
    Layout,
    Learner,
    Mean,
    Metrics,
    Params,
)


@struct.dataclass
class ProgressState:
    """State of a learner beside its estimator of progress.

    Attributes:
        inner: state of the learner.
        estimator: parameters of the estimator.
        opt_state: of the estimator.
        numbers: `contribution` and `grounding`.
        num_updates: int32, so far.
    """

    inner: Any
    estimator: Params
    opt_state: optax.OptState
    numbers: dict[str, Array]
    num_updates: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the learner."""
        return self.inner.params


def make_progress_rewards(
    learner: Learner,
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    contribution: float = 1.0,
    grounding: float = 0.5,
    num_exploring: int = 0,
    num_estimator_steps: int = 1,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner whose rewards are what turns contribute to the outcome.

    The estimator is a copy of the model that starts from the same parameters; c_t is its value in the context of the
    last token of turn t. Every update lets the learner learn from `contribution c_t + grounding executable_t` in place
    of the rewards, and makes steps of the estimator on `mean_b (sum_t c_t - return)^2`.

    Args:
        learner: of `Episode` batches.
        model: estimates; needs a value head.
        layout: of the episodes.
        optimizer: of the estimator.
        contribution: alpha, weight of c_t.
        grounding: beta, reward of a turn whose action could be executed.
        num_exploring: first updates in which only the estimator learns.
        num_estimator_steps: gradient steps of the estimator per update, on the whole batch.
        microbatch_tokens: about how many tokens go through the model at once.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The learner. Metrics are those of `learner`, and `progress_loss` and `executable_fraction`.

    Raises:
        ValueError: the model has no value head, `num_exploring` is negative, `num_estimator_steps` not positive, or
            (when the update is traced) it is a game of several seats, whose rewards have no sum.

    References:
        Wang et al. (2025), "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution", eq. 4 to 7.

    Deviation: the estimator goes on learning from the episodes of the policy as it changes; the paper fits it once.
    Deviation: it reads a turn before the last token that was said, which is the end mark unless the action was cut.
    """
    if model.value is None:
        raise ValueError("`model` must have a value head to estimate progress; try model.network.value_head=true.")
    if num_exploring < 0:
        raise ValueError(f"`num_exploring` must not be negative, got {num_exploring}; try 0.")
    if num_estimator_steps < 1:
        raise ValueError(f"`num_estimator_steps` must be at least 1, got {num_estimator_steps}; try 4.")
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)

    def fit(estimator: Params, opt_state: optax.OptState, episode: Episode) -> tuple[Params, optax.OptState, Array]:
        progress = contributions(model, microbatches, estimator, episode)
        error = jnp.sum(progress, axis=1) - episode_return(episode)
        slope = jnp.where(last_action_token_mask(episode), (2.0 * error / error.shape[0])[:, None, None], 0.0)
        grads = weighted_gradient(model, microbatches, estimator, episode, "value", slope)
        estimator, opt_state, _ = descend(grads, estimator, opt_state, optimizer, axis_name=axis_name)
        return estimator, opt_state, progress

    def init(key: Array, start: ProgressState | Params | None = None) -> ProgressState:
        inner = learner.init(key, start_of_inner(start, ProgressState))
        goes_on = isinstance(start, ProgressState)
        estimator = start.estimator if goes_on else jax.tree.map(jnp.copy, inner.params)
        opt_state = init_optimizer(optimizer, estimator)
        return ProgressState(
            inner=inner,
            estimator=estimator,
            opt_state=carry_over(opt_state, start.opt_state) if goes_on else opt_state,
            numbers={"contribution": jnp.float32(contribution), "grounding": jnp.float32(grounding)},
            num_updates=jnp.int32(0),
        )

    def update(state: ProgressState, key: Array, episode: Episode) -> tuple[ProgressState, Metrics]:
        estimator, opt_state, progress = fit(state.estimator, state.opt_state, episode)
        estimator, opt_state = jax.lax.fori_loop(
            1, num_estimator_steps, lambda _, fitted: fit(*fitted, episode)[:2], (estimator, opt_state)
        )
        executed = (episode.valid & episode.action_valid).astype(jnp.float32)
        loss = jnp.mean(jnp.square(jnp.sum(progress, axis=1) - episode_return(episode)))
        own_metrics = {
            "progress_loss": loss if axis_name is None else jax.lax.pmean(loss, axis_name),
            "executable_fraction": Mean(
                total=jnp.sum(executed), count=jnp.sum(episode.valid, dtype=jnp.float32)
            ),  # Devices play different numbers of turns.
        }
        reward = state.numbers["contribution"] * progress + state.numbers["grounding"] * executed
        inner, metrics = learner.update(state.inner, key, episode.replace(reward=reward))
        ready = state.num_updates >= num_exploring
        inner = jax.tree.map(lambda new, old: jnp.where(ready, new, old), inner, state.inner)
        state = state.replace(
            inner=inner,
            estimator=estimator,
            opt_state=opt_state,
            num_updates=state.num_updates + 1,
        )
        return state, dict(metrics) | own_metrics

    return wrap(learner, init, update)


def contributions(model: LanguageModel, microbatches: Microbatches, params: Params, episode: Episode) -> Array:
    """Computes what every turn contributes to the outcome, `[B, T]`, zero where there was none."""
    value = score_episodes(model, microbatches, params, episode, fields=("value",)).value
    return jnp.sum(jnp.where(last_action_token_mask(episode), value, 0.0), axis=2)


def make_agent(
    environment: Environment,
    *,
    policy: Callable[[Environment], LanguagePolicy],
    optimizer: Callable[..., optax.GradientTransformation],
    estimator_optimizer: Callable[..., optax.GradientTransformation],
    contribution: float = 1.0,
    grounding: float = 0.5,
    num_exploring: int = 0,
    num_estimator_steps: int = 1,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent with estimated progress as reward for a text world.

    Args:
        environment: a text world.
        policy: `(environment) -> LanguagePolicy`, with a value head.
        optimizer: `(optimiser steps of the whole run) -> optax.GradientTransformation`.
        estimator_optimizer: the same for the estimator.
        contribution: see `make_progress_rewards`.
        grounding: see `make_progress_rewards`.
        num_exploring: see `make_progress_rewards`.
        num_estimator_steps: see `make_progress_rewards`.
        microbatch_tokens: about how many tokens go through the model at once.
        axis_name: see `make_progress_rewards`.
        **options: further arguments of `learners.policy_gradient.make_agent`.

    Returns:
        The agent.
    """
    agent = make_policy_gradient_agent(
        environment,
        policy=policy,
        optimizer=optimizer,
        microbatch_tokens=microbatch_tokens,
        axis_name=axis_name,
        **options,
    )

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        return make_progress_rewards(
            agent.make_learner(collector, num_updates),
            agent.policy.model,
            agent.policy.layout,
            estimator_optimizer(num_updates * num_estimator_steps),
            contribution=contribution,
            grounding=grounding,
            num_exploring=num_exploring,
            num_estimator_steps=num_estimator_steps,
            microbatch_tokens=microbatch_tokens,
            axis_name=axis_name,
        )

    return Agent(policy=agent.policy, make_learner=make_learner)

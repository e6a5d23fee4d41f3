"""iStar (Liu et al., 2025): implicit rewards of turns from a model that ranks the episodes of a group."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import wrapper_agent
from jaxagents.learners.estimators import Estimator, with_estimator
from jaxagents.learners.microbatches import make_microbatches, score_episodes, weighted_gradient
from jaxagents.learners.optimizers import apply_updates
from jaxagents.learners.prime import ImplicitRewardState, make_implicit_rewards
from jaxagents.ops.episodes import acting_turns, episode_return, kept_rows
from jaxagents.types import Agent, Array, Environment, Episode, LanguageModel, Layout, Mean, Metrics

EXTRA = "implicit_reward"
"""Entry of `Episode.extras` that the rewards of turns are written to."""


def make_ranked_rewards(
    model: LanguageModel,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    coefficient: float = 0.05,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
) -> Estimator:
    """Makes a model that ranks episodes; its log-ratio to the policy that acted is the reward of a turn.

    `r_t = coefficient sum_l (log phi_l - log behavior_l)` over the sampled tokens l of turn t. With q the mean of r
    over the turns of an episode, phi is fitted to `-mean log sigmoid(q_i - q_j)` over the pairs of a group in which i
    has a higher return than j. The world's rewards are kept; `advantage=turn_scores` reads these rewards beside them.

    Args:
        model: language model of the same kind as the policy; phi starts as a copy of the policy.
        layout: layout of the episodes.
        optimizer: optimiser of phi.
        coefficient: beta, scale of the rewards.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: mapped device axis to average gradients over.

    Returns:
        The estimator. Metrics: `ranking_loss` (log 2 = 0.69 for a constant guess) and `ranking_accuracy`, before the
            step.

    References:
        Liu et al. (2025), "Agentic Reinforcement Learning with Implicit Step Rewards", eq. 3 to 5 (0.05).

    Deviation: q is the mean over turns, as in the authors' code; the paper uses their sum.
    """
    microbatches = make_microbatches(layout, microbatch_tokens=microbatch_tokens)
    prime = make_implicit_rewards(model, layout, optimizer, coefficient=coefficient, axis_name=axis_name)

    def judge(state: ImplicitRewardState, episode: Episode) -> tuple[Episode, Array]:
        log_prob = score_episodes(model, microbatches, state.params, episode, fields=("log_prob",)).log_prob
        ratio = jnp.where(episode.action_mask, jnp.asarray(log_prob) - episode.behavior_log_prob, 0.0)
        implicit = state.numbers["coefficient"] * jnp.sum(ratio, axis=2)
        return episode.replace(extras={**episode.extras, EXTRA: implicit}), implicit

    def fit(state: ImplicitRewardState, key: Array, episode: Episode, implicit: Array) -> ImplicitRewardState:
        del key
        score, pairs = _scores_and_pairs(episode, implicit)
        surprise = jnp.where(pairs, jax.nn.sigmoid(score[None, :] - score[:, None]), 0.0)
        count = jnp.sum(pairs, dtype=jnp.float32)
        count = count if axis_name is None else jax.lax.pmean(count, axis_name)
        slope = (jnp.sum(surprise, axis=0) - jnp.sum(surprise, axis=1)) / jnp.maximum(count, 1.0)
        slope = state.numbers["coefficient"] * slope / _num_turns(episode)
        weight = jnp.where(episode.action_mask, slope[:, None, None], 0.0)
        grads = weighted_gradient(model, microbatches, state.params, episode, "log_prob", weight)
        params, opt_state, _ = apply_updates(grads, state.params, state.opt_state, optimizer, axis_name=axis_name)
        return state.replace(params=params, opt_state=opt_state)

    return Estimator(init=prime.init, judge=judge, describe=_describe, fit=fit)


def _num_turns(episode: Episode) -> Array:
    return jnp.maximum(jnp.sum(acting_turns(episode), axis=1), 1)


def _scores_and_pairs(episode: Episode, implicit: Array) -> tuple[Array, Array]:
    """Returns the score of every episode, `[B]`, and which is to be ranked above which, bool `[B, B]`."""
    total, kept = episode_return(episode), kept_rows(episode)
    same = (episode.group[:, None] == episode.group[None, :]) & kept[:, None] & kept[None, :]
    return jnp.sum(implicit, axis=1) / _num_turns(episode), same & (total[:, None] > total[None, :])


def _describe(episode: Episode, implicit: Array) -> Metrics:
    score, pairs = _scores_and_pairs(episode, implicit)
    margin, count = score[:, None] - score[None, :], jnp.sum(pairs, dtype=jnp.float32)
    loss = jnp.sum(jnp.where(pairs, -jax.nn.log_sigmoid(margin), 0.0))
    right = jnp.sum(pairs & (margin > 0.0), dtype=jnp.float32)
    return {"ranking_loss": Mean(total=loss, count=count), "ranking_accuracy": Mean(total=right, count=count)}


def make_agent(
    environment: Environment,
    *,
    estimator_optimizer: Callable[..., optax.GradientTransformation],
    coefficient: float = 0.05,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent with implicit rewards of turns for a text world with one seat.

    Args:
        environment: a text world with one seat.
        estimator_optimizer: `(updates of the whole run) -> optax.GradientTransformation` for the ranking model.
        coefficient: see `make_ranked_rewards`.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: see `make_ranked_rewards`.
        **options: further arguments of `learners.policy_gradient.make_agent`.
    """
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, **both, **options)
    policy = agent.policy

    def make_estimator(num_updates: int) -> Estimator:
        steps = estimator_optimizer(num_updates)
        return make_ranked_rewards(policy.model, policy.layout, steps, coefficient=coefficient, **both)

    return wrapper_agent(agent, lambda learner, _, num_updates: with_estimator(learner, make_estimator(num_updates)))

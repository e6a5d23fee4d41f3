"""ExeVRM (Song et al., 2026): a judge that reads only the instruction and the screens rewards the policy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import wrapper_agent
from jaxagents.learners.estimators import Estimator, with_estimator
from jaxagents.learners.turn_values import TurnValues, TurnValueState, cross_entropy, make_turn_values
from jaxagents.ops.checks import check_counts
from jaxagents.ops.episodes import acting_turns
from jaxagents.ops.exevrm import screens_of
from jaxagents.types import (
    Agent,
    Array,
    Collector,
    Environment,
    Episode,
    LanguagePolicy,
    Learner,
    Mean,
    Metrics,
    Params,
)

Alter = Callable[[Array, Episode], Episode]


@struct.dataclass
class JudgeState:
    """State of the judge.

    Attributes:
        values: state of its value model.
        key: uint32 `[2]`, key for the next alteration of instructions.
    """

    values: TurnValueState
    key: Array


@struct.dataclass
class Judged:
    """Judged episodes: B own episodes, followed by the same number with altered instructions.

    Attributes:
        screens: what the judge read of the 2 B episodes.
        success: bool `[2 B]`, whether they fulfil their instructions.
        logit: float32 `[2 B, T]`, logit of success in the last turn; 0 in all others.
    """

    screens: Episode
    success: Array
    logit: Array


def make_screen_judge(
    values: TurnValues,
    alter: Alter,
    *,
    prune: Callable[[Episode], Episode] | None = None,
    num_steps: int = 1,
    altered: bool = True,
    axis_name: str | None = None,
) -> Estimator:
    """Makes a judge of outcomes that does not see actions, and replaces the rewards of episodes.

    p is the probability of success, fitted by cross-entropy to the outcomes of own episodes, and to successes with
    altered instructions, which count as failures. An episode earns 1 at its end if p > 1/2, else 0.

    Args:
        values: value model, with sigmoid(V) = p and the layout of `ops.exevrm.screens_of`.
        alter: `(key, episode) -> Episode`, with the same screens and instructions that they do not fulfil.
        prune: `(screens) -> screens` with fewer tokens, see `ops.exevrm`; None: reads all.
        num_steps: number of steps of the fit per batch.
        altered: whether to fit altered instructions, which are judged in any case.
        axis_name: mapped device axis to average over.

    Returns:
        The estimator, for `with_estimator` with `num_fitted`. Metrics, before the fit: `judge_accuracy` on own
        episodes, the share of failures judged as successes among own episodes (`judge_false_positives`) and among
        altered instructions (`judge_near_misses`), and `judge_tokens`, the number of observation tokens read per
        episode.

    Raises:
        ValueError: `num_steps` is not positive.

    References:
        Song et al. (2026), "Video-Based Reward Modeling for Computer-Use Agents", arXiv 2603.10178.

    Deviation: the authors' model writes its verdict and, for failures, the seconds in which they depart from the task.
    """
    check_counts(num_steps=num_steps)

    def read(episode: Episode) -> Episode:
        screens = screens_of(episode)
        return screens if prune is None else prune(screens)

    def init(key: Array, params: Params, start: JudgeState | None = None) -> JudgeState:
        return JudgeState(values.init(params, None if start is None else start.values), jax.random.key_data(key))

    def judge(state: JudgeState, episode: Episode) -> tuple[Episode, Judged]:
        others = alter(jax.random.wrap_key_data(state.key), episode)
        screens = jax.tree.map(lambda *both: jnp.concatenate(both), read(episode), read(others))
        logit = values.judge(state.values.params, screens)[0]
        success = jnp.concatenate([episode.success, jnp.zeros_like(others.success)])
        verdict = logit[: episode.success.shape[0]] > 0.0
        return episode.replace(reward=verdict.astype(jnp.float32)), Judged(screens, success, logit)

    def fit(state: JudgeState, key: Array, episode: Episode, judged: Judged) -> JudgeState:
        counted = acting_turns(judged.screens)
        if not altered:
            counted &= is_own(judged)[:, None]

        def step(fitted: TurnValueState, _: None) -> tuple[TurnValueState, None]:
            logit = values.judge(fitted.params, judged.screens)[0]
            slope = cross_entropy(logit, judged.success[:, None], counted, axis_name=axis_name)[1]
            return values.step(fitted, judged.screens, slope, 0.0), None

        fitted, _ = jax.lax.scan(step, state.values, length=num_steps)
        return JudgeState(fitted, jax.random.key_data(key))

    return Estimator(init=init, judge=judge, describe=_describe, fit=fit)


def is_own(judged: Judged) -> Array:
    """Returns bool `[2 B]`, which episodes are own episodes."""
    return jnp.arange(judged.success.size) < judged.success.size // 2


def _describe(episode: Episode, judged: Judged) -> Metrics:
    own, there = is_own(judged), jnp.any(acting_turns(judged.screens), axis=1)
    verdict = jnp.sum(judged.logit, axis=1) > 0.0
    length = jnp.sum(judged.screens.token_mask, axis=(1, 2))

    def mean(values: Array, of: Array) -> Mean:
        total, count = (jnp.sum(one, dtype=jnp.float32) for one in (jnp.where(of & there, values, 0), of & there))
        return Mean(total=total, count=count)

    return {
        "judge_accuracy": mean(verdict == judged.success, own),
        "judge_false_positives": mean(verdict, own & ~judged.success),
        "judge_near_misses": mean(verdict, ~own),
        "judge_tokens": mean(length, own),
    }


def make_agent(
    environment: Environment,
    *,
    alter: Callable[[Environment, LanguagePolicy], Alter],
    estimator_optimizer: Callable[..., optax.GradientTransformation],
    num_fitted: int,
    num_steps: int = 1,
    prune: Callable[[Episode], Episode] | None = None,
    altered: bool = True,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent that a frozen judge of screens rewards, for a text world with one seat.

    Args:
        environment: a text world with one seat.
        alter: see `language.exevrm.make_altered_instructions`.
        estimator_optimizer: `(steps of the fit) -> optax.GradientTransformation`.
        num_fitted: number of first updates, in which the judge learns and the policy does not; then the judge is
            frozen.
        num_steps: see `make_screen_judge`, also for the following arguments.
        prune: see there.
        altered: see there.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: see there.
        **options: further arguments of `learners.policy_gradient.make_agent`; the policy has a value head.
    """
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, **both, **options)
    policy = agent.policy
    asked = alter(environment, policy)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        del collector, num_updates
        layout = policy.layout._replace(context_turns=policy.layout.num_turns)
        values = make_turn_values(policy.model, layout, estimator_optimizer(num_fitted * num_steps), **both)
        judge = make_screen_judge(values, asked, prune=prune, num_steps=num_steps, altered=altered, axis_name=axis_name)
        return with_estimator(learner, judge, num_exploring=num_fitted, num_fitted=num_fitted)

    return wrapper_agent(agent, change)

"""The number of different ways to succeed that a policy knows: evaluation with several samples per task."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from jaxagents.language.collect import own_return
from jaxagents.language.dialogue import make_dialogue
from jaxagents.ops.checks import require_positive
from jaxagents.ops.group_metrics import distinct_successes, pass_at_k
from jaxagents.types import Array, Environment, LanguagePolicy, Params


def make_distinct_evaluator(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    num_samples: int = 16,
    greedy: bool = False,
    level: int | Sequence[int] | None = None,
    held_out: bool = True,
    num_rows: int | None = None,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes the evaluation that counts the different ways in which a policy solves a task.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        num_episodes: number of tasks; each is played `num_samples` times.
        num_samples: number of episodes per task, at least two.
        greedy: must be False.
        level: level of the tasks; a list is cycled through.
        held_out: whether to use tasks that training never sees.
        num_rows: number of episodes that are played at once; None: all of them.

    Returns:
        `(params, key) -> results`, float32 `[num_episodes]` each: `episode_return`, `success` and
        `invalid_action_rate`, means over the samples of a task; `solved`, whether one of them succeeded; and
        `distinct_success`, the number of different ways, see `ops.group_metrics.distinct_successes`.

    Raises:
        ValueError: there are too few samples, or they would all be the same.

    References:
        Kang et al. (2025), "GFlowVLM: Enhancing Multi-step Reasoning in Vision-Language Models with Generative Flow
        Networks" (different correct trajectories among N samples).
    """
    require_positive("num_episodes", num_episodes)
    if num_samples < 2 or greedy:
        raise ValueError(
            f"`num_samples` must be 2 or more samples that differ, got {num_samples} with greedy={greedy}; try "
            "num_samples=16 and greedy=false."
        )
    play = make_dialogue(
        environment,
        policy,
        group_size=num_samples,
        sample_task=environment.text.sample_held_out_task if held_out and environment.text else None,
        level=level,
    )

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        episode = play(params, key, jnp.arange(num_episodes, dtype=jnp.int32), num_rows)
        turns = jnp.maximum(jnp.sum(episode.valid, axis=1, dtype=jnp.float32), 1.0)
        invalid = jnp.sum(episode.valid & ~episode.action_valid, axis=1, dtype=jnp.float32) / turns
        success = episode.success.reshape(num_episodes, num_samples)
        means = {"episode_return": own_return(episode), "invalid_action_rate": invalid}
        history, valid = (leaf.reshape(*success.shape, -1) for leaf in (episode.fingerprint, episode.valid))
        return {name: jnp.mean(value.reshape(success.shape), axis=1) for name, value in means.items()} | {
            "success": jnp.mean(success, axis=1, dtype=jnp.float32),
            "solved": pass_at_k(jnp.sum(success, axis=1), num_samples=num_samples, k=num_samples),
            "distinct_success": distinct_successes(history, valid, success),
        }

    return evaluate

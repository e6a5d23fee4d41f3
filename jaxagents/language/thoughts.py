"""Evaluates the thoughts of a language policy: how many differ, and how many are the expert's."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxagents.environments.text.splits import level_of
from jaxagents.language.collect import own_return
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.relabeling import recorded_words
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Environment, LanguagePolicy, Params


def make_thought_evaluator(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    greedy: bool = True,
    level: int | Sequence[int] | None = None,
    held_out: bool = True,
    num_rows: int | None = None,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes an evaluation on fixed tasks that also considers the first thought of every episode.

    Args:
        environment: unbatched text world, whose expert thinks aloud.
        policy: policy that acts and thinks.
        num_episodes: number of episodes, each on its own task.
        greedy: whether to take the most probable token instead of sampling.
        level: level of the tasks; a list is cycled through.
        held_out: whether to use tasks that training never sees.
        num_rows: number of episodes that are played at once; None: all of them.

    Returns:
        `(params, key) -> results`, float32 `[num_episodes]` each: `episode_return`, `episode_length`, `success`,
        `invalid_action_rate`; `distinct_thoughts`, whose mean is the number of different thoughts per episode (1 if no
        two episodes have the same thought, 1 / num_episodes if all have); and `thought_accuracy`, whether the thought
        is the expert's.

    Raises:
        ValueError: the count is not positive, or there is no room for thoughts, or see `make_dialogue`.

    References:
        Wei et al. (2025), "GTR: Guided Thought Reinforcement Prevents Thought Collapse in RL-based VLM Agent Training",
        section 3 (thought collapse: one thought for all states).
    """
    require_positive("num_episodes", num_episodes)
    if not policy.layout.thought:
        raise ValueError("`policy.thought_tokens` must be positive to look at thoughts, got 0; try 24.")
    play = make_dialogue(environment, policy, sampling=Sampling(greedy=greedy))
    text = environment.text
    sample_task = text.sample_held_out_task if held_out else environment.sample_task

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        index = jnp.arange(num_episodes, dtype=jnp.int32)
        task_key, play_key = jax.random.split(key)
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(task_key, i), 3))(index)
        task = jax.vmap(lambda key, i: sample_task(key, level_of(level, i)))(keys[:, 0], index)
        start = jax.vmap(environment.reset)(keys[:, 1], task)
        episode = play(params, play_key, index, num_rows, task=task, start=start)
        tokens = jnp.where(episode.thought_mask[:, 0], episode.tokens[:, 0], -1)
        thoughts = recorded_words(policy, episode)[1][:, 0]
        right = jax.vmap(text.expert)(keys[:, 2], start[0])[1]
        length = jnp.sum(episode.valid, axis=1, dtype=jnp.float32)
        invalid = jnp.sum(episode.valid & ~episode.action_valid, axis=1)
        return {
            "episode_return": own_return(episode),
            "episode_length": length,
            "success": episode.success.astype(jnp.float32),
            "invalid_action_rate": invalid / jnp.maximum(length, 1.0),
            "distinct_thoughts": share_of_equal(tokens),
            "thought_accuracy": same_words(thoughts, right).astype(jnp.float32),
        }

    return evaluate


def share_of_equal(thought: Array) -> Array:
    """Computes the reciprocal of the number of rows with the same thought; the sum is the number of different thoughts.

    Args:
        thought: int32 `[N, S]`, tokens of each thought at their places, -1 elsewhere.

    Returns:
        float32 `[N]`.
    """
    same = jnp.all(thought[:, None] == thought[None], axis=2)
    return 1.0 / jnp.sum(same, axis=1, dtype=jnp.float32)


def same_words(one: Array, other: Array) -> Array:
    """Compares texts that are padded to different sizes.

    Args:
        one: int32 `[N, H]`, word ids, -1 after the last.
        other: int32 `[N, K]`, word ids, -1 after the last.

    Returns:
        bool `[N]`, whether they are equal.
    """
    size = max(one.shape[1], other.shape[1])
    one, other = (jnp.pad(x, ((0, 0), (0, size - x.shape[1])), constant_values=-1) for x in (one, other))
    return jnp.all(one == other, axis=1)

"""Resample-on-Correct (rStar2-Agent, Shang et al., 2025): keeps the cleanest successes and arbitrary failures."""

import jax.numpy as jnp

from jaxagents.ops.checks import within_groups
from jaxagents.ops.episodes import acting_turns, episode_return, kept_rows
from jaxagents.types import Array, Episode, EpisodeView


@within_groups
def resample_on_correct(
    view: EpisodeView,
    *,
    axis_name: str | None = None,
    num_kept: int = 8,
    min_failures: int = 2,
    min_successes: int = 2,
    errors: str | None = None,
) -> Array:
    """Keeps `num_kept` episodes of every group, with the group's proportions of successes and failures.

    Of the successes, those with the fewest mistakes are kept, `p = errors / calls + unreadable / turns`, where calls
    are the turns before the last one, and the first term is 1/2 without calls; of the failures, which are not ranked,
    the first ones. At least `min_failures` and `min_successes` are kept, if there are that many.

    Args:
        view: view of B episodes; those with a positive return are successes.
        axis_name: not used; groups lie on one device.
        num_kept: number of episodes kept per group, at most its size.
        min_failures: least number of failures that are kept.
        min_successes: least number of successes that are kept; both numbers together are at most `num_kept`.
        errors: name of an entry of `episode.extras`, `[B, T]`, which is positive for turns with an error. None: errors
            are actions that were not understood or not allowed.

    Returns:
        bool `[B]`; groups with at most `num_kept` episodes are kept as they are.

    Raises:
        ValueError: the two minima add up to more than `num_kept`, or there are no such extras.

    References:
        Shang et al. (2025), "rStar2-Agent: Agentic Reasoning Technical Report", section 3.2.

    Deviation: unparsable answers stand for the paper's answers with no or several tags.
    """
    if min_failures + min_successes > num_kept:
        raise ValueError(
            f"`num_kept` must be at least `min_failures` + `min_successes`, got {num_kept} and "
            f"{min_failures} + {min_successes}."
        )
    episode = view.episode
    kept, success = kept_rows(episode), episode_return(episode) > 0.0
    same = (episode.group[:, None] == episode.group[None, :]) & kept[None, :]
    size, right = (jnp.sum(same & chosen[None, :], axis=1) for chosen in (kept, success))
    wrong = size - right
    failures = jnp.round(wrong * num_kept / jnp.maximum(size, 1)).astype(jnp.int32)
    failures = jnp.maximum(failures, jnp.minimum(min_failures, wrong))
    successes = jnp.maximum(num_kept - failures, jnp.minimum(min_successes, right))
    quota = jnp.where(success, successes, num_kept - successes)
    penalty, row = jnp.where(success, _penalty(episode, errors), 0.0), jnp.arange(size.shape[0])
    before = (penalty[None] < penalty[:, None]) | ((penalty[None] == penalty[:, None]) & (row[None] < row[:, None]))
    rank = jnp.sum(same & (success[None] == success[:, None]) & before, axis=1)
    return kept & ((rank < quota) | (size <= num_kept))


def _penalty(episode: Episode, errors: str | None) -> Array:
    """Computes the penalty p of every episode, float32 `[B]`."""
    if errors is not None and errors not in episode.extras:
        there = ", ".join(sorted(episode.extras)) or "none"
        raise ValueError(f"`errors` must be an entry of `episode.extras`, got {errors!r}; there is {there}.")
    acting = acting_turns(episode)
    unreadable = acting & ~episode.action_valid
    turns = jnp.arange(acting.shape[1])[None]
    calls = acting & (turns < jnp.max(jnp.where(acting, turns, -1), axis=1, keepdims=True))
    failed = calls & (unreadable if errors is None else episode.extras[errors] > 0.0)
    num_calls, num_turns = jnp.sum(calls, axis=1), jnp.sum(acting, axis=1)
    share = jnp.where(num_calls > 0, jnp.sum(failed, axis=1) / jnp.maximum(num_calls, 1), 0.5)
    return share + jnp.sum(unreadable, axis=1) / jnp.maximum(num_turns, 1)

"""Training episodes of language policies, and evaluation of language policies."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.text.splits import level_of
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.ops.checks import check_counts, require_between, require_positive
from jaxagents.ops.episodes import acting_seats, seat_returns
from jaxagents.ops.group_metrics import group_metrics, majority_success, pass_at_k
from jaxagents.ops.rows import first_row, rows_of_all_devices, where_rows
from jaxagents.types import (
    Array,
    ChosenTasks,
    Collector,
    Count,
    Environment,
    Episode,
    EpisodeView,
    LanguagePolicy,
    Mean,
    Metrics,
    Params,
    PyTree,
    TaskSource,
)


def make_dialogue_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    num_rows: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    level: int | Sequence[int] | None = None,
    task_source: Callable[..., TaskSource] | None = None,
    max_turns: int | Sequence[int] | None = None,
    dynamic_sampling: Callable[..., Array] | None = None,
    max_rounds: int = 1,
    partner: bool = False,
    parts: Sequence[str] = (),
    axis_name: str | None = None,
) -> Collector:
    """Makes a collector in which the policy plays groups of complete episodes.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of episodes per task.
        num_rows: number of episodes that are played at once, over all devices; a row starts the next episode when its
            own is over. None: all of them at once.
        temperature: divisor of the logits; None: 1.
        top_k: number of tokens to sample among; None: all.
        top_p: probability mass of the most probable tokens, to sample among; None: all.
        min_p: smallest probability of tokens to sample among, as a fraction of the largest one; None: all.
        level: level of the tasks; a list is cycled through.
        task_source: `(*, level, num_levels) -> TaskSource` of the tasks, see `language.tasks`; None: new tasks.
        max_turns: number of turns after which episodes are cut off, at most that of the layout; a list is cycled
            through over the groups; None: that of the layout.
        dynamic_sampling: `(view, *, axis_name) -> keep bool [B]`, the same within a group, such as `ops.group_filters`,
            applied to the world's rewards. Dropped groups, on any device, are replaced by kept ones of further rounds
            with new tasks, as long as rounds are left; any that remain do not count at all (`Episode.keep`).
        max_rounds: largest number of rounds of episodes per batch, including the first one; 1: never resamples.
        partner: whether the policy with other parameters takes all seats but one, see `make_dialogue`; the parameters
            to act with are then a pair, as in `learners.partners`. If false, the policy takes all seats.
        parts: names of values that the world reports after every turn, to keep in `Episode.extras`, see
            `make_dialogue`.
        axis_name: mapped device axis over which the task source counts and groups are replaced.

    Returns:
        The collector; its batches are `Episode`s of `num_groups * group_size` rows. Metrics are those of the first
        round, `task_level` if the source chooses levels, and `rounds` if there can be several; counts are those of all
        rounds, see `count_experience`.

    Raises:
        ValueError: a count is not positive, a share is not between 0 and 1, or see `make_dialogue`.

    References:
        See `truncation.truncate` for `top_k`, `top_p` and `min_p`.
    """
    check_counts(num_groups=num_groups, num_rows=num_rows, max_rounds=max_rounds, top_k=top_k)
    for name, share in (("top_p", top_p), ("min_p", min_p)):
        if share is not None:
            require_between(name, share, 0.0, 1.0)
    if max_rounds > 1 and dynamic_sampling is None:
        raise ValueError(f"`max_rounds` must be 1 without `dynamic_sampling`, got {max_rounds}; give a filter.")
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    play = make_dialogue(
        environment,
        policy,
        group_size=group_size,
        sampling=sampling,
        partner=policy if partner else None,
        bootstrap=True,
        parts=parts,
    )
    source = (task_source or make_uniform)(level=level, num_levels=environment.text.num_levels)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        local_groups = state["group"].shape[0]
        local_rows = None if num_rows is None else max(1, num_rows * local_groups // num_groups)
        task_key, play_key = jax.random.split(key)

        def play_round(number: Array | int) -> tuple[Episode, ChosenTasks]:
            group = state["group"] + number * num_groups
            chosen = source.choose(state["source"], task_key, group)
            task, start, _ = start_tasks(environment, chosen)
            turns = None if max_turns is None else jnp.broadcast_to(level_of(max_turns, group), group.shape)
            return play(params, play_key, group, local_rows, task=task, start=start, max_turns=turns), chosen

        episode, chosen = play_round(0)
        success = jnp.mean(episode.success.reshape(-1, group_size), axis=1, dtype=jnp.float32)
        source_state = source.update(state["source"], chosen, success, axis_name=axis_name)
        metrics = dialogue_metrics(episode) | completion_metrics(policy, episode, axis_name=axis_name)
        metrics |= group_metrics(episode) if group_size > 1 else {}
        counts = count_experience(episode)
        if chosen.level is not None:
            metrics["task_level"] = Mean(
                total=jnp.sum(chosen.level, dtype=jnp.float32), count=jnp.float32(local_groups)
            )
        if max_rounds > 1:
            keep = partial(dynamic_sampling, axis_name=axis_name)  # type: ignore[misc]
            episode, counts, rounds = _fill_groups(
                episode, lambda number: play_round(number)[0], keep, group_size, max_rounds, axis_name
            )
            metrics["rounds"] = rounds.astype(jnp.float32)
        return state | {"source": source_state}, episode, metrics | counts

    collector = make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )
    return collector._replace(tempering={**collector.tempering, **_restricting(sampling.restrictions)})


def _fill_groups(
    episode: Episode,
    more: Callable[[Array], Episode],
    keep: Callable[[EpisodeView], Array],
    group_size: int,
    max_rounds: int,
    axis_name: str | None,
) -> tuple[Episode, dict[str, Count], Array]:
    """Replaces dropped groups by kept ones of further rounds; returns episodes, counts of experience, and rounds."""
    num_groups = episode.success.shape[0] // group_size
    own = first_row(num_groups, axis_name) + jnp.arange(num_groups)

    def kept_groups(episode: Episode) -> Array:
        """Returns whether the groups of all devices are kept, bool."""
        kept = keep(EpisodeView(episode=episode)).reshape(-1, group_size)[:, 0]
        return rows_of_all_devices(kept, axis_name)

    def unfilled(loop: tuple[Episode, dict[str, Count], Array, Array]) -> Array:
        *_, rounds, kept = loop
        return (rounds < max_rounds) & ~jnp.all(kept)

    def fill(loop: tuple[Episode, dict[str, Count], Array, Array]) -> tuple[Episode, dict[str, Count], Array, Array]:
        episode, counts, rounds, kept = loop
        fresh = more(rounds)
        counts, good = jax.tree.map(jnp.add, counts, count_experience(fresh)), kept_groups(fresh)
        # The r-th empty place takes the r-th kept group, if there are that many.
        place = (jnp.cumsum(~kept) - ~kept)[own]
        source = jnp.argsort(~good, stable=True)[place]
        replaced = jnp.repeat(~kept[own] & (place < jnp.sum(good)), group_size)
        row = (source[:, None] * group_size + jnp.arange(group_size)[None]).reshape(-1)
        offered = rows_of_all_devices(fresh, axis_name)
        episode = jax.tree.map(lambda old, new: where_rows(replaced, new[row], old), episode, offered)
        return episode, counts, rounds + 1, kept_groups(episode)

    start = (episode, count_experience(episode), jnp.int32(1), kept_groups(episode))
    episode, counts, rounds, _ = jax.lax.while_loop(unfilled, fill, start)
    return episode.replace(keep=keep(EpisodeView(episode=episode))), counts, rounds


def _restricting(restrictions: Mapping[str, float]) -> dict[str, float]:
    """Returns the restrictions by which the sampling distribution differs from the policy."""
    idle = {"top_p": 1.0, "min_p": 0.0}
    return {name: value for name, value in restrictions.items() if value != idle.get(name)}


def count_experience(*episodes: Episode) -> dict[str, Count]:
    """Counts what was played: episodes, turns of all seats, sampled tokens, and world steps, one per turn."""
    turns = sum(jnp.sum(episode.valid, dtype=jnp.int32) for episode in episodes)  # type: Any
    return {
        "episodes": Count(jnp.int32(sum(episode.valid.shape[0] for episode in episodes))),
        "turns": Count(turns),
        "tokens": Count(sum(jnp.sum(episode.action_mask, dtype=jnp.int32) for episode in episodes)),  # type: ignore[arg-type]
        "env_steps": Count(turns),
    }


def dialogue_metrics(episode: Episode) -> dict[str, Any]:
    """Computes exact means over the episodes and turns of a batch; in games, returns are of the policy's seats."""
    acted = acting_seats(episode)
    valid = episode.valid.astype(jnp.float32)
    num_episodes = jnp.float32(episode.success.shape[0])
    num_turns = jnp.sum(valid)
    sampled = jnp.sum(episode.action_mask, dtype=jnp.float32)
    thoughts = jnp.sum(episode.thought_mask, dtype=jnp.float32)
    metrics = {
        "episode_return": Mean(
            total=jnp.sum(jnp.where(acted, seat_returns(episode), 0.0)), count=jnp.sum(acted, dtype=jnp.float32)
        ),
        "episode_length": Mean(total=num_turns, count=num_episodes),
        "success_rate": Mean(total=jnp.sum(episode.success, dtype=jnp.float32), count=num_episodes),
        "invalid_action_rate": Mean(total=jnp.sum(valid * ~episode.action_valid), count=num_turns),
        "tokens_per_turn": Mean(total=sampled, count=num_turns),
    }
    if episode.seat_return is not None:
        totals = jnp.sum(episode.seat_return, axis=0)
        metrics |= {f"return_player_{p}": Mean(total=total, count=num_episodes) for p, total in enumerate(totals)}
    if episode.layout is not None and episode.layout.thought:
        metrics["thought_tokens_per_turn"] = Mean(total=thoughts, count=num_turns)
    return metrics


def completion_metrics(
    policy: LanguagePolicy, episode: Episode, *, axis_name: str | None = None
) -> dict[str, Array | Mean]:
    """Computes the fraction of turns without an end, and the sampled tokens of the shortest and the longest turn.

    Args:
        policy: policy whose tokenizer defines the end tokens.
        episode: B episodes of T turns.
        axis_name: mapped axis over which the episodes are spread.
    """
    length = jnp.sum(episode.action_mask, axis=2)
    spoken = episode.valid & (length > 0)
    ended = jnp.any(episode.action_mask & policy.tokenizer.is_end(episode.tokens), axis=2)
    cut, turns = (jnp.sum(turn, dtype=jnp.float32) for turn in (spoken & ~ended, spoken))
    shortest, longest = jnp.min(length, initial=length.max(), where=spoken), jnp.max(length, initial=0, where=spoken)
    if axis_name is not None:
        shortest, longest = jax.lax.pmin(shortest, axis_name), jax.lax.pmax(longest, axis_name)
    extremes = {"shortest_turn": shortest.astype(jnp.float32), "longest_turn": longest.astype(jnp.float32)}
    return {"cut_turn_rate": Mean(total=cut, count=turns), **extremes}


def own_return(episode: Episode) -> Array:
    """Computes the policy's return in every episode, `[B]`: in games, the mean over the seats that it took."""
    acted = acting_seats(episode)
    total = jnp.sum(jnp.where(acted, seat_returns(episode), 0.0), axis=1)
    return total / jnp.maximum(jnp.sum(acted, axis=1, dtype=jnp.float32), 1.0)


def make_dialogue_evaluator(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    greedy: bool = True,
    level: int | Sequence[int] | None = None,
    held_out: bool = True,
    num_rows: int | None = None,
    turn_rewards: bool = False,
    num_samples: int = 1,
    pass_at: Sequence[int] = (),
    parts: Sequence[str] = (),
    pay: Callable[[LanguagePolicy, Episode], Episode] | None = None,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes the evaluation of a language policy on fixed tasks.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        num_episodes: number of tasks; each is played once, or `num_samples` times.
        greedy: whether to take the most probable token instead of sampling.
        level: level of the tasks; a list is cycled through.
        held_out: whether to use tasks that training never sees.
        num_rows: number of episodes that are played at once; None: all of them.
        turn_rewards: whether to also compare the rewards of the first and last turn, see `first_and_last`.
        num_samples: n, number of episodes per task.
        pass_at: numbers k of samples, at most n, at least one of which must succeed, see `ops.group_metrics.pass_at_k`.
        parts: names of values that the world reports, as they are after the last turn.
        pay: replaces the world's rewards of episodes, see `host_rewards.pay_on_host`.

    Returns:
        `(params, key) -> results`, float32 `[num_episodes]` each, means over the samples of a task: `episode_return`,
        `episode_length`, `success`, `invalid_action_rate`, and with `pay` the `world_return`. With several samples,
        also `pass_at_<k>`, and `majority_success`, for the most frequent last action of the samples (in worlds that ask
        a question).

    Raises:
        ValueError: a count is not positive, several samples would all be the same, a k in `pass_at` is out of range, or
            see `make_dialogue`.
    """
    require_positive("num_episodes", num_episodes)
    require_positive("num_samples", num_samples)
    if num_samples > 1 and greedy:
        raise ValueError(f"`greedy` must be false for {num_samples} different samples of a task; try num_samples=1.")
    if any(k > num_samples for k in pass_at):
        raise ValueError(f"`pass_at` must be at most `num_samples`, got {list(pass_at)} and {num_samples}.")
    play = make_dialogue(
        environment,
        policy,
        group_size=num_samples,
        sampling=Sampling(greedy=greedy),
        sample_task=environment.text.sample_held_out_task if held_out and environment.text else None,
        level=level,
        parts=parts,
    )

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        played = play(params, key, jnp.arange(num_episodes, dtype=jnp.int32), num_rows)
        episode = played if pay is None else pay(policy, played)
        valid = episode.valid.astype(jnp.float32)
        length = jnp.sum(valid, axis=1)
        results = {} if pay is None else {"world_return": own_return(played)}
        results |= {
            "episode_return": own_return(episode),
            "episode_length": length,
            "success": episode.success.astype(jnp.float32),
            "invalid_action_rate": jnp.sum(valid * ~episode.action_valid, axis=1) / jnp.maximum(length, 1.0),
        }
        results |= first_and_last(episode) if turn_rewards else {}
        last = jnp.maximum(length.astype(jnp.int32) - 1, 0)[:, None]
        results |= {name: jnp.take_along_axis(episode.extras[name], last, axis=1)[:, 0] for name in parts}
        results = {name: jnp.mean(value.reshape(-1, num_samples), axis=1) for name, value in results.items()}
        return results | _of_samples(episode, num_samples, pass_at) if num_samples > 1 else results

    return evaluate


def _of_samples(episode: Episode, num_samples: int, pass_at: Sequence[int]) -> dict[str, Array]:
    """Computes the joint results of the samples of every task, float32 `[n]` each."""
    success = episode.success.reshape(-1, num_samples)
    row, last = jnp.arange(episode.success.shape[0]), jnp.maximum(jnp.sum(episode.valid, axis=1) - 1, 0)
    spoken = episode.action_mask & ~episode.thought_mask
    answer = jnp.where(spoken, episode.tokens, -1)[row, last, -episode.layout.action :]
    votes = (episode.valid & episode.action_valid)[row, last]
    num_correct = jnp.sum(success, axis=1)
    results = {f"pass_at_{k}": pass_at_k(num_correct, num_samples=num_samples, k=k) for k in pass_at}
    results["majority_success"] = majority_success(
        answer.reshape(-1, num_samples, answer.shape[1]), votes.reshape(-1, num_samples), success
    )
    return results


def first_and_last(episode: Episode) -> dict[str, Array]:
    """Compares the rewards of the first and the last turn, for attempts at the same problem.

    Args:
        episode: B episodes.

    Returns:
        Float32 `[B]` each: `first_turn_reward`, `last_turn_reward`, `turn_gain` (last minus first), and whether the
        last reward was larger (`improved`) or smaller (`worsened`).
    """
    last = jnp.maximum(jnp.sum(episode.valid, axis=1) - 1, 0)
    first, last = episode.reward[:, 0], jnp.take_along_axis(episode.reward, last[:, None], axis=1)[:, 0]
    return {
        "first_turn_reward": first,
        "last_turn_reward": last,
        "turn_gain": last - first,
        "improved": (last > first).astype(jnp.float32),
        "worsened": (last < first).astype(jnp.float32),
    }

"""Where episodes of language policies come from in training, and how they are judged."""

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
    """Makes a collector in which the policy plays groups of whole episodes.

    Args:
        environment: a text world, single instance.
        policy: acts.
        num_groups: tasks per batch, over all devices.
        group_size: episodes per task.
        num_rows: episodes that are played at once, over all devices; a row takes the next episode when its own is over.
            None plays all of them at once.
        temperature: divides the logits; None is 1.
        top_k: samples among so many tokens; None among all.
        top_p: samples among the most probable tokens of this mass; None among all.
        min_p: samples among tokens at least so probable, as a share of the most probable one's; None among all.
        level: of the tasks; a list is gone through in turn.
        task_source: `(*, level, num_levels) -> TaskSource` of the tasks, see `language.tasks`; None for fresh ones.
        max_turns: turns after which episodes are cut, at most those of the layout; a list is gone through in turn from
            group to group; None for those of the layout.
        dynamic_sampling: `(view, *, axis_name) -> keep bool [B]`, the same within a group, as of `ops.group_filters`,
            by the rewards of the world. Groups that it drops, on any device, are replaced by kept ones of further
            rounds of fresh tasks, while rounds are left; those left over then count nowhere (`Episode.keep`).
        max_rounds: of episodes per batch, the first one included; 1 never resamples.
        partner: the policy with other parameters takes all seats but one, see `make_dialogue`; the parameters to act
            with are then a pair, as of `learners.partners`. Without it, the policy takes all seats.
        parts: of what the world reports after every turn, by name, kept in `Episode.extras`, see `make_dialogue`.
        axis_name: mapped device axis over which the task source counts and groups are replaced.

    Returns:
        The collector; its batches are `Episode`s of `num_groups * group_size` rows. Metrics are those of the first
        round, `task_level` where the source chooses levels, and `rounds` where there may be several; counts are those
        of all rounds, see `count_experience`.

    Raises:
        ValueError: a count is not positive, a share is not from 0 to 1, or see `make_dialogue`.

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
    """Replaces dropped groups by kept ones of further rounds; returns episodes, what was played, number of rounds."""
    num_groups = episode.success.shape[0] // group_size
    own = first_row(num_groups, axis_name) + jnp.arange(num_groups)

    def kept_groups(episode: Episode) -> Array:
        """Returns bool of the groups of all devices."""
        kept = keep(EpisodeView(episode=episode)).reshape(-1, group_size)[:, 0]
        return rows_of_all_devices(kept, axis_name)

    def unfilled(loop: tuple[Episode, dict[str, Count], Array, Array]) -> Array:
        *_, rounds, kept = loop
        return (rounds < max_rounds) & ~jnp.all(kept)

    def fill(loop: tuple[Episode, dict[str, Count], Array, Array]) -> tuple[Episode, dict[str, Count], Array, Array]:
        episode, counts, rounds, kept = loop
        fresh = more(rounds)
        counts, good = jax.tree.map(jnp.add, counts, count_experience(fresh)), kept_groups(fresh)
        # The r-th empty place takes the r-th kept group, if there are so many.
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
    """Returns the restrictions by which samples are not drawn from the policy itself."""
    idle = {"top_p": 1.0, "min_p": 0.0}
    return {name: value for name, value in restrictions.items() if value != idle.get(name)}


def count_experience(*episodes: Episode) -> dict[str, Count]:
    """Counts what was played: episodes, turns of all seats, sampled tokens, and steps of the world, one per turn."""
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
    """Computes the share of turns without an end, and the sampled tokens of the shortest and the longest turn.

    Args:
        policy: whose tokenizer knows the ends.
        episode: B episodes of T turns.
        axis_name: mapped axis over whose members the episodes are spread.
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
    """Computes the return of the policy in every episode, `[B]`: in games the mean over the seats that it took."""
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
        environment: a text world, single instance.
        policy: acts.
        num_episodes: tasks; each is played once, or `num_samples` times.
        greedy: takes the most probable token; False samples.
        level: of the tasks; a list is gone through in turn.
        held_out: takes tasks that training never sees.
        num_rows: episodes that are played at once; None plays all of them at once.
        turn_rewards: also compares the rewards of the first and the last turn, see `first_and_last`.
        num_samples: n, episodes of every task.
        pass_at: numbers k of samples, at most n, of which one has to succeed, see `ops.group_metrics.pass_at_k`.
        parts: of what the world reports, by name, as they are after the last turn.
        pay: gives episodes other rewards than the world's, see `host_rewards.pay_on_host`.

    Returns:
        `(params, key) -> results`, float32 `[num_episodes]` each, means over the samples of a task: `episode_return`,
        `episode_length`, `success`, `invalid_action_rate`, and with `pay` the `world_return`. With several samples also
        `pass_at_<k>`, and `majority_success`, of the action that most samples ended with (where worlds ask a question).

    Raises:
        ValueError: a count is not positive, samples that are all the same, a k of `pass_at` out of range (when traced),
            or see `make_dialogue`.
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
    """Computes what the samples of every task say together, float32 `[n]` each."""
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
    """Compares the rewards of the first and the last turn, of attempts at the same problem.

    Args:
        episode: B episodes.

    Returns:
        Float32 `[B]` each: `first_turn_reward`, `last_turn_reward`, `turn_gain` (last minus first), and whether the
        last was more (`improved`) or less (`worsened`).
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

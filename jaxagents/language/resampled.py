"""UI-AGILE (Lian et al., 2025): groups that fail completely play easier variants of their task, to learn from them."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.text.splits import level_of
from jaxagents.language.collect import count_experience, make_dialogue_collector
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.ops.checks import require_positive
from jaxagents.ops.episodes import episode_return
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, Collector, Count, Environment, Episode, LanguagePolicy, Mean, Metrics, Params, PyTree


def make_resampled_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    num_tries: int = 4,
    num_again: int | None = None,
    above: float = 0.0,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector that replays failed groups, on tasks that become easier with every try.

    A group has failed if none of its episodes has a return above `above`. The new group replaces the previous one, and
    is used for learning whether or not it failed again.

    Args:
        environment: text world of one player that has easier tasks (`World.easier`).
        policy: policy that acts.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of episodes per task.
        num_tries: largest number of tries per task, including the first one.
        num_again: largest number of groups of a batch that are replayed at once, the first failed ones; None: a
            quarter.
        above: return that at least one episode must exceed.
        axis_name: see `collect.make_dialogue_collector`.
        **options: further arguments of that function, except `parts`.

    Returns:
        The collector; all episodes that are played count. Metrics are those of the first tries, and the fractions of
        groups that failed in the first try (`failed_groups`) and in the last one (`failed_groups_left`).

    Raises:
        ValueError: the world has no easier tasks or several players, or a count is not positive.
    """
    rules = None if environment.text is None else environment.text.rules
    if rules is None or rules.easier is None or environment.num_players > 1:
        raise ValueError(
            f"`environment` must be a text world of one seat with easier tasks, got {environment.name!r}; try "
            "environment=screen."
        )
    require_positive("num_tries", num_tries)
    inner = make_dialogue_collector(
        environment, policy, num_groups=num_groups, group_size=group_size, axis_name=axis_name, **options
    )
    max_turns = options.get("max_turns")
    sampling = Sampling(**{name: options.get(name) for name in ("temperature", "top_k", "top_p", "min_p")})
    play = make_dialogue(environment, policy, group_size=group_size, sampling=sampling, bootstrap=True)

    def failed_groups(episode: Episode) -> Array:
        return ~jnp.any((episode_return(episode) > above).reshape(-1, group_size), axis=1)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        group, first = episode.group[::group_size], failed_groups(episode)
        task = jax.tree.map(lambda leaf: leaf[::group_size], episode.task)
        num_slots = min(num_again or max(1, num_groups // 4), group.shape[0])

        def try_again(loop: tuple[Array, Episode, Array, dict[str, Count]]):
            number, episode, tries, counts = loop
            failed = failed_groups(episode)
            chosen = jnp.argsort(~failed, stable=True)[:num_slots]
            tries = tries.at[chosen].add(failed[chosen].astype(jnp.int32))
            easier = jax.vmap(rules.easier)(jax.tree.map(lambda leaf: leaf[chosen], task), tries[chosen])
            reset_key, play_key = jax.random.split(jax.random.fold_in(key, number))
            keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(reset_key, group[chosen])
            start = jax.vmap(environment.reset)(keys, easier)
            turns = None if max_turns is None else jnp.broadcast_to(level_of(max_turns, group[chosen]), chosen.shape)
            fresh = play(params, play_key, group[chosen], task=easier, start=start, max_turns=turns)
            rows, index = (jnp.repeat(one, group_size) for one in (failed[chosen], chosen))
            index = index * group_size + jnp.tile(jnp.arange(group_size), num_slots)
            episode = jax.tree.map(
                lambda leaf, new: leaf.at[index].set(where_rows(rows, new, leaf[index])), episode, fresh
            )
            # Places without a failed group are played in vain, and their episodes are dropped.
            played = fresh.replace(
                valid=fresh.valid & rows[:, None], action_mask=fresh.action_mask & rows[:, None, None]
            )
            more = count_experience(played) | {"episodes": Count(jnp.sum(rows, dtype=jnp.int32))}
            return number + 1, episode, tries, jax.tree.map(jnp.add, counts, more)

        loop = (jnp.int32(1), episode, jnp.zeros_like(group), count_experience(episode))

        def may_try(loop: tuple[Array, Episode, Array, dict[str, Count]]) -> Array:
            return (loop[0] < num_tries) & jnp.any(failed_groups(loop[1]))

        _, episode, _, counts = jax.lax.while_loop(may_try, try_again, loop)
        failures = {"failed_groups": first, "failed_groups_left": failed_groups(episode)}
        shares = {
            name: Mean(total=jnp.sum(one, dtype=jnp.float32), count=jnp.float32(len(one)))
            for name, one in failures.items()
        }
        return state, episode, {**metrics, **shares, **counts}

    return inner._replace(collect=collect)

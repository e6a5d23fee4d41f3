"""Relabels recorded episodes for other tasks (hindsight)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.language.scripts import play_script
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, State, Task, TimeStep


def recorded_words(policy: LanguagePolicy, episode: Episode) -> tuple[Array, Array | None]:
    """Extracts the actions and thoughts of every turn.

    Args:
        policy: policy whose tokens and layout the episodes have.
        episode: B episodes of T turns.

    Returns:
        Actions int32 `[B, T, M]`, with M the number of tokens for actions, all -1 if none can be parsed; and thoughts
        `[B, T, H]`, None if the layout has no room for them.
    """
    layout, marks = policy.layout, policy.tokenizer.marks

    def read(tokens: Array, mask: Array) -> Array:
        ids, parsed = policy.lexicon.parse(tokens, mask & (tokens != marks["act"]), tokens.shape[0])
        return jnp.where(parsed, ids, -1)

    read_all = jax.vmap(jax.vmap(read))
    start = layout.turn - layout.action
    actions = read_all(episode.tokens[..., start:], episode.token_mask[..., start:])
    if not layout.thought:
        return actions, None
    first = start - 1 - layout.thought  # There is a mark between them.
    thoughts = read_all(episode.tokens[..., first : start - 1], episode.thought_mask[..., first : start - 1])
    return actions, thoughts


def make_relabeling(environment: Environment, policy: LanguagePolicy) -> Callable[..., Episode]:
    """Makes the function that replays recorded actions, on another task or with other observations.

    It is used for hindsight: another task that the same actions solve, such as the one whose goal they reached. Actions
    and thoughts count as sampled, with a behaviour log-probability of zero, like those of demonstrations. In worlds
    with chance, the replayed episode can diverge.

    Args:
        environment: unbatched text world of one player.
        policy: policy whose tokens and layout the episodes have.

    Returns:
        `(key, episode, task=None) -> Episode`, on tasks with leaves `[B, ...]`, by default those of the episode.

    Raises:
        ValueError: the environment is not a text world of one player.

    References:
        Andrychowicz et al. (2017), "Hindsight Experience Replay".
    """
    if environment.text is None or environment.num_players > 1:
        raise ValueError(f"`environment` must be a text world of one seat, got {environment.name!r}.")

    def relabel(key: Array, episode: Episode, task: Task | None = None) -> Episode:
        task = episode.task if task is None else task
        reset_keys, keys = jax.random.split(key, (2, episode.group.shape[0]))
        actions, thoughts = recorded_words(policy, episode)
        ended = episode.action_mask & policy.tokenizer.is_end(episode.tokens) & ~episode.thought_mask
        actions = jnp.where(jnp.any(ended, axis=2, keepdims=True), actions, -1)  # What ran out of room is no action.
        actions = _fit(actions, environment.action_space.shape[0])

        def choose(keys: Array, state: State, timestep: TimeStep, turn: Array) -> tuple[Array, Array | None, Array]:
            del keys, state, timestep
            last = actions.shape[1] - 1
            there = episode.valid[:, jnp.minimum(turn, last)] & (turn <= last)
            at = jnp.minimum(turn, last)
            return actions[:, at], None if thoughts is None else thoughts[:, at], there

        return play_script(
            environment,
            policy,
            choose,
            keys=keys,
            task=task,
            start=jax.vmap(environment.reset)(reset_keys, task),
            group=episode.group,
        )

    return relabel


def _fit(words: Array, size: int) -> Array:
    """Returns words, the last axis, with room for `size`; all -1 if there are more."""
    missing = max(size - words.shape[-1], 0)
    words = jnp.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, missing)], constant_values=-1)
    too_long = jnp.any(words[..., size:] >= 0, axis=-1, keepdims=True)
    return jnp.where(too_long, -1, words[..., :size])

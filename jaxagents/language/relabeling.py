"""Relabels recorded episodes: in other words, with another tokenizer, or for another task (hindsight)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.language.scripts import play_script
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, State, Task, TimeStep

Translate = Callable[[Array, Task, Task], Array]
"""`(word ids int32 [M] in the words that they are told in, old task, new task) -> word ids [M]`."""


def recorded_words(policy: LanguagePolicy, episode: Episode) -> tuple[Array, Array | None]:
    """Reads what was said and thought in every turn.

    Args:
        policy: whose tokens and layout the episodes have.
        episode: B episodes of T turns.

    Returns:
        Actions int32 `[B, T, M]`, M the room for tokens of actions, all -1 where none can be read; and thoughts
        `[B, T, H]`, None where the layout has no room for them.
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
    first = start - 1 - layout.thought  # A mark stands between them.
    thoughts = read_all(episode.tokens[..., first : start - 1], episode.thought_mask[..., first : start - 1])
    return actions, thoughts


def make_relabeling(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    source: LanguagePolicy | None = None,
    translate: Translate | None = None,
) -> Callable[..., Episode]:
    """Makes the function that plays recorded actions again and writes down what the world says now.

    It serves three ends: the same task told in other words or observations (`translate` says the actions in them), the
    same words in other tokens, and another task that the same actions solve, such as the one whose goal they reached.
    Actions and thoughts count as sampled, with a behaviour log-probability of zero, as those of demonstrations.

    Worlds in which chance has a part go another way. An action that the new world does not know is an invalid one.

    Args:
        environment: a text world of one seat, single instance.
        policy: whose tokens and layout the new episodes have; thoughts are told where both layouts have room.
        source: whose the recorded ones have; None for `policy`.
        translate: changes actions and thoughts; None leaves them as they are.

    Returns:
        `(key, episode, task=None) -> Episode`, of the tasks with leaves `[B, ...]`, by default those of the episode.

    Raises:
        ValueError: not a text world of one seat.

    References:
        Andrychowicz et al. (2017), "Hindsight Experience Replay".
    """
    if environment.text is None or environment.num_players > 1:
        raise ValueError(f"`environment` must be a text world of one seat, got {environment.name!r}.")
    source = policy if source is None else source
    table = _word_table(source.lexicon.words, policy.lexicon.words)

    def tell(words: Array | None, size: int, old: Task, new: Task) -> Array | None:
        if words is None:
            return None
        words = _fit(jnp.where(words >= 0, jnp.asarray(table)[words], -1), size)
        if translate is None:
            return words
        of_turns = jax.vmap(translate, in_axes=(0, None, None))
        return jax.vmap(of_turns)(words, old, new)

    def retell(key: Array, episode: Episode, task: Task | None = None) -> Episode:
        task = episode.task if task is None else task
        reset_keys, keys = jax.random.split(key, (2, episode.group.shape[0]))
        actions, thoughts = recorded_words(source, episode)
        ended = episode.action_mask & source.tokenizer.is_end(episode.tokens) & ~episode.thought_mask
        actions = jnp.where(jnp.any(ended, axis=2, keepdims=True), actions, -1)  # What ran out of room was no action.
        actions = tell(actions, environment.action_space.shape[0], episode.task, task)
        thoughts = tell(thoughts if policy.layout.thought else None, policy.layout.thought, episode.task, task)

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

    return retell


def _word_table(old: Sequence[str], new: Sequence[str]) -> np.ndarray:
    """Returns the ids of words in another table, -1 for those that it does not have."""
    place = {word: number for number, word in enumerate(new)}
    return np.asarray([place.get(word, -1) for word in old], np.int32)


def _fit(words: Array, size: int) -> Array:
    """Returns words, the last axis, with room for `size`; all -1 where there are more."""
    missing = max(size - words.shape[-1], 0)
    words = jnp.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, missing)], constant_values=-1)
    too_long = jnp.any(words[..., size:] >= 0, axis=-1, keepdims=True)
    return jnp.where(too_long, -1, words[..., :size])

"""Transcripts of given actions with an expert's reasons, in which some turns are read but not learned."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.words import NOTHING_HAPPENS, compact
from jaxagents.language.scripts import play_script
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, State, Task, TimeStep


def make_transcriber(environment: Environment, policy: LanguagePolicy, *, num_aside: int = 0) -> Callable[..., Episode]:
    """Makes the function that writes down given actions, each preceded by the expert's thought in its state.

    If the layout has no room for thoughts, or the expert does not think aloud, there are only actions.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy whose tokens and layout the episodes have.
        num_aside: largest number of tokens of the text that precedes the expert's thought.

    Returns:
        `(task, start, group, actions int32 [N, T, M], live bool [N, T], *, thoughts=None, aside=None, own=None,
        ignored=None) -> Episode`. `thoughts`, int32 `[N, T, H]`, are the expert's thoughts when it chose; None: asks it
        again, which can give other thoughts if it chooses at random. `aside`, int32 `[N, T, K]`, are words that are
        thought first, -1 for none; `own`, int32 `[N, T, H]` and bool `[N, T]`, are thoughts that replace the expert's
        in some turns; turns that are `ignored`, bool `[N, T]`, have no thought and a `loss_weight` of 0. Everything
        else counts as sampled, with a behaviour log-probability of zero.

    Raises:
        ValueError: there is not enough room for thoughts.
    """
    thinks = policy.layout.thought > 0 and bool(environment.text.patterns and environment.text.patterns.thought)
    if thinks:
        longest = max(map(policy.lexicon.max_tokens, environment.text.patterns.thought))
        needed = longest + num_aside + 1  # Plus the mark that ends a thought.
        if policy.layout.thought < needed:
            raise ValueError(
                f"`policy.thought_tokens` must hold the longest thought and {num_aside} tokens before it, {needed} in "
                f"{environment.name!r}, got {policy.layout.thought}; try {needed}, or 0 for no thoughts."
            )

    def transcribe(
        task: Task,
        start: tuple[State, TimeStep],
        group: Array,
        actions: Array,
        live: Array,
        *,
        thoughts: Array | None = None,
        aside: Array | None = None,
        own: tuple[Array, Array] | None = None,
        ignored: Array | None = None,
    ) -> Episode:
        last = actions.shape[1] - 1

        def choose(keys: Array, state: State, timestep: TimeStep, turn: Array) -> tuple[Array, Array | None, Array]:
            del timestep
            at = jnp.minimum(turn, last)
            speaks = live[:, at] & (turn <= last)
            if not thinks:
                return actions[:, at], None, speaks
            thought = jax.vmap(environment.text.expert)(keys, state)[1] if thoughts is None else thoughts[:, at]
            if aside is not None:
                thought = jax.vmap(compact)(jnp.concatenate([aside[:, at], thought], axis=1))
            if own is not None:
                words, is_own = own[0][:, at], own[1][:, at]
                thought, words = (_fit(one, max(thought.shape[1], words.shape[1])) for one in (thought, words))
                thought = where_rows(is_own, words, thought)
            if ignored is not None:
                thought = jnp.where(ignored[:, at][:, None], -1, thought)
            return actions[:, at], thought, speaks

        keys = jax.random.split(jax.random.key(0), group.shape[0])  # Unused by the world: there is no chance.
        episode = play_script(environment, policy, choose, keys=keys, task=task, start=start, group=group)
        if ignored is None:
            return episode
        learned = jnp.pad(~ignored, ((0, 0), (0, max(0, policy.layout.num_turns - ignored.shape[1]))))
        weight = jnp.broadcast_to(learned[:, : policy.layout.num_turns, None], episode.tokens.shape)
        return episode.replace(loss_weight=weight.astype(jnp.float32))

    return transcribe


def _fit(words: Array, size: int) -> Array:
    return jnp.pad(words, ((0, 0), (0, size - words.shape[1])), constant_values=-1)


def reflection(environment: Environment) -> np.ndarray:
    """Returns the words of a reflection on a mistake, int32 `[1]`: every world's response to an ineffective action."""
    if NOTHING_HAPPENS[0] not in environment.text.words:
        raise ValueError(f"`environment` must say {NOTHING_HAPPENS[0]!r} to be reflected on, got {environment.name!r}.")
    return np.asarray([environment.text.words.index(NOTHING_HAPPENS[0])], np.int32)


def reflection_tokens(environment: Environment, policy: LanguagePolicy) -> int:
    """Returns the number of tokens of a reflection."""
    return policy.lexicon.max_tokens((reflection(environment)[None],))


def reflect_after(environment: Environment, mistaken: Array) -> Array:
    """Returns the words that are thought in every turn after a mistake, int32 `[N, T, 1]`.

    Args:
        environment: text world.
        mistaken: bool `[N, T]`, turns that are mistakes.
    """
    after = jnp.pad(mistaken[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(after[..., None], jnp.asarray(reflection(environment)), -1)

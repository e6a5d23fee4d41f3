"""GTR (Wei et al., 2025): own episodes in which an expert thinks before the policy acts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.scripts import play_script
from jaxagents.types import (
    Array,
    Collector,
    Demonstrated,
    Environment,
    Episode,
    LanguagePolicy,
    Metrics,
    Params,
    PyTree,
    State,
    TimeStep,
)


def make_correction(environment: Environment, policy: LanguagePolicy) -> Callable[[Array, Episode], Episode]:
    """Makes the function that tells recorded episodes again with the thoughts of the world's expert.

    Every recorded action is taken again, and before it stands what the expert thinks in the state that it was taken in:
    labels of visited states, as in DAgger, whether the policy's own thought was the same or not.

    Worlds in which chance has a part go another way than the recorded episode did.

    Args:
        environment: a text world of one seat, single instance, whose expert thinks aloud.
        policy: whose tokens and layout the episodes have, with room for thoughts.

    Returns:
        `(key, episode) -> Episode` of as many rows; thoughts and actions count as sampled, with a behaviour
        log-probability of zero, as those of demonstrations.

    Raises:
        ValueError: not a text world of one seat, no room for thoughts, or (when traced) an expert that does not think
            aloud.

    References:
        Ross et al. (2011), "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning"
        (DAgger); Wei et al. (2025), "GTR: Guided Thought Reinforcement Prevents Thought Collapse in RL-based VLM Agent
        Training", section 4.
    """
    if environment.text is None or environment.num_players > 1:
        raise ValueError(f"`environment` must be a text world of one seat, got {environment.name!r}.")
    if not policy.layout.thought:
        raise ValueError("`policy.thought_tokens` must be positive to correct thoughts, got 0; try 24.")
    text = environment.text

    def correct(key: Array, episode: Episode) -> Episode:
        reset_keys, keys = jax.random.split(key, (2, episode.group.shape[0]))
        ended = jnp.any(episode.action_mask & policy.tokenizer.is_end(episode.tokens) & ~episode.thought_mask, axis=2)
        actions = recorded_words(policy, episode)[0][..., : environment.action_space.shape[0]]
        actions = jnp.where(ended[..., None], actions, -1)  # What ran out of room was no action.
        last = actions.shape[1] - 1

        def choose(keys: Array, state: State, timestep: TimeStep, turn: Array) -> tuple[Array, Array, Array]:
            del timestep
            _, thought = jax.vmap(text.expert)(keys, state)
            if thought is None:
                raise ValueError(f"`environment` must have an expert that thinks aloud, got {environment.name!r}.")
            at = jnp.minimum(turn, last)
            return actions[:, at], thought, episode.valid[:, at] & (turn <= last)

        return play_script(
            environment,
            policy,
            choose,
            keys=keys,
            task=episode.task,
            start=jax.vmap(environment.reset)(reset_keys, episode.task),
            group=episode.group,
        )

    return correct


def make_corrected_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    group_size: int,
    axis_name: str | None = None,
    **options: Any,
) -> Collector:
    """Makes a collector of dialogues with the expert's thoughts in the states that they went through.

    Args:
        environment: see `make_correction`.
        policy: acts, and thinks.
        group_size: episodes per task, of which the first one is corrected.
        axis_name: see `collect.make_dialogue_collector`.
        **options: further ones of it.

    Returns:
        The collector; its batches are `Demonstrated`, whose demonstrations are corrected own episodes, one per group.
        Steps, metrics and counts are those of the own episodes.

    Raises:
        ValueError: see `make_correction` and `make_dialogue_collector`.
    """
    correct = make_correction(environment, policy)
    inner = make_dialogue_collector(environment, policy, group_size=group_size, axis_name=axis_name, **options)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Demonstrated, Metrics]:
        own_key, correction_key = jax.random.split(key)
        state, own, metrics = inner.collect(state, params, own_key)
        first = jax.tree.map(lambda leaf: leaf[::group_size], own)
        return state, Demonstrated(own=own, demonstration=correct(correction_key, first)), metrics

    return inner._replace(collect=collect)

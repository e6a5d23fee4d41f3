"""GTR (Wei et al., 2025): own episodes in which an expert's thoughts precede the policy's actions."""

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
    """Makes the function that retells recorded episodes with the thoughts of the world's expert.

    Every recorded action is repeated, preceded by the expert's thought in the state in which it was taken: labels of
    visited states, as in DAgger, whether or not the policy's own thought was the same.

    In worlds with chance, the retold episode can diverge from the recorded one.

    Args:
        environment: unbatched text world of one player, whose expert thinks aloud.
        policy: policy whose tokens and layout the episodes have, with room for thoughts.

    Returns:
        `(key, episode) -> Episode` with the same number of rows; thoughts and actions count as sampled, with a
        behaviour log-probability of zero, like those of demonstrations.

    Raises:
        ValueError: the environment is not a text world of one player, there is no room for thoughts, or (when traced)
            the expert does not think aloud.

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
        actions = jnp.where(ended[..., None], actions, -1)  # Text that ran out of room is no action.
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
    """Makes a collector of dialogues, with the expert's thoughts in the states that they visited.

    Args:
        environment: see `make_correction`.
        policy: policy that acts and thinks.
        group_size: number of episodes per task, the first of which is corrected.
        axis_name: see `collect.make_dialogue_collector`.
        **options: further arguments of that function.

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

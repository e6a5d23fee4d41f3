"""Early Experience (Zhang et al., 2025): outcomes of alternatives to an expert's actions, predicted or reflected on."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.demonstrations import draw_action
from jaxagents.language.interventions import IntervenedState, replay, with_interventions
from jaxagents.language.mistakes import make_mistake_collector, noisy_expert
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber, reflection, reflection_tokens
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.types import (
    Array,
    Collector,
    Environment,
    Episode,
    LanguagePolicy,
    Layout,
    Metrics,
    Params,
    PyTree,
    TimeStep,
)


def make_outcome_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    noise: float = 0.25,
    level: int | Sequence[int] | None = None,
    num_transcripts: int | None = None,
    transcripts_seed: int | None = None,
) -> Collector:
    """Makes a collector of transcripts of which what the world answers is learned: an implicit model of the world.

    `L = -sum log p(s_(t+1) | s_t, a_t)` over the tokens of the observations after an action, the expert's own or, with
    probability `noise`, a random alternative.

    Args:
        environment: see `mistakes.make_mistake_collector`.
        policy: its context must hold two turns.
        num_episodes: see there, as the other options.
        noise: chance of an alternative in a turn.
        level: of the tasks.
        num_transcripts: that are drawn once; None: new ones in every batch.
        transcripts_seed: of these.

    Returns:
        The collector.

    Raises:
        ValueError: see `mistakes.make_mistake_collector`; or the context does not reach the turn before.

    References:
        Zhang et al. (2025), "Agent Learning via Early Experience", section 4.2 (implicit world modeling).

    Deviation: alternatives are random admissible actions, the paper's are the policy's own; after one, the expert goes
    on from where it led.
    """
    if policy.layout.context_turns < 2:
        raise ValueError(
            "`policy.context_turns` must be at least 2 to see what an action led to, got "
            f"{policy.layout.context_turns}."
        )
    inner = make_mistake_collector(
        environment,
        policy,
        num_episodes=num_episodes,
        noise=noise,
        mask_mistakes=False,
        reflects=False,
        level=level,
        num_transcripts=num_transcripts,
        transcripts_seed=transcripts_seed,
    )

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        state, episode, metrics = inner.collect(state, params, key)
        return state, learn_observations(episode), metrics

    return inner._replace(collect=collect)


def learn_observations(episode: Episode) -> Episode:
    """Returns episodes whose observations after the first turn are learned, and nothing else."""
    layout = episode.layout
    turn, column = jnp.arange(layout.num_turns)[None, :, None], jnp.arange(layout.turn)[None, None]
    learned = episode.token_mask & (turn > 0) & (column > 0) & (column < layout.observation)
    return episode.replace(
        action_mask=learned, thought_mask=jnp.zeros_like(learned), layout=with_observations_sampled(layout)
    )


def with_observations_sampled(layout: Layout) -> Layout:
    """Returns a layout of turns of the same size, of which all tokens but the first may have been sampled."""
    thought = layout.thought + layout.observation - (1 if layout.thought else 2)
    return layout._replace(observation=1, thought=thought)


def make_consideration_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    share: float = 0.5,
    outcome_words: int = 2,
    noise: float = 0.0,
    level: int | Sequence[int] | None = None,
    num_transcripts: int | None = None,
    transcripts_seed: int | None = None,
) -> Collector:
    """Makes a collector of an expert's transcripts in which it first thinks of an alternative, and of what it leads to.

    A thought reads `<alternative> <outcome> <thought of the expert>`, and the expert's action follows. The alternative
    is not taken: it is tried in a copy of the state, and its outcome are the first words of the answer.

    Args:
        environment: a text world of one seat, single instance, in which chance has no part after the start.
        policy: whose tokens and layout are used, with room for the thoughts.
        num_episodes: per batch, over all devices.
        share: of the turns in which there is an alternative; one that is no mistake is not thought of.
        outcome_words: of the answer; 0 says "nothing happens" in their place.
        noise: of the expert.
        level: of the tasks; a list is gone through in turn.
        num_transcripts: how many different ones there are in all; None makes new ones for every batch.
        transcripts_seed: of the fixed set, the same in every run and stage; None gives every run its own.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, `share` is none, or there is no room for thoughts.

    References:
        Zhang et al. (2025), "Agent Learning via Early Experience", section 4.3 (self-reflection); Gao et al. (2025),
        "MMAT-1M", section 3 (ORR: reflection in one response; `outcome_words` 0).
    """
    require_positive("num_episodes", num_episodes)
    require_between("share", share, 0.0, 1.0)
    if not policy.layout.thought:
        raise ValueError("`policy.thought_tokens` must be positive to think of alternatives, got 0; try 8.")
    noisy = with_interventions(environment, noisy_expert(environment, noise))
    watched = with_interventions(environment)
    words = outcome_words
    longest = policy.lexicon.max_tokens(words) if words else reflection_tokens(environment, policy)
    transcribe = make_transcriber(environment, policy, num_aside=policy.layout.action - 1 + longest)
    source = make_uniform(level=level, num_tasks=num_transcripts, tasks_seed=transcripts_seed)

    def consider(key: Array, state: IntervenedState, timestep: TimeStep) -> Array:
        """Returns the words of an alternative and its outcome, int32 `[M + K]`; all -1 where there is none."""
        draw_key, share_key, step_key = jax.random.split(key, 3)
        alternative = draw_action(environment.text, draw_key, state.inner, timestep.action_mask)
        after, answer = watched.step(step_key, state, alternative)
        outcome = answer.observation[:words] if words else jnp.asarray(reflection(environment))
        there = after.after_mistake & jax.random.bernoulli(share_key, share)
        return jnp.where(there, jnp.concatenate([alternative, outcome]), -1)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        task_key, aside_key = jax.random.split(key)
        task, start, _ = start_tasks(noisy, source.choose(state["source"], task_key, state["index"]))
        num_turns, num_rows = policy.layout.num_turns, state["index"].shape[0]
        played = replay(noisy, start, jnp.zeros((num_rows, num_turns, *environment.action_space.shape), jnp.int32))
        # Not of the key in the state, from which the expert draws its own.
        of_rows = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(aside_key, state["index"])
        keys = jax.vmap(lambda row: jax.random.split(row, num_turns))(of_rows)

        def step(now: PyTree, turn: tuple[Array, Array]) -> tuple[PyTree, Array]:
            turn_keys, action = turn
            aside = jax.vmap(consider)(turn_keys, *now)
            return jax.vmap(watched.step)(turn_keys, now[0], action), aside

        turns = (jnp.swapaxes(keys, 0, 1), jnp.swapaxes(played.actions, 0, 1))
        aside = jnp.swapaxes(jax.lax.scan(step, start, turns)[1], 0, 1)
        inner, thought = (start[0].inner, start[1]), {"thoughts": played.thoughts, "aside": aside}
        episode = transcribe(task, inner, state["index"], played.actions, played.live, **thought)
        return state, episode, dialogue_metrics(episode) | count_experience(episode)

    return make_task_collector(collect, source, num_episodes, "num_episodes")

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
    """Makes a collector of transcripts of which the world's responses are learned: an implicit world model.

    `L = -sum log p(s_(t+1) | s_t, a_t)` over the tokens of the observations after an action, which is the expert's or,
    with probability `noise`, a random alternative.

    Args:
        environment: see `mistakes.make_mistake_collector`.
        policy: policy, whose context must hold two turns.
        num_episodes: see `mistakes.make_mistake_collector`, like the other options.
        noise: probability of an alternative, per turn.
        level: level of the tasks.
        num_transcripts: number of different transcripts in total; None: new ones for every batch.
        transcripts_seed: seed of the fixed set of transcripts.

    Returns:
        The collector.

    Raises:
        ValueError: see `mistakes.make_mistake_collector`; or the context does not include the previous turn.

    References:
        Zhang et al. (2025), "Agent Learning via Early Experience", section 4.2 (implicit world modeling).

    Deviation: alternatives are random admissible actions; the paper's are the policy's own. After one, the expert
    continues from where it led.
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
    """Returns episodes in which only the observations after the first turn are learned."""
    layout = episode.layout
    turn, column = jnp.arange(layout.num_turns)[None, :, None], jnp.arange(layout.turn)[None, None]
    learned = episode.token_mask & (turn > 0) & (column > 0) & (column < layout.observation)
    return episode.replace(
        action_mask=learned, thought_mask=jnp.zeros_like(learned), layout=with_observations_sampled(layout)
    )


def with_observations_sampled(layout: Layout) -> Layout:
    """Returns a layout with turns of the same size, of which all tokens except the first may have been sampled."""
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
    """Makes a collector of expert transcripts in which the expert first considers an alternative and its outcome.

    A thought reads `<alternative> <outcome> <thought of the expert>`, and the expert's action follows. The alternative
    is not taken: it is tried in a copy of the state, and its outcome is the first words of the world's response.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy whose tokens and layout are used, with room for the thoughts.
        num_episodes: number of episodes per batch, over all devices.
        share: fraction of turns in which an alternative is considered; one that is not a mistake is skipped.
        outcome_words: number of words of the response; 0: "nothing happens" instead.
        noise: noise of the expert.
        level: level of the tasks; a list is cycled through.
        num_transcripts: number of different transcripts in total; None: new ones for every batch.
        transcripts_seed: seed of a fixed set, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, `share` is not between 0 and 1, or there is no room for thoughts.

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
        """Returns the words of an alternative and its outcome, int32 `[M + K]`; all -1 if there is none."""
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
        # Not derived from the key in the state, from which the expert draws its own.
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

"""STeP (2025): the policy plays, an expert corrects each wrong step, and wrong steps are read but not learned."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.interventions import episode_actions, replay, with_interventions
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber, reflect_after, reflection_tokens
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree, State


def make_step_correction_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    mask_mistakes: bool = True,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_transcripts: int | None = None,
    transcripts_seed: int | None = None,
    noise: float = 0.0,
) -> Collector:
    """Makes a collector of the policy's own episodes, in which the expert acts in the turn after every wrong step.

    `L = -sum_i m_i log pi(thought_i, action_i | history)`, m_i = 0 for wrong steps, 1 for correct ones and for the
    expert's step after a wrong one, which begins with a reflection if the layout has room for thoughts. Episodes that
    fail are not learned: `learner.only_success`.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts.
        num_episodes: number of episodes per batch, over all devices.
        mask_mistakes: whether wrong steps are excluded from learning.
        temperature: sampling temperature; None: 1.
        level: level of the tasks; a list is cycled through.
        num_transcripts: number of different tasks in total; None: new tasks for every batch.
        transcripts_seed: seed of a fixed set, the same in every run and stage; None: every run has its own set.
        noise: not used; the wrong steps are the policy's own.

    Returns:
        The collector; its batches are `Episode`s, with the expert's thoughts. `success_rate` includes corrections.

    Raises:
        ValueError: a count is not positive, or see `with_interventions` and `make_transcriber`.

    References:
        "Training LLM-Based Agents with Synthetic Self-Reflected Trajectories and Partial Masking" (2025), section 3.
    """
    require_positive("num_episodes", num_episodes)
    corrected = with_interventions(environment, expert_after_mistakes)
    play = make_dialogue(corrected, policy, sampling=Sampling(temperature=temperature))
    transcribe = make_transcriber(environment, policy, num_aside=reflection_tokens(environment, policy))
    source = make_uniform(level=level, num_tasks=num_transcripts, tasks_seed=transcripts_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, play_key = jax.random.split(key)
        task, start, _ = start_tasks(corrected, source.choose(state["source"], task_key, state["index"]))
        own = play(params, play_key, state["index"], task=task, start=start)
        own_actions, _ = episode_actions(environment, policy, own)
        played = replay(corrected, start, own_actions)
        episode = transcribe(
            task,
            (start[0].inner, start[1]),
            state["index"],
            played.actions,
            played.live,
            thoughts=played.thoughts,
            aside=reflect_after(environment, played.mistaken),
            ignored=played.mistaken if mask_mistakes else None,
        )
        return state, episode, dialogue_metrics(episode) | count_experience(episode)

    return make_task_collector(collect, source, num_episodes, "num_episodes", temperature=temperature)


def expert_after_mistakes(key: Array, state: State, action: Array, after_mistake: Array, right: Array) -> Array:
    """Lets the expert act in the turn after every mistake, see `interventions.Intervene`."""
    del key, state
    return jnp.where(after_mistake, right, action)

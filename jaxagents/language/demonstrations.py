"""Episodes of a scripted, possibly noisy expert, as tokens of a language policy."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.scripts import play_script
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.ops.checks import check_counts
from jaxagents.types import (
    Array,
    ChosenTasks,
    Collector,
    Demonstrated,
    Environment,
    Episode,
    LanguagePolicy,
    Metrics,
    Params,
    PyTree,
    State,
    TextInterface,
    TimeStep,
)


def make_demonstrations(
    environment: Environment, policy: LanguagePolicy, *, noise: float = 0.0
) -> Callable[..., Episode]:
    """Makes the function that lets the world's expert play.

    Args:
        environment: unbatched text world.
        policy: policy whose tokens and layout are used; it does not act.
        noise: probability, per turn, of a random admissible action instead of the expert's.

    Returns:
        `(key, index int32 [N], chosen=None) -> Episode` of the episodes with these global indices, on `ChosenTasks`, by
        default new ones; the expert's thoughts and actions count as sampled, with a behaviour log-probability of zero.

    Raises:
        ValueError: the environment is not a text world, `noise` is not a probability, or the expert's thoughts do not
            fit.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name!r}; try environment=frozenlake.")
    if not 0.0 <= noise <= 1.0:
        raise ValueError(f"`noise` must be in [0, 1], got {noise}; try 0.3.")
    text, thinks = environment.text, policy.layout.thought > 0
    if thinks:
        _require_thoughts(environment, policy)

    def choose_one(key: Array, state: State, action_mask: Array | None) -> tuple[Array, Array | None]:
        expert_key, noise_key, action_key = jax.random.split(key, 3)
        random_action = draw_action(text, action_key, state, action_mask)
        action, thought = text.expert(expert_key, state)
        return jnp.where(jax.random.bernoulli(noise_key, noise), random_action, action), thought if thinks else None

    def choose(keys: Array, state: State, timestep: TimeStep, number: Array) -> tuple[Array, Array | None, bool]:
        del number
        return *jax.vmap(choose_one)(keys, state, timestep.action_mask), True

    def demonstrate(key: Array, index: Array, chosen: ChosenTasks | None = None) -> Episode:
        chosen = make_uniform().choose(None, key, index) if chosen is None else chosen
        task, start, keys = start_tasks(environment, chosen)
        return play_script(environment, policy, choose, keys=keys, task=task, start=start, group=index)

    return demonstrate


def draw_action(text: TextInterface, key: Array, state: State, action_mask: Array | None) -> Array:
    """Draws an admissible action, int32 `[M]`, by `TextInterface.draw` if actions are not listed."""
    if text.actions is None:
        return text.draw(key, state)
    mask = jnp.ones(len(text.actions), bool) if action_mask is None else action_mask
    row = jnp.argmax(jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0))
    return jnp.asarray(text.actions, jnp.int32)[row]


def _require_thoughts(environment: Environment, policy: LanguagePolicy) -> None:
    """Refuses an expert that does not think aloud, or whose thoughts do not fit."""
    key = jax.random.key(0)
    state, _ = jax.eval_shape(lambda: environment.reset(key, environment.sample_task(key)))
    _, thought = jax.eval_shape(environment.text.expert, key, state)
    tokens, patterns = policy.layout.thought, environment.text.patterns
    if thought is None:
        raise ValueError(
            f"`policy.thought_tokens` must be 0 where the expert does not think aloud, got {tokens} in "
            f"{environment.name!r}."
        )
    # Plus the mark that ends a thought.
    longest = thought.shape if patterns is None or not patterns.thought else patterns.thought
    needed = max(map(policy.lexicon.max_tokens, longest)) + 1
    if tokens < needed:
        raise ValueError(
            f"`policy.thought_tokens` must hold the longest thought of the expert and its end mark, {needed} tokens in "
            f"{environment.name!r}, got {tokens}; try {needed}."
        )


def make_demonstration_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    noise: float = 0.0,
    level: int | Sequence[int] | None = None,
    num_transcripts: int | None = None,
    transcripts_seed: int | None = None,
) -> Collector:
    """Makes a collector of new demonstrations, or of a fixed set of them.

    Args:
        environment: unbatched text world.
        policy: policy whose tokens and layout are used.
        num_episodes: number of episodes per batch, over all devices.
        noise: see `make_demonstrations`.
        level: level of the tasks; a list is cycled through.
        num_transcripts: number of different transcripts in total; None: new ones for every batch.
        transcripts_seed: seed of a fixed set, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, or see `make_demonstrations`.
    """
    check_counts(num_episodes=num_episodes, num_transcripts=num_transcripts)
    demonstrate = make_demonstrations(environment, policy, noise=noise)
    source = make_uniform(level=level, num_tasks=num_transcripts, tasks_seed=transcripts_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        chosen = source.choose(state["source"], key, state["index"])
        episode = demonstrate(key, state["index"], chosen)
        return state, episode, dialogue_metrics(episode) | count_experience(episode)

    return make_task_collector(collect, source, num_episodes, "num_episodes")


def make_demonstrated_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int = 1,
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
) -> Collector:
    """Makes a collector in which the policy plays groups of episodes, and the expert one episode on each group's task.

    Args:
        environment: unbatched text world.
        policy: policy that acts.
        num_groups: number of tasks per batch, over all devices.
        group_size: number of the policy's episodes per task.
        temperature: divisor of the logits; None: 1.
        level: level of the tasks; a list is cycled through.
        num_tasks: number of different tasks in total; None: new tasks for every batch.
        tasks_seed: seed of a fixed set of tasks, the same in every run and stage; None: every run has its own set.
            Equal seeds and numbers give the tasks of the transcripts of `make_demonstration_collector`.

    Returns:
        The collector; its batches are `Demonstrated`, its steps are the policy's episodes. Metrics are those of the
        policy's episodes.

    Raises:
        ValueError: a count is not positive, or see `make_demonstrations`.
    """
    check_counts(num_groups=num_groups, num_tasks=num_tasks)
    demonstrate = make_demonstrations(environment, policy)
    play = make_dialogue(
        environment, policy, group_size=group_size, sampling=Sampling(temperature=temperature), bootstrap=True
    )
    source = make_uniform(level=level, num_tasks=num_tasks, tasks_seed=tasks_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Demonstrated, Metrics]:
        task_key, play_key = jax.random.split(key)
        chosen = source.choose(state["source"], task_key, state["group"])
        task, start, _ = start_tasks(environment, chosen)
        own = play(params, play_key, state["group"], task=task, start=start)
        batch = Demonstrated(own=own, demonstration=demonstrate(task_key, state["group"], chosen))
        return state, batch, dialogue_metrics(own) | count_experience(own)

    return make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )

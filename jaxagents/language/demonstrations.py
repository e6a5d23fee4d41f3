"""Episodes of a scripted, possibly noisy expert, in the tokens of a language policy."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxagents.environments.text.splits import level_of
from jaxagents.language.collect import dialogue_metrics
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
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


def make_demonstrations(
    environment: Environment, policy: LanguagePolicy, *, noise: float = 0.0, level: int | Sequence[int] | None = None
) -> Callable[[Array, Array], Episode]:
    """Makes the function that lets the world's expert play.

    Args:
        environment: a text world, single instance.
        policy: whose tokens and layout are used; it does not act.
        noise: probability, per turn, of an admissible action drawn at random in place of the expert's.
        level: of the tasks; a list is gone through in turn.

    Returns:
        `(key, index int32 [N]) -> Episode` of the episodes with these global indices; what the expert thinks and does
        counts as sampled, with a behaviour log-probability of zero.

    Raises:
        ValueError: the environment is no text world, or `noise` is not a probability.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name!r}; try environment=frozenlake.")
    if not 0.0 <= noise <= 1.0:
        raise ValueError(f"`noise` must be in [0, 1], got {noise}; try 0.3.")
    text, layout = environment.text, policy.layout
    if layout.thought and text.thought is None:
        raise ValueError(
            f"`policy.thought_tokens` must be 0 where the expert does not think aloud, got {layout.thought} in "
            f"{environment.name!r}."
        )

    def choose_one(key: Array, state: State, action_mask: Array | None) -> Array:
        expert_key, noise_key, action_key = jax.random.split(key, 3)
        mask = jnp.ones(len(text.actions), bool) if action_mask is None else action_mask
        row = jnp.argmax(jnp.where(mask, jax.random.uniform(action_key, mask.shape), -1.0))
        random_action = jnp.asarray(text.actions, jnp.int32)[row]
        return jnp.where(jax.random.bernoulli(noise_key, noise), random_action, text.expert(expert_key, state))

    def choose(keys: Array, state: State, timestep: TimeStep, number: Array) -> tuple[Array, bool]:
        del number
        return jax.vmap(choose_one)(keys, state, timestep.action_mask), True

    def demonstrate(key: Array, index: Array) -> Episode:
        task_key, reset_key, play_key = jax.random.split(key, 3)
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        task = jax.vmap(lambda k, i: environment.sample_task(k, level_of(level, i)))(fold(task_key, index), index)
        keys = fold(reset_key, index), fold(play_key, index)
        return play_script(environment, policy, choose, keys=keys, task=task, group=index)

    return demonstrate


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
    """Makes a collector of fresh demonstrations, or of a fixed set of them.

    Args:
        environment: a text world, single instance.
        policy: whose tokens and layout are used.
        num_episodes: per batch, over all devices.
        noise: see `make_demonstrations`.
        level: see `make_demonstrations`.
        num_transcripts: how many different ones there are in all; None makes new ones for every batch.
        transcripts_seed: of the fixed set, the same in every run and stage; None gives every run its own.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, or see `make_demonstrations`.
    """
    for name, count in (("num_episodes", num_episodes), ("num_transcripts", num_transcripts)):
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")
    demonstrate = make_demonstrations(environment, policy, noise=noise, level=level)
    init, choose = make_task_choice(num_episodes, num_transcripts, transcripts_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        episode = demonstrate(*choose(state, key))
        return state, episode, dialogue_metrics(episode)

    return Collector(init=init, collect=collect, steps_per_collect=num_episodes, divided_option="num_episodes")


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
    """Makes a collector in which the policy plays groups of episodes, and the expert one episode of every group's task.

    Args:
        environment: a text world, single instance.
        policy: acts.
        num_groups: tasks per batch, over all devices.
        group_size: episodes of the policy per task.
        temperature: divides the logits; None is 1.
        level: of the tasks; a list is gone through in turn.
        num_tasks: how many different ones there are in all; None draws new ones for every batch. What the policy says
            on a task of a fixed set depends on the task and its parameters only: one sample per task for as long as
            they stay the same.
        tasks_seed: of the fixed set, the same in every run and stage; None gives every run its own. Seed and number are
            those of the transcripts of `make_demonstration_collector`.

    Returns:
        The collector; its batches are `Demonstrated`, its steps episodes of the policy. Metrics are those of the
        policy's episodes.

    Raises:
        ValueError: a count is not positive, or see `make_demonstrations`.
    """
    for name, count in (("num_groups", num_groups), ("num_tasks", num_tasks)):
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")
    demonstrate = make_demonstrations(environment, policy, level=level)
    sampling = Sampling(temperature=temperature)
    play = make_dialogue(environment, policy, group_size=group_size, sampling=sampling, level=level, bootstrap=True)
    init, choose = make_task_choice(num_groups, num_tasks, tasks_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Demonstrated, Metrics]:
        # The same key and index are the same task in both.
        tasks_key, index = choose(state, key)
        own, demonstration = play(params, tasks_key, index), demonstrate(tasks_key, index)
        # A task of a fixed set may come twice in a batch; groups are those of one draw.
        own = own.replace(group=jnp.repeat(state["index"], group_size))
        batch = Demonstrated(own=own, demonstration=demonstration.replace(group=state["index"]))
        return state, batch, dialogue_metrics(own)

    tempering = {} if temperature in (None, 1.0) else {"temperature": temperature}
    return Collector(
        init=init,
        collect=collect,
        steps_per_collect=num_groups * group_size,
        divided_option="num_groups",
        tempering=tempering,
    )


def make_task_choice(
    batch_size: int, num_tasks: int | None, seed: int | None
) -> tuple[Callable[[Array, Params], PyTree], Callable[[PyTree, Array], tuple[Array, Array]]]:
    """Makes the choice of the tasks of a batch: fresh ones, or some of a fixed set.

    Args:
        batch_size: tasks per batch, over all devices.
        num_tasks: size of the fixed set; None for fresh ones.
        seed: of the fixed set; None takes it from the key of the collector.

    Returns:
        `init(key, params) -> state` and `choose(state, key) -> (key, index)`: equal keys and indices are equal tasks.
    """

    def init(key: Array, params: Params) -> PyTree:
        del params
        key = key if seed is None else jax.random.key(seed)
        return {
            "index": jnp.arange(batch_size, dtype=jnp.int32),
            "key": jax.random.key_data(jnp.broadcast_to(key, (batch_size,))),
        }

    def choose(state: PyTree, key: Array) -> tuple[Array, Array]:
        if num_tasks is None:
            return key, state["index"]
        pick = jax.vmap(lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 0, num_tasks))
        return jax.random.wrap_key_data(state["key"][0]), pick(state["index"])

    return init, choose

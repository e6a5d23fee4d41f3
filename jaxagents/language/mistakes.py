"""AgentRefine (Fu et al., 2025): transcripts with mistakes and their repair, in which mistakes are not learned."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.demonstrations import draw_action
from jaxagents.language.interventions import Intervene, Replay, replay, with_interventions
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.transcribe import make_transcriber, reflect_after, reflection_tokens
from jaxagents.ops.checks import require_between, require_positive
from jaxagents.types import (
    Array,
    ChosenTasks,
    Collector,
    Environment,
    Episode,
    LanguagePolicy,
    Mean,
    Metrics,
    Params,
    PyTree,
    State,
)


def make_mistake_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    noise: float = 0.25,
    mask_mistakes: bool = True,
    reflects: bool = True,
    min_mistakes: int = 0,
    num_attempts: int = 1,
    level: int | Sequence[int] | None = None,
    num_transcripts: int | None = None,
    transcripts_seed: int | None = None,
) -> Collector:
    """Makes a collector of expert transcripts with mistakes, of which the repair is learned but not the mistake.

    `L = -sum_t I(t) log p(thought_t, action_t | history)`, I(t) = 0 in turns that are mistakes, else 1. Mistakes stay
    in the history, with the world's responses. The turn after a mistake begins with a reflection, if the layout has
    room for thoughts.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy whose tokens and layout are used.
        num_episodes: number of episodes per batch, over all devices.
        noise: probability, per turn, of a random admissible action instead of the expert's.
        mask_mistakes: whether mistakes are excluded from learning.
        reflects: whether a reflection precedes the expert's thought after a mistake.
        min_mistakes: number of mistakes that a successful transcript must have: the first such one of `num_attempts` is
            used; if there is none, a successful one.
        num_attempts: number of transcripts that are made per task.
        level: level of the tasks; a list is cycled through.
        num_transcripts: number of different tasks in total; None: new ones for every batch.
        transcripts_seed: seed of a fixed set, the same in every run and stage; None: every run has its own set.

    Returns:
        The collector; its batches are `Episode`s. `mistake_rate` is the fraction of turns that are mistakes.

    Raises:
        ValueError: a count is not positive, `noise` is not a probability, or see `with_interventions` and
            `make_transcriber`.

    References:
        Fu et al. (2025), "AgentRefine: Enhancing Agent Generalization through Refinement Tuning", sections 3.2 and 3.3.
    """
    counts = {"num_episodes": num_episodes, "num_attempts": num_attempts, "num_transcripts": num_transcripts}
    for name, count in counts.items():
        if count is not None:
            require_positive(name, count)
    require_between("noise", noise, 0.0, 1.0)
    noisy = with_interventions(environment, noisy_expert(environment, noise))
    transcribe = make_transcriber(
        environment, policy, num_aside=reflection_tokens(environment, policy) if reflects else 0
    )
    source = make_uniform(level=level, num_tasks=num_transcripts, tasks_seed=transcripts_seed)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        task, start, _ = start_tasks(noisy, source.choose(state["source"], key, state["index"]))
        chosen = _choose(noisy, policy.layout.num_turns, start, num_attempts, min_mistakes)
        episode = transcribe(
            task,
            (start[0].inner, start[1]),
            state["index"],
            chosen.actions,
            chosen.live,
            thoughts=chosen.thoughts,
            aside=reflect_after(environment, chosen.mistaken) if reflects else None,
            ignored=chosen.mistaken if mask_mistakes else None,
        )
        mistakes, turns = (jnp.sum(leaf, dtype=jnp.float32) for leaf in (chosen.mistaken, chosen.live))
        metrics = {"mistake_rate": Mean(total=mistakes, count=turns)}
        return state, episode, dialogue_metrics(episode) | metrics | count_experience(episode)

    return make_task_collector(collect, source, num_episodes, "num_episodes")


def make_set_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    noise: float,
    levels: Callable[[Array], Array | None],
    transcripts_seed: int | None,
    select: Callable[[Callable[[Array], Replay]], dict[str, Array]],
    draw: Callable[[Array, dict[str, Array]], Array],
) -> Collector:
    """Makes a collector of samples from a fixed set of a noisy expert's transcripts.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy whose tokens and layout are used.
        num_episodes: number of episodes per batch, over all devices.
        noise: noise of the expert, see `noisy_expert`.
        levels: `(item int32 [N]) -> int32 [N]`, levels of the tasks of transcripts by their index in the set; None:
            random.
        transcripts_seed: seed of the set, the same in every run and stage; None: every run has its own set.
        select: `(play) -> vectors by name`, called once, with `play` from items to their replays; input of `draw`.
        draw: `(key, selected) -> item int32`, called for every row of a batch.

    Returns:
        The collector; its batches are `Episode`s.
    """
    noisy = with_interventions(environment, noisy_expert(environment, noise))
    transcribe = make_transcriber(environment, policy)

    def play(set_key: Array, item: Array) -> tuple[PyTree, PyTree, Replay]:
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(set_key, item)
        task, start, _ = start_tasks(noisy, ChosenTasks(key=keys, level=levels(item), item=item))
        nothing = jnp.zeros((item.shape[0], policy.layout.num_turns, *environment.action_space.shape), jnp.int32)
        return task, start, replay(noisy, start, nothing)

    def init(key: Array, params: Params) -> PyTree:
        del params
        set_key = key if transcripts_seed is None else jax.random.key(transcripts_seed)
        # The same in every row, because devices split the state of a collector.
        of_rows = {"set_key": jax.random.key_data(set_key)} | select(lambda item: play(set_key, item)[2])
        rows = jnp.arange(num_episodes, dtype=jnp.int32)
        return {"index": rows} | jax.tree.map(lambda leaf: jnp.tile(leaf[None], (num_episodes, 1)), of_rows)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, state["index"])
        item = jax.vmap(draw)(keys, {name: leaf for name, leaf in state.items() if name not in ("index", "set_key")})
        task, start, played = play(jax.random.wrap_key_data(state["set_key"][0]), item)
        begin, thoughts = (start[0].inner, start[1]), played.thoughts
        episode = transcribe(task, begin, state["index"], played.actions, played.live, thoughts=thoughts)
        return state, episode, dialogue_metrics(episode) | count_experience(episode)

    return Collector(init=init, collect=collect, steps_per_collect=num_episodes, divided_option="num_episodes")


def noisy_expert(environment: Environment, noise: float) -> Intervene:
    """Returns an intervention: an expert that takes a random admissible action with probability `noise`."""

    def act(key: Array, state: State, action: Array, after_mistake: Array, right: Array) -> Array:
        del action, after_mistake
        _, noise_key, draw_key = jax.random.split(key, 3)  # Three, to get the same mistakes as in stored runs.
        drawn = draw_admissible(environment, draw_key, state)
        return jnp.where(jax.random.bernoulli(noise_key, noise), drawn, right)

    return act


def draw_admissible(environment: Environment, key: Array, state: State) -> Array:
    """Draws an admissible action, int32 `[M]`; any listed one if the world cannot tell which are admissible."""
    text = environment.text
    return draw_action(text, key, state, None) if text.draw is None else text.draw(key, state)


def _choose(environment: Environment, num_turns: int, start: PyTree, num_attempts: int, min_mistakes: int) -> Replay:
    """Lets the expert play every task several times, and returns the first suitable transcript."""

    def attempt(number: Array) -> Replay:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(jax.random.wrap_key_data(start[0].key), number)
        begin = (start[0].replace(key=jax.random.key_data(keys)), start[1])
        nothing = jnp.zeros((keys.shape[0], num_turns, *environment.action_space.shape), jnp.int32)
        return replay(environment, begin, nothing)

    attempts = jax.vmap(attempt)(jnp.arange(num_attempts))
    enough = jnp.sum(attempts.mistaken, axis=2) >= min_mistakes
    best = jnp.argmax(attempts.success.astype(jnp.int32) * (1 + enough), axis=0)
    return jax.tree.map(lambda leaf: leaf[best, jnp.arange(best.shape[0])], attempts)

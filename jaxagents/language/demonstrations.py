"""Episodes of a scripted, possibly noisy expert, in the tokens of a language policy."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxagents.language.collect import dialogue_metrics
from jaxagents.language.slots import (
    Part,
    Turn,
    assemble,
    join_parts,
    render_observations,
    render_prompts,
)
from jaxagents.types import Array, Collector, Environment, Episode, LanguagePolicy, Metrics, Params, PyTree, State


def make_demonstrations(
    environment: Environment, policy: LanguagePolicy, *, noise: float = 0.0, level: int | None = None
) -> Callable[[Array, Array], Episode]:
    """Makes the function that lets the world's expert play.

    Args:
        environment: a text world, single instance.
        policy: whose tokens and layout are used; it does not act.
        noise: probability, per turn, of an admissible action drawn at random in place of the expert's.
        level: of the tasks.

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

    def choose(key: Array, state: State, action_mask: Array | None) -> Array:
        expert_key, noise_key, action_key = jax.random.split(key, 3)
        mask = jnp.ones(len(text.actions), bool) if action_mask is None else action_mask
        row = jnp.argmax(jnp.where(mask, jax.random.uniform(action_key, mask.shape), -1.0))
        random_action = jnp.asarray(text.actions, jnp.int32)[row]
        return jnp.where(jax.random.bernoulli(noise_key, noise), random_action, text.expert(expert_key, state))

    def take_turn(keys: Array, loop: tuple, number: Array) -> tuple[tuple, tuple[Turn, Array]]:
        state, timestep, position, live = loop
        turn_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number), 3))(keys)
        parts = [Part(*_and_live(render_observations(policy, timestep.observation), live))]
        if layout.thought:
            parts += _thought_parts(environment, policy, jax.vmap(text.thought)(turn_keys[:, 0], state), live)
        action = jax.vmap(choose)(turn_keys[:, 1], state, timestep.action_mask)
        tokens, mask = jax.vmap(partial(_say, policy, size=layout.action, close="end"))(action)
        parts.append(_spoken(tokens, mask & live[:, None]))
        after_state, after = jax.vmap(environment.step)(turn_keys[:, 2], state, action)
        turn = join_parts(parts, position)
        cut = number + 1 >= layout.num_turns
        turn = turn.replace(
            reward=jnp.where(live, after.reward, 0.0),
            valid=live,
            action_valid=after.info["valid"],
            terminated=after.terminated,
            truncated=(after.truncated | cut) & ~after.terminated,
            fingerprint=jax.vmap(text.fingerprint)(state),
        )
        position = position + jnp.sum(turn.token_mask, axis=1)
        over = turn.terminated | turn.truncated
        return (after_state, after, position, live & ~over), (turn, after.info["success"])

    def demonstrate(key: Array, index: Array) -> Episode:
        task_key, reset_key, play_key = jax.random.split(key, 3)
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        task = jax.vmap(lambda k: environment.sample_task(k, level))(fold(task_key, index))
        state, timestep = jax.vmap(environment.reset)(fold(reset_key, index), task)
        prompts = render_prompts(environment, policy, task)
        position = jnp.sum(prompts[1], axis=1)
        loop = (state, timestep, position, jnp.ones(index.shape, bool))
        numbers = jnp.arange(layout.num_turns)
        _, (turns, success) = jax.lax.scan(partial(take_turn, fold(play_key, index)), loop, numbers)
        turns = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), turns)
        success = jnp.any(success.T & turns.valid, axis=1)
        return assemble(layout, turns, prompts=prompts, success=success, group=index, task=task)

    if layout.thought and text.thought is None:
        raise ValueError(
            f"`policy.thought_tokens` must be 0 where the expert does not think aloud, got {layout.thought} in "
            f"{environment.name!r}."
        )
    return demonstrate


def make_demonstration_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    noise: float = 0.0,
    level: int | None = None,
    num_transcripts: int | None = None,
) -> Collector:
    """Makes a collector of fresh demonstrations, or of a fixed set of them.

    Args:
        environment: a text world, single instance.
        policy: whose tokens and layout are used.
        num_episodes: per batch, over all devices.
        noise: see `make_demonstrations`.
        level: of the tasks.
        num_transcripts: how many different ones there are in all; None makes new ones for every batch.

    Returns:
        The collector; its batches are `Episode`s.

    Raises:
        ValueError: a count is not positive, or see `make_demonstrations`.
    """
    for name, count in (("num_episodes", num_episodes), ("num_transcripts", num_transcripts)):
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")
    demonstrate = make_demonstrations(environment, policy, noise=noise, level=level)

    def init(key: Array, params: Params) -> PyTree:
        del params
        return {
            "index": jnp.arange(num_episodes, dtype=jnp.int32),
            "key": jax.random.key_data(jnp.broadcast_to(key, (num_episodes,))),
        }

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        del params
        if num_transcripts is None:
            episode = demonstrate(key, state["index"])
        else:
            # Every transcript is drawn from the same key whenever it is chosen.
            pick = jax.vmap(lambda i: jax.random.randint(jax.random.fold_in(key, i), (), 0, num_transcripts))
            episode = demonstrate(jax.random.wrap_key_data(state["key"][0]), pick(state["index"]))
        return state, episode, dialogue_metrics(episode)

    return Collector(init=init, collect=collect, steps_per_collect=num_episodes)


def _and_live(rendered: tuple[Array, Array], live: Array) -> tuple[Array, Array]:
    tokens, mask = rendered
    return tokens, mask & live[:, None]


def _say(policy: LanguagePolicy, words: Array, *, size: int, close: str) -> tuple[Array, Array]:
    """Renders words and closes them with a mark, `[size]`."""
    tokens, mask = policy.lexicon.render(words, size - 1)
    length = jnp.sum(mask)
    column = jnp.arange(size)
    tokens = jnp.where(column == length, policy.tokenizer.marks[close], jnp.pad(tokens, (0, 1)))
    return tokens, column <= length


def _thought_parts(environment: Environment, policy: LanguagePolicy, words: Array, live: Array) -> list[Part]:
    layout = policy.layout
    tokens, mask = jax.vmap(partial(_say, policy, size=layout.thought, close="act"))(words)
    nothing = jnp.zeros((live.shape[0], 1), jnp.int32)
    return [
        _spoken(tokens, mask & live[:, None], thought=True),
        Part(tokens=nothing, mask=nothing.astype(bool)),  # The act mark that is only needed when a thought is cut.
    ]


def _spoken(tokens: Array, mask: Array, *, thought: bool = False) -> Part:
    nothing = jnp.zeros(mask.shape, jnp.float32)
    return Part(tokens=tokens, mask=mask, log_prob=nothing, sampling_log_prob=nothing, thought=thought)

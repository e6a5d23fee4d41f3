"""Episodes of a language model in a text world, whole groups of them in one compiled loop."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.splits import level_of
from jaxagents.language.conversation import Conversation, answer, begin_conversation, parse_action, read_prompts
from jaxagents.language.generate import Sampling
from jaxagents.language.slots import (
    Turn,
    assemble,
    empty_turns,
    render_prompts,
)
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params, PyTree, State


@struct.dataclass
class _Loop:
    """What the loop carries; B rows, each in an episode of its own, N episodes in all.

    Attributes:
        talk: what every row has read and said.
        state: of the environments.
        timestep: of the environments.
        episode: int32 `[B]`, index of the episode of a row; N when there is none left for it.
        turn: int32 `[B]`, of the episode.
        upcoming: int32, the next episode to start.
        turns: `Turn` with leaves `[N, T, ...]`.
        success: bool `[N]`.
    """

    talk: Conversation
    state: State
    timestep: Any
    episode: Array
    turn: Array
    upcoming: Array
    turns: Turn
    success: Array


def make_dialogue(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    group_size: int = 1,
    sampling: Sampling | None = None,
    sample_task: Callable[..., PyTree] | None = None,
    level: int | Sequence[int] | None = None,
) -> Callable[..., Episode]:
    """Makes the function that plays groups of episodes from their first to their last turn.

    Every turn renders the observation, extends the cache by it, decodes an action (after a thought, where the layout
    has room for one), parses it and steps the environment. Rows whose episode is over take the next one at once, so a
    finished episode costs nothing; the loop ends when all episodes have. What an episode is depends on its own index
    only, not on the row or the device that plays it.

    Args:
        environment: a text world, single instance.
        policy: its layout says how many tokens and turns there are and how much of the past is seen. A context of fewer
            turns than an episode has is a ring of as many blocks: older turns are overwritten.
        group_size: G, episodes per task; they start in the same state.
        sampling: how tokens are drawn; None samples from the model.
        sample_task: of the tasks; None for the environment's own, `environment.text.sample_held_out_task` for others.
        level: of the tasks; a list is gone through in turn.

    Returns:
        `(params, key, group int32 [n], num_rows=None, *, temperature=None) -> Episode` of the `N = n * G` episodes of
        the groups with these global indices, played in `num_rows` rows (all at once by default); `temperature`, float32
        `[]`, takes the place of that of `sampling`.

    Raises:
        ValueError: the environment is no text world, or `group_size` is not positive.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name!r}; try environment=frozenlake.")
    if group_size < 1:
        raise ValueError(f"`group_size` must be at least 1, got {group_size}.")
    sampling = Sampling() if sampling is None else sampling
    sample_task = environment.sample_task if sample_task is None else sample_task

    def play(
        params: Params, key: Array, group: Array, num_rows: int | None = None, *, temperature: Array | None = None
    ) -> Episode:
        chosen = sampling if temperature is None else sampling.replace(temperature=temperature)
        take_turn = partial(_take_turn, environment, policy, chosen)
        task_key, reset_key, play_key = jax.random.split(key, 3)
        task = jax.vmap(lambda g: sample_task(jax.random.fold_in(task_key, g), level_of(level, g)))(group)
        start = jax.vmap(lambda g, t: environment.reset(jax.random.fold_in(reset_key, g), t))(group, task)
        prompts = render_prompts(environment, policy, task)
        num_episodes = group.shape[0] * group_size
        index = (group[:, None] * group_size + jnp.arange(group_size)[None]).reshape(-1)
        keys = jax.vmap(lambda i: jax.random.fold_in(play_key, i))(index)
        row = min(num_rows or num_episodes, num_episodes)
        loop = _begin(environment, policy, params, start, prompts, row, num_episodes, group_size)

        def step(loop: _Loop) -> _Loop:
            loop, over = take_turn(params, keys, loop)
            return _refill(policy, params, start, prompts, group_size, loop, over)

        loop = jax.lax.while_loop(lambda loop: jnp.any(loop.episode < num_episodes), step, loop)
        repeat = partial(jnp.repeat, repeats=group_size, axis=0)
        return assemble(
            policy.layout,
            loop.turns,
            prompts=jax.tree.map(repeat, prompts),
            success=loop.success,
            group=repeat(group),
            task=jax.tree.map(repeat, task),
        )

    return play


def _begin(
    environment: Environment,
    policy: LanguagePolicy,
    params: Params,
    start: tuple[State, Any],
    prompts: tuple[Array, Array],
    num_rows: int,
    num_episodes: int,
    group_size: int,
) -> _Loop:
    episode = jnp.arange(num_rows, dtype=jnp.int32)
    state, timestep = jax.tree.map(lambda leaf: leaf[episode // group_size], start)
    loop = _Loop(
        talk=begin_conversation(policy, num_rows, environment.num_players),
        state=state,
        timestep=timestep,
        episode=episode,
        turn=jnp.zeros(num_rows, jnp.int32),
        upcoming=jnp.int32(num_rows),
        turns=empty_turns(policy.layout, num_episodes, environment.num_players),
        success=jnp.zeros(num_episodes, bool),
    )
    prompt = jax.tree.map(lambda leaf: leaf[episode // group_size], prompts)
    return loop.replace(talk=read_prompts(policy, params, loop.talk, prompt, jnp.ones(num_rows, bool)))


def _take_turn(
    environment: Environment, policy: LanguagePolicy, sampling: Sampling, params: Params, keys: Array, loop: _Loop
) -> tuple[_Loop, Array]:
    """Observes, speaks and steps in every row; returns the loop and where an episode is over."""
    layout, num_episodes = policy.layout, keys.shape[0]
    live = loop.episode < num_episodes
    row_keys = keys[jnp.minimum(loop.episode, num_episodes - 1)]
    row_keys = jax.vmap(lambda key, turn: jax.random.split(jax.random.fold_in(key, turn), 3))(row_keys, loop.turn)
    player = jnp.zeros_like(loop.turn) if loop.timestep.player is None else loop.timestep.player
    fingerprint = jax.vmap(environment.text.fingerprint)(loop.state)
    talk, turn = answer(
        policy,
        params,
        loop.talk,
        loop.timestep.observation,
        keys=row_keys,
        sampling=sampling,
        player=player,
        live=live,
    )
    words, parsed = parse_action(policy, turn, environment.action_space.shape[0])
    state, timestep = jax.vmap(environment.step)(row_keys[:, 2], loop.state, words)
    cut = loop.turn + 1 >= layout.num_turns
    turn = turn.replace(
        reward=timestep.reward,
        valid=live,
        action_valid=parsed & timestep.info["valid"],
        terminated=timestep.terminated,
        truncated=(timestep.truncated | cut) & ~timestep.terminated,
        fingerprint=fingerprint,
        agent=player,
    )
    over = live & (turn.terminated | turn.truncated)
    put = partial(_put, loop.episode, loop.turn)
    loop = loop.replace(
        talk=talk,
        state=state,
        timestep=timestep,
        turn=loop.turn + 1,
        turns=jax.tree.map(put, loop.turns, turn),
        success=loop.success.at[jnp.where(over, loop.episode, num_episodes)].set(timestep.info["success"], mode="drop"),
    )
    return loop, over


def _refill(
    policy: LanguagePolicy,
    params: Params,
    start: tuple[State, Any],
    prompts: tuple[Array, Array],
    group_size: int,
    loop: _Loop,
    over: Array,
) -> _Loop:
    """Gives rows whose episode is over the next ones, in order, while there are any."""
    num_episodes = loop.success.shape[0]
    rank = jnp.cumsum(over) - over
    episode = jnp.where(over, jnp.minimum(loop.upcoming + rank, num_episodes), loop.episode).astype(jnp.int32)
    group = jnp.minimum(episode, num_episodes - 1) // group_size

    def choose(fresh: Array, old: Array) -> Array:
        return jnp.where(over.reshape(-1, *(1,) * (old.ndim - 1)), fresh[group], old)

    state, timestep = jax.tree.map(choose, start, (loop.state, loop.timestep))
    loop = loop.replace(
        state=state,
        timestep=timestep,
        episode=episode,
        turn=jnp.where(over, 0, loop.turn),
        upcoming=loop.upcoming + jnp.sum(over).astype(jnp.int32),
    )
    if not policy.layout.prompt:
        return loop.replace(talk=read_prompts(policy, params, loop.talk, None, over))
    prompt = jax.tree.map(lambda leaf: leaf[group], prompts)
    talk = jax.lax.cond(
        jnp.any(over & (episode < num_episodes)),
        lambda talk: read_prompts(policy, params, talk, prompt, over),
        lambda talk: talk,
        loop.talk,
    )
    return loop.replace(talk=talk)


def _put(episode: Array, turn: Array, buffer: Array, value: Array) -> Array:
    """Writes rows `[B, ...]` to `buffer[episode, turn]`; an episode out of range is dropped."""
    return buffer.at[episode, turn].set(value.astype(buffer.dtype), mode="drop")

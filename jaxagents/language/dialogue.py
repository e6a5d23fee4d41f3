"""Episodes of a language model in a text world, whole groups of them in one compiled loop."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.splits import level_of
from jaxagents.language.conversation import (
    Conversation,
    answer,
    begin_conversation,
    parse_action,
    read_prompts,
    value_successors,
)
from jaxagents.language.generate import Sampling
from jaxagents.language.slots import (
    Turn,
    assemble,
    empty_turns,
    render_prompts,
)
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params, PyTree, State

Speakers = tuple[tuple[LanguagePolicy, Params], ...]
"""The policy, and its partner where there is one, each with its parameters."""


@struct.dataclass
class _Loop:
    """What the loop carries; B rows, each in an episode of its own, N episodes in all.

    Attributes:
        talk: what every row has read and said, for every speaker.
        state: of the environments.
        timestep: of the environments.
        episode: int32 `[B]`, index of the episode of a row; N when there is none left for it.
        turn: int32 `[B]`, of the episode.
        upcoming: int32, the next episode to start.
        turns: `Turn` with leaves `[N, T, ...]`.
        success: bool `[N]`.
        bootstrap_value: float32 `[N]`, of what would have followed an episode that was cut; None where nobody asks.
    """

    talk: tuple[Conversation, ...]
    state: State
    timestep: Any
    episode: Array
    turn: Array
    upcoming: Array
    turns: Turn
    success: Array
    bootstrap_value: Array | None


def make_dialogue(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    group_size: int = 1,
    sampling: Sampling | None = None,
    sample_task: Callable[..., PyTree] | None = None,
    level: int | Sequence[int] | None = None,
    partner: LanguagePolicy | None = None,
    bootstrap: bool = False,
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
        partner: takes all other seats of a game; `policy` itself, or one with another model but the same tokenizer and
            slots. In episode i the policy has seat `i % num_players`. What a partner says does not count as sampled.
        bootstrap: where the model has a value head and the world one seat, `Episode.bootstrap_value` of those that
            were cut, by the world or by `layout.num_turns`, is the value of the observation that followed, had they
            gone on. Games do not show the observations of all seats at their end, and have none.

    Returns:
        `(params, key, group int32 [n], num_rows=None, *, temperature=None) -> Episode` of the `N = n * G` episodes of
        the groups with these global indices, played in `num_rows` rows (all at once by default); `temperature`, float32
        `[]`, takes the place of that of `sampling`. With a partner, `params` are a pair.

    Raises:
        ValueError: the environment is no text world, `group_size` is not positive, or the partner does not fit.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name!r}; try environment=frozenlake.")
    if group_size < 1:
        raise ValueError(f"`group_size` must be at least 1, got {group_size}.")
    if partner is not None:
        _require_partner(environment, policy, partner)
    bootstrap = bootstrap and policy.model.value is not None and environment.num_players == 1
    if bootstrap:
        _require_room(policy)
    speakers = (policy,) if partner is None else (policy, partner)
    sampling = Sampling() if sampling is None else sampling
    sample_task = environment.sample_task if sample_task is None else sample_task

    def play(
        params: Params, key: Array, group: Array, num_rows: int | None = None, *, temperature: Array | None = None
    ) -> Episode:
        chosen = sampling if temperature is None else sampling.replace(temperature=temperature)
        everyone = tuple(zip(speakers, (params,) if partner is None else params, strict=True))
        take_turn = partial(_take_turn, environment, everyone, chosen)
        task_key, reset_key, play_key = jax.random.split(key, 3)
        task = jax.vmap(lambda g: sample_task(jax.random.fold_in(task_key, g), level_of(level, g)))(group)
        start = jax.vmap(lambda g, t: environment.reset(jax.random.fold_in(reset_key, g), t))(group, task)
        prompts = render_prompts(environment, policy, task)
        num_episodes = group.shape[0] * group_size
        index = (group[:, None] * group_size + jnp.arange(group_size)[None]).reshape(-1)
        keys = jax.vmap(lambda i: jax.random.fold_in(play_key, i))(index)
        row = min(num_rows or num_episodes, num_episodes)
        loop = _begin(environment, everyone, start, prompts, row, num_episodes, group_size, bootstrap)

        def step(loop: _Loop) -> _Loop:
            loop, over = take_turn(keys, index, loop)
            return _refill(everyone, start, prompts, group_size, loop, over)

        loop = jax.lax.while_loop(lambda loop: jnp.any(loop.episode < num_episodes), step, loop)
        repeat = partial(jnp.repeat, repeats=group_size, axis=0)
        return assemble(
            policy.layout,
            loop.turns,
            prompts=jax.tree.map(repeat, prompts),
            success=loop.success,
            group=repeat(group),
            task=jax.tree.map(repeat, task),
        ).replace(bootstrap_value=loop.bootstrap_value)

    return play


def _require_partner(environment: Environment, policy: LanguagePolicy, partner: LanguagePolicy) -> None:
    if environment.num_players < 2:
        raise ValueError(f"`partner` must be null in a world of one seat, got one in {environment.name!r}.")
    if partner.tokenizer.data != policy.tokenizer.data or partner.layout != policy.layout:
        raise ValueError(
            f"`partner` must have the tokenizer and the layout of the policy, got {partner.tokenizer.name!r} with "
            f"{partner.layout} and {policy.tokenizer.name!r} with {policy.layout}; try another model only."
        )


def _require_room(policy: LanguagePolicy) -> None:
    needed, most = policy.layout.length + policy.layout.observation, policy.model.max_positions
    if most is not None and most < needed:
        raise ValueError(
            f"`model.max_positions` must hold an episode and the observation that follows it, {needed} tokens, for a "
            f"model with a value head, got {most}; try fewer `num_turns`."
        )


def _begin(
    environment: Environment,
    everyone: Speakers,
    start: tuple[State, Any],
    prompts: tuple[Array, Array],
    num_rows: int,
    num_episodes: int,
    group_size: int,
    bootstrap: bool,
) -> _Loop:
    episode = jnp.arange(num_rows, dtype=jnp.int32)
    state, timestep = jax.tree.map(lambda leaf: leaf[episode // group_size], start)
    policy, prompt = everyone[0][0], jax.tree.map(lambda leaf: leaf[episode // group_size], prompts)
    fresh = jnp.ones(num_rows, bool)

    def talk(speaker: LanguagePolicy, params: Params) -> Conversation:
        nothing = begin_conversation(speaker, num_rows, environment.num_players, successors=bootstrap)
        return read_prompts(speaker, params, nothing, prompt, fresh)

    return _Loop(
        talk=tuple(talk(*speaker) for speaker in everyone),
        state=state,
        timestep=timestep,
        episode=episode,
        turn=jnp.zeros(num_rows, jnp.int32),
        upcoming=jnp.int32(num_rows),
        turns=empty_turns(policy.layout, num_episodes, environment.num_players),
        success=jnp.zeros(num_episodes, bool),
        bootstrap_value=jnp.zeros(num_episodes) if bootstrap else None,
    )


def _take_turn(
    environment: Environment, everyone: Speakers, sampling: Sampling, keys: Array, index: Array, loop: _Loop
) -> tuple[_Loop, Array]:
    """Observes, speaks and steps in every row; returns the loop and where an episode is over."""
    policy, num_episodes = everyone[0][0], keys.shape[0]
    live = loop.episode < num_episodes
    row = jnp.minimum(loop.episode, num_episodes - 1)
    row_keys = keys[row]
    row_keys = jax.vmap(lambda key, turn: jax.random.split(jax.random.fold_in(key, turn), 3))(row_keys, loop.turn)
    player = jnp.zeros_like(loop.turn) if loop.timestep.player is None else loop.timestep.player
    fingerprint = jax.vmap(environment.text.fingerprint)(loop.state)
    own = jnp.ones(player.shape, bool) if len(everyone) == 1 else index[row] % environment.num_players == player
    talk, turns = [], []
    for speaker, talk_before, speaks in zip(everyone, loop.talk, (own, ~own)):
        talk_after, turn = answer(
            *speaker,
            talk_before,
            loop.timestep.observation,
            keys=row_keys,
            sampling=sampling,
            player=player,
            live=live & speaks,
        )
        talk.append(talk_after)
        turns.append(turn)
    turn = turns[0] if len(turns) == 1 else jax.tree.map(partial(_choose_rows, own), *turns)
    words, parsed = parse_action(policy, turn, environment.action_space.shape[0])
    state, timestep = jax.vmap(environment.step)(row_keys[:, 2], loop.state, words)
    cut = loop.turn + 1 >= policy.layout.num_turns
    turn = turn.replace(
        action_mask=turn.action_mask & own[:, None],
        thought_mask=turn.thought_mask & own[:, None],
        behavior_log_prob=turn.behavior_log_prob * own[:, None],
        sampling_log_prob=turn.sampling_log_prob * own[:, None],
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
    ended = jnp.where(over, loop.episode, num_episodes)
    bootstrap_value = loop.bootstrap_value
    if bootstrap_value is not None:
        value = _value_cut(*everyone[0], talk[0], timestep.observation, over & turn.truncated)
        bootstrap_value = bootstrap_value.at[ended].set(value, mode="drop")
    loop = loop.replace(
        talk=tuple(talk),
        state=state,
        timestep=timestep,
        turn=loop.turn + 1,
        turns=jax.tree.map(put, loop.turns, turn),
        success=loop.success.at[ended].set(timestep.info["success"], mode="drop"),
        bootstrap_value=bootstrap_value,
    )
    return loop, over


def _value_cut(policy: LanguagePolicy, params: Params, talk: Conversation, observation: Array, cut: Array) -> Array:
    """Returns the value of what follows rows that are cut, zero in others; nothing is computed while none is."""

    def value() -> Array:
        return jnp.where(cut, value_successors(policy, params, talk, observation), 0.0)

    return jax.lax.cond(jnp.any(cut), value, lambda: jnp.zeros(cut.shape))


def _refill(
    everyone: Speakers,
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
    fresh = jax.tree.map(lambda leaf: leaf[group], start)
    state, timestep = jax.tree.map(partial(_choose_rows, over), fresh, (loop.state, loop.timestep))
    loop = loop.replace(
        state=state,
        timestep=timestep,
        episode=episode,
        turn=jnp.where(over, 0, loop.turn),
        upcoming=loop.upcoming + jnp.sum(over).astype(jnp.int32),
    )
    prompt = jax.tree.map(lambda leaf: leaf[group], prompts)
    some = jnp.any(over & (episode < num_episodes))

    def refill(policy: LanguagePolicy, params: Params, talk: Conversation) -> Conversation:
        if not policy.layout.prompt:
            return read_prompts(policy, params, talk, None, over)
        return jax.lax.cond(
            some, lambda talk: read_prompts(policy, params, talk, prompt, over), lambda talk: talk, talk
        )

    return loop.replace(talk=tuple(refill(*speaker, talk) for speaker, talk in zip(everyone, loop.talk)))


def _choose_rows(condition: Array, when_true: Array, when_false: Array) -> Array:
    return jnp.where(condition.reshape(-1, *(1,) * (when_false.ndim - 1)), when_true, when_false)


def _put(episode: Array, turn: Array, buffer: Array, value: Array) -> Array:
    """Writes rows `[B, ...]` to `buffer[episode, turn]`; an episode out of range is dropped."""
    return buffer.at[episode, turn].set(value.astype(buffer.dtype), mode="drop")

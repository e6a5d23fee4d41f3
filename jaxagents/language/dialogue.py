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
from jaxagents.language.turns import Turn, assemble, empty_turns, player_of, render_prompts, step_worlds
from jaxagents.ops.checks import check_counts
from jaxagents.ops.conditions import any_of_batch
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params, PyTree, State, TimeStep

Actors = tuple[tuple[LanguagePolicy, Params], ...]
"""The policy, and its partner if there is one, each with its parameters."""


@struct.dataclass
class _Plan:
    """What is fixed before the first turn, for N episodes of n groups.

    Attributes:
        start: state and time step of the environments, leaves `[n, ...]`.
        prompts: tokens and mask `[n, P]`.
        index: int32 `[N]`, global index of each episode.
        keys: typed keys `[N]`.
        max_turns: int32 `[n]`, number of turns after which episodes are cut off.
        script: int32 `[n, K, M]` word ids of the first actions; None: no forced actions.
    """

    start: tuple[State, TimeStep]
    prompts: tuple[Array, Array]
    index: Array
    keys: Array
    max_turns: Array
    script: Array | None

    def of_group(self, episode: Array, per_group: PyTree) -> PyTree:
        """Selects the entries of the groups of episodes `[B]`; of the last group for indices beyond them."""
        num_groups, num_episodes = self.max_turns.shape[0], self.index.shape[0]
        group = jnp.minimum(episode, num_episodes - 1) // (num_episodes // num_groups)
        return jax.tree.map(lambda leaf: leaf[group], per_group)


@struct.dataclass
class _Loop:
    """State of the loop: B rows, each with its own episode, out of N episodes in total.

    Attributes:
        chats: the tokens that every row has read and generated, for every actor.
        state: states of the environments.
        timestep: time steps of the environments.
        episode: int32 `[B]`, index of each row's episode; N if none is left for it.
        turn: int32 `[B]`, index of the turn in the episode.
        upcoming: int32, index of the next episode to start.
        turns: `Turn` with leaves `[N, T, ...]`.
        success: bool `[N]`, whether the episodes succeeded.
        bootstrap_value: float32 `[N]`, values after episodes that were cut off; None if not requested.
    """

    chats: tuple[Conversation, ...]
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
    parts: Sequence[str] = (),
) -> Callable[..., Episode]:
    """Makes the function that plays groups of episodes from their first to their last turn.

    Every turn renders the observation, extends the cache by it, decodes an action (after a thought, if the layout has
    room for one), parses it and steps the environment. Rows whose episode is over start the next one at once, so that a
    finished episode costs nothing; the loop ends when all episodes have ended. An episode depends only on its index,
    not on the row or device that plays it.

    The function is `(params, key, group int32 [n], num_rows=None, *, temperature=None, task=None, start=None,
    script=None, max_turns=None) -> Episode`, for the `N = n * G` episodes of the groups with these global indices. With
    a partner, `params` is a pair. Further arguments:

    - `num_rows`: number of episodes that are played at once; None: all of them.
    - `temperature`: float32 `[]`, replaces that of `sampling`.
    - `task`: leaves `[n, ...]`, tasks to play; None: samples them.
    - `start`: state and time step of the environment, leaves `[n, ...]`, from which to continue; None: resets.
    - `script`: int32 `[n, K, M]` word ids of the actions of the first turns, -1 if there is none. They are forced,
      without a thought, and do not count as sampled.
    - `max_turns`: int32 `[n]`, turns after which an episode is cut off; at most, and by default, `layout.num_turns`.

    Args:
        environment: unbatched text world.
        policy: policy, whose layout defines the numbers of tokens and turns and how much of the past is visible. If a
            context has fewer turns than an episode, it is a ring of that many blocks: older turns are overwritten.
        group_size: G, number of episodes per task; they start in the same state.
        sampling: how tokens are drawn; None: samples from the model.
        sample_task: samples tasks; None: the environment's function; `environment.text.sample_held_out_task` for
            others.
        level: level of the tasks; a list is cycled through.
        partner: takes all other seats of a game; `policy` itself, or one with another model but the same tokenizer and
            layout. In episode i the policy has seat `i % num_players`. A partner's tokens do not count as sampled.
        bootstrap: whether to compute `Episode.bootstrap_value`, if the model has a value head and the world one player:
            for episodes that were cut off, by the world or by `max_turns`, the value of the observation that followed,
            had they continued. Games do not show the observations of all players at their end, and have no such values.
        parts: names of values that the world reports after every turn; float32 `[N, T]` in `Episode.extras`.

    Returns:
        The function.

    Raises:
        ValueError: the environment is not a text world, `group_size` is not positive, the partner does not match, the
            model has no room for bootstrapping, or the world reports no such part; when traced, a `start` without its
            `task`.
    """
    if environment.text is None:
        raise ValueError(f"`environment` must be a text world, got {environment.name!r}; try environment=frozenlake.")
    check_counts(group_size=group_size)
    if partner is not None:
        _require_partner(environment, policy, partner)
    bootstrap = bootstrap and policy.model.value is not None and environment.num_players == 1
    if bootstrap:
        _require_room(policy)
    if parts:
        _require_parts(environment, parts)
    policies = (policy,) if partner is None else (policy, partner)
    sampling = Sampling() if sampling is None else sampling
    sample_task = environment.sample_task if sample_task is None else sample_task

    def play(
        params: Params,
        key: Array,
        group: Array,
        num_rows: int | None = None,
        *,
        temperature: Array | None = None,
        task: PyTree | None = None,
        start: tuple[State, TimeStep] | None = None,
        script: Array | None = None,
        max_turns: Array | None = None,
    ) -> Episode:
        if start is not None and task is None:
            raise ValueError("`task` must be given with `start`, got None; try the tasks that the states are of.")
        chosen = sampling if temperature is None else sampling.replace(temperature=temperature)
        actors = tuple(zip(policies, (params,) if partner is None else params, strict=True))
        task_key, reset_key, play_key = jax.random.split(key, 3)
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        if task is None:
            task = jax.vmap(lambda key, g: sample_task(key, level_of(level, g)))(fold(task_key, group), group)
        index = (group[:, None] * group_size + jnp.arange(group_size)[None]).reshape(-1)
        most = jnp.full(group.shape, policy.layout.num_turns)
        plan = _Plan(
            start=jax.vmap(environment.reset)(fold(reset_key, group), task) if start is None else start,
            prompts=render_prompts(environment, policy, task),
            index=index,
            keys=fold(play_key, index),
            max_turns=most if max_turns is None else jnp.minimum(max_turns, most),
            script=script,
        )
        loop = _begin(environment, actors, plan, min(num_rows or index.shape[0], index.shape[0]), bootstrap, parts)

        def step(loop: _Loop) -> _Loop:
            return _refill(actors, plan, *_take_turn(environment, actors, chosen, plan, loop))

        loop = jax.lax.while_loop(lambda loop: jnp.any(loop.episode < index.shape[0]), step, loop)
        repeat = partial(jnp.repeat, repeats=group_size, axis=0)
        return assemble(
            policy.layout,
            loop.turns,
            prompts=jax.tree.map(repeat, plan.prompts),
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


def _require_parts(environment: Environment, parts: Sequence[str]) -> None:
    def report(key: Array) -> PyTree:
        return environment.reset(key, environment.sample_task(key))[1].info.get("metrics", {})

    there = sorted(jax.eval_shape(report, jax.random.key(0)))
    for name in parts:
        if name not in there:
            raise ValueError(
                f"`parts` must be what {environment.name!r} reports, got {name!r}; "
                f"there is {', '.join(there) or 'none'}."
            )


def _begin(
    environment: Environment, actors: Actors, plan: _Plan, num_rows: int, bootstrap: bool, parts: Sequence[str]
) -> _Loop:
    episode, num_episodes = jnp.arange(num_rows, dtype=jnp.int32), plan.index.shape[0]
    (state, timestep), prompt = plan.of_group(episode, (plan.start, plan.prompts))
    fresh = jnp.ones(num_rows, bool)

    def begin(policy: LanguagePolicy, params: Params) -> Conversation:
        nothing = begin_conversation(policy, num_rows, environment.num_players, successors=bootstrap)
        return read_prompts(policy, params, nothing, prompt, fresh)

    return _Loop(
        chats=tuple(begin(*actor) for actor in actors),
        state=state,
        timestep=timestep,
        episode=episode,
        turn=jnp.zeros(num_rows, jnp.int32),
        upcoming=jnp.int32(num_rows),
        turns=empty_turns(actors[0][0].layout, num_episodes, environment.num_players, parts),
        success=jnp.zeros(num_episodes, bool),
        bootstrap_value=jnp.zeros(num_episodes) if bootstrap else None,
    )


def _take_turn(
    environment: Environment, actors: Actors, sampling: Sampling, plan: _Plan, loop: _Loop
) -> tuple[_Loop, Array]:
    """Observes, speaks and steps in every row; returns the loop, and whether episodes are over."""
    policy, num_episodes = actors[0][0], plan.index.shape[0]
    live = loop.episode < num_episodes
    row = jnp.minimum(loop.episode, num_episodes - 1)
    row_keys = jax.vmap(lambda key, turn: jax.random.split(jax.random.fold_in(key, turn), 3))(plan.keys[row], loop.turn)
    player = player_of(loop.timestep, loop.turn)
    own = jnp.ones(player.shape, bool) if len(actors) == 1 else plan.index[row] % environment.num_players == player
    forced = _forced(plan, loop)
    chats, turns = [], []
    for actor, chat, acts in zip(actors, loop.chats, (own, ~own)):
        chat, turn = answer(
            *actor,
            chat,
            loop.timestep.observation,
            keys=row_keys,
            sampling=sampling,
            player=player,
            live=live & acts,
            forced=forced,
        )
        chats.append(chat)
        turns.append(turn)
    turn = turns[0] if len(turns) == 1 else jax.tree.map(partial(where_rows, own), *turns)
    action, parsed = parse_action(policy, turn, environment.action_space.shape[0])
    if forced is not None:
        is_forced = forced[:, 0] >= 0
        action, parsed = where_rows(is_forced, forced, action), parsed | is_forced
    cut = loop.turn + 1 >= plan.of_group(row, plan.max_turns)
    state, timestep, turn = step_worlds(
        environment,
        row_keys[:, 2],
        loop.state,
        loop.timestep,
        action,
        _of_policy(turn, own),
        live=live,
        parsed=parsed,
        cut=cut,
        parts=tuple(loop.turns.parts),
    )
    over = live & (turn.terminated | turn.truncated)
    ended = jnp.where(over, loop.episode, num_episodes)
    bootstrap_value = loop.bootstrap_value
    if bootstrap_value is not None:
        value = _value_cut(*actors[0], chats[0], timestep.observation, over & turn.truncated)
        bootstrap_value = bootstrap_value.at[ended].set(value, mode="drop")
    loop = loop.replace(
        chats=tuple(chats),
        state=state,
        timestep=timestep,
        turn=loop.turn + 1,
        turns=jax.tree.map(partial(_put, loop.episode, loop.turn), loop.turns, turn),
        success=loop.success.at[ended].set(timestep.info["success"], mode="drop"),
        bootstrap_value=bootstrap_value,
    )
    return loop, over


def _of_policy(turn: Turn, own: Array) -> Turn:
    """Masks the tokens of the other policy, so that none of them is learned."""
    return turn.replace(
        action_mask=turn.action_mask & own[:, None],
        thought_mask=turn.thought_mask & own[:, None],
        behavior_log_prob=turn.behavior_log_prob * own[:, None],
        sampling_log_prob=turn.sampling_log_prob * own[:, None],
    )


def _forced(plan: _Plan, loop: _Loop) -> Array | None:
    """Returns the actions that rows must take now, int32 `[B, M]`, all -1 if they are free; None without a script."""
    if plan.script is None:
        return None
    script = plan.of_group(loop.episode, plan.script)
    turn = jnp.minimum(loop.turn, script.shape[1] - 1)
    action = jnp.take_along_axis(script, turn[:, None, None], axis=1)[:, 0]
    return jnp.where((loop.turn < script.shape[1])[:, None], action, -1)


def _value_cut(policy: LanguagePolicy, params: Params, chat: Conversation, observation: Array, cut: Array) -> Array:
    """Returns the value after rows that are cut off, zero for others; nothing is computed while there are none."""

    def value() -> Array:
        return jnp.where(cut, value_successors(policy, params, chat, observation), 0.0)

    return jax.lax.cond(any_of_batch(jnp.any(cut)), value, lambda: jnp.zeros(cut.shape))


def _refill(actors: Actors, plan: _Plan, loop: _Loop, over: Array) -> _Loop:
    """Gives the next episodes to rows whose episode is over, in order, while there are any."""
    num_episodes = plan.index.shape[0]
    rank = jnp.cumsum(over) - over
    episode = jnp.where(over, jnp.minimum(loop.upcoming + rank, num_episodes), loop.episode).astype(jnp.int32)
    fresh, prompt = plan.of_group(episode, (plan.start, plan.prompts))
    state, timestep = jax.tree.map(partial(where_rows, over), fresh, (loop.state, loop.timestep))
    loop = loop.replace(
        state=state,
        timestep=timestep,
        episode=episode,
        turn=jnp.where(over, 0, loop.turn),
        upcoming=loop.upcoming + jnp.sum(over).astype(jnp.int32),
    )
    some = any_of_batch(jnp.any(over & (episode < num_episodes)))

    def refill(policy: LanguagePolicy, params: Params, chat: Conversation) -> Conversation:
        if not policy.layout.prompt:
            return read_prompts(policy, params, chat, None, over)
        return jax.lax.cond(
            some, lambda chat: read_prompts(policy, params, chat, prompt, over), lambda chat: chat, chat
        )

    return loop.replace(chats=tuple(refill(*actor, chat) for actor, chat in zip(actors, loop.chats)))


def _put(episode: Array, turn: Array, buffer: Array, value: Array) -> Array:
    """Writes rows `[B, ...]` to `buffer[episode, turn]`; episodes out of range are dropped."""
    return buffer.at[episode, turn].set(value.astype(buffer.dtype), mode="drop")

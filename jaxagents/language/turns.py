"""The tokens of a turn: how texts are rendered into them, and how turns become episodes."""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.ops.rows import where_rows
from jaxagents.ops.seats import reward_until_next_turn
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Layout, PyTree, State, Task, TimeStep


@struct.dataclass
class Part:
    """Consecutive tokens in a turn, `[B, n]`.

    Attributes:
        tokens: int32, token ids.
        mask: bool, True = token, False = padding.
        log_prob: float32, see `Episode.behavior_log_prob`; None for tokens that were not sampled.
        sampling_log_prob: float32, see `Episode`; None for tokens that were not sampled.
        thought: whether it is a thought, static.
    """

    tokens: Array
    mask: Array
    log_prob: Array | None = None
    sampling_log_prob: Array | None = None
    thought: bool = struct.field(pytree_node=False, default=False)


@struct.dataclass
class Turn:
    """One turn, with the fields of `Episode`: those of tokens `[..., S]`, the others `[...]`.

    In a game of P players, `reward` is `[..., P]`, the rewards of all of them. `parts` are the values that the world
    reports after the turn, float32 by name, see `environments.text.world.Status`; empty if not requested.
    """

    tokens: Array
    token_mask: Array
    action_mask: Array
    thought_mask: Array
    position: Array
    behavior_log_prob: Array
    sampling_log_prob: Array
    agent: Array
    reward: Array
    valid: Array
    action_valid: Array
    terminated: Array
    truncated: Array
    fingerprint: Array
    parts: Mapping[str, Array] = struct.field(default_factory=dict)


def empty_turns(layout: Layout, num_episodes: int, num_seats: int = 1, parts: Sequence[str] = ()) -> Turn:
    """Returns empty turns `[N, T, ...]`, which did not take place."""
    shape = (num_episodes, layout.num_turns)
    of_tokens = (*shape, layout.turn)
    flags = {name: jnp.zeros(shape, bool) for name in ("valid", "action_valid", "terminated", "truncated")}
    masks = {name: jnp.zeros(of_tokens, bool) for name in ("token_mask", "action_mask", "thought_mask")}
    return Turn(
        tokens=jnp.zeros(of_tokens, jnp.int32),
        position=jnp.zeros(of_tokens, jnp.int32),
        behavior_log_prob=jnp.zeros(of_tokens, jnp.float32),
        sampling_log_prob=jnp.zeros(of_tokens, jnp.float32),
        agent=jnp.zeros(shape, jnp.int32),
        reward=jnp.zeros(shape if num_seats == 1 else (*shape, num_seats), jnp.float32),
        fingerprint=jnp.zeros(shape, jnp.uint32),
        parts={name: jnp.zeros(shape, jnp.float32) for name in parts},
        **flags,
        **masks,
    )


def join_parts(parts: Sequence[Part], first_position: Array) -> Turn:
    """Joins the parts of a turn; the environment's results are not yet filled in (zeros).

    Args:
        parts: parts in order, with S tokens in total.
        first_position: int32 `[B]`, position of the first token.

    Returns:
        The turn, leaves `[B, S]` and `[B]`.
    """

    def join(values: list[Array]) -> Array:
        return jnp.concatenate(values, axis=1)

    def zeros(part: Part) -> Array:
        return jnp.zeros(part.mask.shape, jnp.float32)

    mask = join([part.mask for part in parts])
    nothing = jnp.zeros(mask.shape[0], jnp.float32)
    off = jnp.zeros(mask.shape[0], bool)
    return Turn(
        tokens=join([part.tokens for part in parts]),
        token_mask=mask,
        action_mask=join([part.mask & (part.log_prob is not None) for part in parts]),
        thought_mask=join([part.mask & part.thought for part in parts]),
        position=first_position[:, None] + jnp.cumsum(mask, axis=1) - mask,
        behavior_log_prob=join([zeros(part) if part.log_prob is None else part.log_prob for part in parts]),
        sampling_log_prob=join([zeros(part) if part.log_prob is None else part.sampling_log_prob for part in parts]),
        agent=jnp.zeros(mask.shape[0], jnp.int32),
        reward=nothing,
        valid=off,
        action_valid=off,
        terminated=off,
        truncated=off,
        fingerprint=jnp.zeros(mask.shape[0], jnp.uint32),
    )


def render_observations(policy: LanguagePolicy, observation: Array, begun: Array) -> tuple[Array, Array]:
    """Renders observations between their marks, or in the frame of a chat template.

    Args:
        policy: policy that defines words, marks and room.
        observation: int32 `[B, K]` word ids.
        begun: bool `[B]`, whether the agent that reads has had a turn before.

    Returns:
        Tokens and mask `[B, layout.observation]`; the last column is the mark that opens the policy's output.
    """
    marks, layout, frames = policy.tokenizer.marks, policy.layout, policy.lexicon.frames
    if frames is not None:
        return jax.vmap(partial(frames.observation, length=layout.observation))(observation, begun)
    tokens, mask = jax.vmap(lambda words: policy.lexicon.render(words, layout.observation - 2))(observation)
    opening = marks["think"] if layout.thought else marks["act"]
    return _surround(tokens, marks["observation"], opening), _surround(mask, True, True)


def render_prompts(environment: Environment, policy: LanguagePolicy, task: Task) -> tuple[Array, Array]:
    """Renders the prompts of tasks with leaves `[n, ...]`; tokens and mask are `[n, layout.prompt]`."""
    if not policy.layout.prompt:
        num_tasks = jax.tree.leaves(task)[0].shape[0]
        return jnp.zeros((num_tasks, 0), jnp.int32), jnp.zeros((num_tasks, 0), bool)
    return render_prompt_words(policy, jax.vmap(environment.text.prompt)(task))


def render_prompt_words(policy: LanguagePolicy, words: Array) -> tuple[Array, Array]:
    """Renders prompts, int32 `[n, P]` word ids; tokens and mask are `[n, layout.prompt]`."""
    frames = policy.lexicon.frames
    render = policy.lexicon.render if frames is None else frames.prompt
    return jax.vmap(lambda prompt: render(prompt, policy.layout.prompt))(words)


def _surround(values: Array, first: int | bool, last: int | bool) -> Array:
    shape = (values.shape[0], 1)
    return jnp.concatenate([jnp.full(shape, first, values.dtype), values, jnp.full(shape, last, values.dtype)], axis=1)


def assemble(
    layout: Layout,
    turns: Turn,
    *,
    prompts: tuple[Array, Array],
    success: Array,
    group: Array,
    task: PyTree,
) -> Episode:
    """Assembles episodes from their turns.

    Args:
        layout: layout of the tokens.
        turns: turns, leaves `[N, T, ...]`.
        prompts: tokens and mask `[N, P]`.
        success: bool `[N]`, whether episodes succeeded.
        group: int32 `[N]`, groups of the episodes.
        task: tasks, leaves `[N, ...]`.

    Returns:
        The episodes. In games, the reward of a turn is what its player earned until the player's next turn or the end,
        and `seat_return` `[N, P]` is the total reward of every player. The parts of turns are `extras`.
    """
    reward, seat_return = turns.reward, None
    if reward.ndim == 3:
        seat_return = jnp.sum(jnp.where(turns.valid[:, :, None], reward, 0.0), axis=1)
        reward = jax.vmap(reward_until_next_turn)(reward, turns.agent, turns.valid)
    # A turn has tokens only if it took place.
    took_place = turns.valid[:, :, None]
    return Episode(
        prompt_tokens=prompts[0],
        prompt_mask=prompts[1],
        tokens=turns.tokens,
        token_mask=turns.token_mask & took_place,
        action_mask=turns.action_mask & took_place,
        thought_mask=turns.thought_mask & took_place,
        position=turns.position,
        agent=jnp.broadcast_to(turns.agent[:, :, None], turns.tokens.shape),
        behavior_log_prob=turns.behavior_log_prob,
        sampling_log_prob=turns.sampling_log_prob,
        reward=reward,
        valid=turns.valid,
        action_valid=turns.action_valid,
        terminated=turns.terminated,
        truncated=turns.truncated,
        fingerprint=turns.fingerprint,
        success=success,
        group=group,
        task=task,
        seat_return=seat_return,
        extras=dict(turns.parts),
        layout=layout,
    )


def render_and_close(policy: LanguagePolicy, words: Array, *, size: int, mark: str) -> tuple[Array, Array]:
    """Renders an answer from given words and closes it with a mark.

    Args:
        policy: policy that defines words and marks.
        words: int32 `[B, K]` word ids.
        size: largest number of tokens, including the mark.
        mark: name of the mark.

    Returns:
        Tokens and mask `[B, size]`.
    """
    frames = policy.lexicon.frames
    render = policy.lexicon.render if frames is None else frames.action if mark == "end" else frames.thought
    tokens, mask = jax.vmap(lambda row: render(row, size - 1))(words)
    length, column = jnp.sum(mask, axis=1, keepdims=True), jnp.arange(size)[None]
    tokens = jnp.where(column == length, policy.tokenizer.marks[mark], jnp.pad(tokens, ((0, 0), (0, 1))))
    return tokens, column <= length


def script_parts(policy: LanguagePolicy, action: Array, thought: Array | None = None) -> list[Part]:
    """Renders the part of a turn after the observation from given words, as if the policy had sampled it.

    Args:
        policy: policy that defines words, marks and room.
        action: int32 `[B, M]` word ids.
        thought: int32 `[B, H]` word ids; None: an empty thought if the layout has room for thoughts.

    Returns:
        The parts, with log-probabilities of zero.
    """
    layout, num_rows = policy.layout, action.shape[0]

    def part(tokens: Array, mask: Array, thought: bool) -> Part:
        nothing = jnp.zeros(mask.shape, jnp.float32)
        return Part(tokens=tokens, mask=mask, log_prob=nothing, sampling_log_prob=nothing, thought=thought)

    written = part(*render_and_close(policy, action, size=layout.action, mark="end"), False)
    if not layout.thought:
        return [written]
    words = jnp.full((num_rows, 1), -1, jnp.int32) if thought is None else thought
    nothing = jnp.zeros((num_rows, 1), jnp.int32)
    # The act mark after a thought is only needed if the thought is cut off.
    no_mark = Part(tokens=nothing, mask=nothing.astype(bool))
    return [part(*render_and_close(policy, words, size=layout.thought, mark="act"), True), no_mark, written]


def player_of(timestep: TimeStep, turn: Array) -> Array:
    """Returns the player who acts next, int32 `[B]`; 0 in single-player worlds. `turn` defines the number of rows."""
    return jnp.zeros(turn.shape, jnp.int32) if timestep.player is None else timestep.player


def step_worlds(
    environment: Environment,
    keys: Array,
    state: State,
    timestep: TimeStep,
    action: Array,
    turn: Turn,
    *,
    live: Array,
    parsed: Array,
    cut: Array,
    parts: Sequence[str] = (),
) -> tuple[State, TimeStep, Turn]:
    """Acts in every row, and writes the world's results into the turn.

    Args:
        environment: unbatched environment.
        keys: keys `[B]`.
        state: states, leaves `[B, ...]`.
        timestep: time steps in which the action is taken.
        action: int32 `[B, M]` word ids.
        turn: turn as returned by `conversation.answer`.
        live: bool `[B]`, rows in which the turn takes place.
        parsed: bool `[B]`, whether the action could be parsed.
        cut: bool `[B]`, whether the turn is the last one in any case.
        parts: names of values that the world reports, which are written into the turn.

    Returns:
        The next states and time steps, and the turn.
    """
    after_state, after = jax.vmap(environment.step)(keys, state, action)
    reported = {name: after.info["metrics"][name] for name in parts}
    turn = turn.replace(
        parts={name: jnp.where(live, value, 0.0).astype(jnp.float32) for name, value in reported.items()},
        reward=where_rows(live, after.reward, jnp.zeros_like(after.reward)),
        valid=live,
        action_valid=parsed & after.info["valid"],
        terminated=after.terminated,
        truncated=(after.truncated | cut) & ~after.terminated,
        fingerprint=jax.vmap(environment.text.fingerprint)(state),
        agent=player_of(timestep, live),
    )
    return after_state, after, turn

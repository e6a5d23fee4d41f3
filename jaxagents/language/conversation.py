"""A language policy that answers one observation at a time and remembers the conversation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.language.generate import Generation, Sampling, decode
from jaxagents.language.turns import Part, Turn, join_parts, render_observations, render_prompt_words, script_parts
from jaxagents.networks.attention import attention_mask, causal_mask
from jaxagents.ops.conditions import any_of_batch
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, LanguagePolicy, Layout, Params, PyTree

_LONG = 256  # Number of tokens of a prompt above which no array with an entry per pair of tokens is made.


@struct.dataclass
class Conversation:
    """The tokens that B rows of a policy have read and generated.

    Attributes:
        cache: keys and values `[B, W]`: the prompt, then a ring of one block per turn of the context, or of the episode
            if several agents take turns, then, if requested, room for one more observation.
        present: bool `[B, W]`, entries that belong to the row's conversation.
        agent: int32 `[B, W]`, agent to whose context an entry belongs; the prompt belongs to all.
        turn: int32 `[B, W]`, index of an entry's turn among those of its agent, -1 for the prompt.
        num_turns: int32 `[B, N]`, number of turns that every agent has taken.
        position: int32 `[B, N]`, position of the next token of every agent.
        cursor: int32, number of turns so far, which determines the block of the ring that is written.
    """

    cache: PyTree
    present: Array
    agent: Array
    turn: Array
    num_turns: Array
    position: Array
    cursor: Array


def begin_conversation(
    policy: LanguagePolicy, num_rows: int, num_agents: int = 1, *, successors: bool = False
) -> Conversation:
    """Returns empty conversations.

    Args:
        policy: policy that speaks.
        num_rows: B, number of rows.
        num_agents: N, number of agents, each with its own context.
        successors: whether to make room for `value_successors` if a context holds a whole episode.
    """
    layout = policy.layout
    # The turns of one agent may be any number of turns apart.
    several = num_agents > 1 and layout.context_turns > 1
    width = layout.prompt + (layout.num_turns if several else min(layout.context_turns, layout.num_turns)) * layout.turn
    width += layout.observation if successors and layout.context_turns >= layout.num_turns else 0
    return Conversation(
        cache=policy.model.init_cache(num_rows, width),
        present=jnp.zeros((num_rows, width), bool),
        agent=jnp.zeros((num_rows, width), jnp.int32),
        turn=jnp.full((num_rows, width), -1, jnp.int32),
        num_turns=jnp.zeros((num_rows, num_agents), jnp.int32),
        position=jnp.zeros((num_rows, num_agents), jnp.int32),
        cursor=jnp.int32(0),
    )


def read_prompts(
    policy: LanguagePolicy, params: Params, chat: Conversation, prompt: tuple[Array, Array] | None, fresh: Array
) -> Conversation:
    """Restarts the conversations of some rows, with a prompt if there is one.

    Args:
        policy: policy that reads.
        params: parameters of the model.
        chat: the conversations so far.
        prompt: tokens and mask `[B, layout.prompt]`; None: no prompt.
        fresh: bool `[B]`, rows to restart.

    Returns:
        The conversations.
    """
    size = policy.layout.prompt
    present = chat.present & ~fresh[:, None]
    chat = chat.replace(
        present=present,
        num_turns=jnp.where(fresh[:, None], 0, chat.num_turns),
        position=jnp.where(fresh[:, None], 0, chat.position),
    )
    if not size or prompt is None:
        return chat
    nothing = chat.replace(present=jnp.zeros_like(present), position=jnp.zeros_like(fresh, jnp.int32))
    seen = None if size > _LONG else jnp.ones_like(present)
    read, _ = _extend(policy, params, nothing, seen, *prompt, jnp.int32(0))
    return chat.replace(
        cache=_where_rows_of_cache(policy, fresh, read.cache, chat.cache),
        present=where_rows(fresh, read.present, present),
        position=jnp.where(fresh[:, None], read.position[:, None], chat.position),
    )


def answer(
    policy: LanguagePolicy,
    params: Params,
    chat: Conversation,
    observation: Array,
    *,
    keys: Array,
    sampling: Sampling,
    player: Array | None = None,
    live: Array | None = None,
    forced: Array | None = None,
) -> tuple[Conversation, Turn]:
    """Reads an observation in every row and generates an answer, in one block of the ring.

    Args:
        policy: policy that speaks.
        params: parameters of the model.
        chat: the conversations so far.
        observation: int32 `[B, K]` word ids.
        keys: typed PRNG keys `[B, 2]`, for the thought and the action.
        sampling: how tokens are drawn.
        player: int32 `[B]`, the agent that reads and speaks; None: the first one.
        live: bool `[B]`, rows that take part; None: all.
        forced: int32 `[B, M]` word ids that rows must say, without a thought, and which do not count as sampled; all -1
            leaves a row free, None: all rows are free.

    Returns:
        The conversations and the turn, leaves `[B, S]` and `[B]`; the world's response is not in it.
    """
    layout, marks = policy.layout, policy.tokenizer.marks
    ring, spare = _blocks(layout, chat)
    start = layout.prompt + (chat.cursor % ring) * layout.turn
    num_rows = observation.shape[0]
    player = jnp.zeros(num_rows, jnp.int32) if player is None else player
    live = jnp.ones(num_rows, bool) if live is None else live
    begun = jnp.take_along_axis(chat.num_turns, player[:, None], axis=1)[:, 0] > 0
    tokens, mask = render_observations(policy, observation, begun)
    parts = [Part(tokens=tokens, mask=mask & live[:, None])]
    work, own, hidden = _read(
        policy, params, chat, player, parts[0], start, layout.turn, context_turns=layout.context_turns
    )
    first_position = work.position - jnp.sum(parts[0].mask, axis=1)
    observed, free = work, live if forced is None else live & (forced[:, 0] < 0)
    extend, decode_part = partial(_extend, policy, params), partial(_decode, policy, params, sampling, free)
    index = start + layout.observation
    if layout.thought:
        work, output = decode_part(work, own, hidden, index, keys[:, 0], stop="act", max_new_tokens=layout.thought)
        parts.append(_to_part(output, thought=True))
        # A thought that used up its budget is closed by force.
        act = jnp.full((num_rows, 1), marks["act"], jnp.int32)
        parts.append(Part(tokens=act, mask=(free & ~output.stopped)[:, None]))
        work, closed = extend(work, own, act, parts[-1].mask, index + layout.thought)
        hidden = jnp.where(output.stopped[:, None], output.hidden, closed)
        index = index + layout.thought + 1
    work, output = decode_part(
        work, own, hidden, index, keys[:, 1], stop="end", max_new_tokens=layout.action, write_last=ring > 1 or spare > 0
    )
    parts.append(_to_part(output, thought=False))
    turn = join_parts(parts, first_position)
    if forced is not None:
        work, turn = _force(policy, params, observed, own, work, turn, forced, live & ~free, start)
    speaks = player[:, None] == jnp.arange(chat.position.shape[1])[None]
    position = jnp.where(speaks, work.position[:, None], chat.position)
    return work.replace(position=position, num_turns=chat.num_turns + speaks, cursor=chat.cursor + 1), turn


def value_successors(policy: LanguagePolicy, params: Params, chat: Conversation, observation: Array) -> Array:
    """Computes the value after the last turn: that of the first token of the next turn, had the episode continued.

    The first agent reads an observation as in `answer`, without keeping it. If a context holds a whole episode, all of
    it is visible, else the newest `layout.context_turns` turns, including the new one.

    Args:
        policy: policy that judges; it must have a value head.
        params: parameters of the model.
        chat: conversations of `begin_conversation(..., successors=True)`, after the last turn.
        observation: int32 `[B, K]` word ids.

    Returns:
        float32 `[B]`.
    """
    layout, player = policy.layout, jnp.zeros(observation.shape[0], jnp.int32)
    ring, spare = _blocks(layout, chat)
    block = ring if spare else chat.cursor % ring
    part = Part(*render_observations(policy, observation, chat.num_turns[:, 0] > 0))
    start, seen = layout.prompt + block * layout.turn, layout.context_turns + (1 if spare else 0)
    _, _, hidden = _read(policy, params, chat, player, part, start, spare or layout.turn, context_turns=seen)
    return policy.model.value(params, hidden)


def parse_action(policy: LanguagePolicy, turn: Turn, num_words: int) -> tuple[Array, Array]:
    """Extracts the words of an answer.

    Args:
        policy: policy that spoke.
        turn: turn as returned by `answer`.
        num_words: M, largest number of words of an action.

    Returns:
        int32 `[B, M]` word ids, all -1 if the text cannot be parsed or has no end; and bool `[B]`, whether it was
        parsed.
    """
    size = policy.layout.action
    tokens, mask = turn.tokens[:, -size:], turn.action_mask[:, -size:]
    words, parsed = jax.vmap(lambda tokens, mask: policy.lexicon.parse(tokens, mask, num_words))(tokens, mask)
    if not policy.lexicon.reads_cut:
        parsed = parsed & jnp.any(mask & policy.tokenizer.is_end(tokens), axis=1)
    return jnp.where(parsed[:, None], words, -1), parsed


def make_answer(policy: LanguagePolicy, num_words: int) -> Callable[..., tuple[Array, Conversation]]:
    """Makes the compiled function that answers observations, for one conversation or a batch.

    Args:
        policy: policy that speaks.
        num_words: M, largest number of words of an action.

    Returns:
        `(params, observation, carry=None, first=None, prompt=None, key=None) -> (action, carry)`. `observation` is
        int32 `[K]` or `[B, K]` word ids, `action` `[M]` or `[B, M]`, all -1 if no action could be parsed. `carry` is
        returned by the previous call, None at the start. `first` (bool) marks the start of an episode, by default when
        there is no carry; there, `prompt` (int32 `[P]` or `[B, P]`) is read first. Without `key` the most probable
        tokens are generated, with a key they are sampled.
    """

    @jax.jit
    def answer_batch(params: Params, observation: Array, carry: Conversation | None, first: Any, prompt: Any, key: Any):
        num_rows = observation.shape[0]
        fresh = jnp.broadcast_to(carry is None if first is None else first, (num_rows,))
        carry = begin_conversation(policy, num_rows) if carry is None else carry
        has_prompt = prompt is not None and policy.layout.prompt
        rendered = render_prompt_words(policy, prompt) if has_prompt else None
        carry = read_prompts(policy, params, carry, rendered, fresh)
        keys = jax.random.split(jax.random.key(0) if key is None else key, (num_rows, 2))
        carry, turn = answer(policy, params, carry, observation, keys=keys, sampling=Sampling(greedy=key is None))
        return parse_action(policy, turn, num_words)[0], carry

    def answer_once(
        params: Params,
        observation: Array,
        carry: Conversation | None = None,
        first: Array | bool | None = None,
        prompt: Array | None = None,
        key: Array | None = None,
    ) -> tuple[Array, Conversation]:
        """Answers observations in ids of the world's words; `reply` takes text, and a `key` samples."""
        observation = jnp.asarray(observation, jnp.int32)
        if observation.ndim not in (1, 2):
            raise ValueError(f"`observation` must have the shape ['K'] or ['B', 'K'], got {list(observation.shape)}.")
        one = observation.ndim == 1
        prompt = None if prompt is None else jnp.asarray(prompt, jnp.int32)
        prompt = prompt[None] if one and prompt is not None else prompt
        action, carry = answer_batch(params, observation[None] if one else observation, carry, first, prompt, key)
        return (action[0] if one else action), carry

    return answer_once


def _where_rows_of_cache(policy: LanguagePolicy, condition: Array, when_true: PyTree, when_false: PyTree) -> PyTree:
    """Selects rows of one cache or the other; the row axis is the one that grows with the number of rows."""
    one, two = (jax.eval_shape(partial(policy.model.init_cache, num_rows, 1)) for num_rows in (1, 2))

    def choose(one: Array, two: Array, new: Array, old: Array) -> Array:
        axis = next(i for i, sizes in enumerate(zip(one.shape, two.shape)) if sizes[0] != sizes[1])
        rows = where_rows(condition, jnp.moveaxis(new, axis, 0), jnp.moveaxis(old, axis, 0))
        return jnp.moveaxis(rows, 0, axis)

    return jax.tree.map(choose, one, two, when_true, when_false)


def _blocks(layout: Layout, chat: Conversation) -> tuple[int, int]:
    """Returns the number of blocks in the ring, and of the tokens of room after it."""
    return divmod(chat.present.shape[1] - layout.prompt, layout.turn)


def _read(
    policy: LanguagePolicy,
    params: Params,
    chat: Conversation,
    player: Array,
    part: Part,
    start: Array | int,
    size: int,
    *,
    context_turns: int,
) -> tuple[Conversation, Array, Array]:
    """Reads an observation into a block; returns the reader's state, own entries bool `[B, W]`, and hidden state."""
    position, turn = (jnp.take_along_axis(x, player[:, None], axis=1) for x in (chat.position, chat.num_turns))
    block = jnp.zeros((player.shape[0], size), jnp.int32)

    def put(values: Array | int, old: Array) -> Array:
        return jax.lax.dynamic_update_slice(old, (block + values).astype(old.dtype), (0, start))

    chat = chat.replace(present=put(0, chat.present), agent=put(player[:, None], chat.agent), turn=put(turn, chat.turn))
    query, key = (turn, player[:, None]), (chat.turn, chat.agent, jnp.ones_like(chat.present))
    own = attention_mask(query, key, context_turns=context_turns)[:, 0]
    work = chat.replace(position=position[:, 0])
    work, hidden = _extend(policy, params, work, own, part.tokens, part.mask, start)
    return work, own, hidden


# Below, the position of a conversation is that of the agent that speaks, `[B]`.


def _extend(
    policy: LanguagePolicy,
    params: Params,
    chat: Conversation,
    own: Array | None,
    tokens: Array,
    mask: Array,
    index: Array | int,
) -> tuple[Conversation, Array]:
    """Reads tokens `[B, S]` into the cache; returns the last hidden state. They see their `own` entries; None: all."""
    size = mask.shape[1]
    present = jax.lax.dynamic_update_slice(chat.present, mask, (0, index))
    if own is None:
        visible = causal_mask(present)  # type: Any
    else:
        causal = jnp.tril(jnp.ones((size, size), bool))[None] & mask[:, None, :]
        visible = jnp.broadcast_to((chat.present & own)[:, None, :], (mask.shape[0], size, chat.present.shape[1]))
        visible = jax.lax.dynamic_update_slice(visible, causal, (0, 0, index))
    positions = chat.position[:, None] + jnp.cumsum(mask, axis=1) - mask
    cache, hidden = policy.model.extend(params, chat.cache, tokens, positions=positions, index=index, mask=visible)
    chat = chat.replace(cache=cache, present=present, position=chat.position + jnp.sum(mask, axis=1))
    return chat, hidden[:, -1]


def _decode(
    policy: LanguagePolicy,
    params: Params,
    sampling: Sampling,
    live: Array,
    chat: Conversation,
    own: Array,
    hidden: Array,
    index: Array,
    keys: Array,
    *,
    stop: str,
    max_new_tokens: int,
    write_last: bool = True,
) -> tuple[Conversation, Generation]:
    cache, output = decode(
        policy.model,
        params,
        chat.cache,
        hidden,
        keys=keys,
        positions=chat.position,
        index=index,
        mask=chat.present & own,
        budget=jnp.where(live, max_new_tokens, 0),
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_ids=policy.tokenizer.ends if stop == "end" else (policy.tokenizer.marks[stop],),
        write_last=write_last,
    )
    present = jax.lax.dynamic_update_slice(chat.present, output.mask, (0, index))
    return chat.replace(cache=cache, present=present, position=chat.position + jnp.sum(output.mask, axis=1)), output


def _force(
    policy: LanguagePolicy,
    params: Params,
    observed: Conversation,
    own: Array,
    work: Conversation,
    turn: Turn,
    action: Array,
    rows: Array,
    start: Array,
) -> tuple[Conversation, Turn]:
    """Replaces what rows would say by given words; all rows then read this turn's output again."""
    begin = policy.layout.observation
    parts = script_parts(policy, action)
    tokens, mask = (jnp.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("tokens", "mask"))
    tokens = jnp.concatenate([turn.tokens[:, :begin], where_rows(rows, tokens, turn.tokens[:, begin:])], axis=1)
    mask = jnp.concatenate([turn.token_mask[:, :begin], where_rows(rows, mask, turn.token_mask[:, begin:])], axis=1)
    turn = turn.replace(
        tokens=tokens,
        token_mask=mask,
        position=turn.position[:, :1] + jnp.cumsum(mask, axis=1) - mask,
    )

    def read_again() -> Conversation:
        return _extend(policy, params, observed, own, tokens[:, begin:], mask[:, begin:], start + begin)[0]

    return jax.lax.cond(any_of_batch(jnp.any(rows)), read_again, lambda: work), turn


def _to_part(output: Generation, *, thought: bool) -> Part:
    fields = {name: getattr(output, name) for name in ("tokens", "mask", "log_prob", "sampling_log_prob")}
    return Part(**fields, thought=thought)

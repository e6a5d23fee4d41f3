"""Language models in which every seat of a game has a separate adapter; observations name the acting seat."""

import functools
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.networks.adapters import Adapter
from jaxagents.networks.attention import dense_mask
from jaxagents.policies.row_adapters import choose_adapters, require_plain_lora, stack_adapters
from jaxagents.types import Array, CausalMask, Environment, LanguagePolicy, Params, PyTree

Names = tuple[tuple[tuple[int, ...], ...], ...]
"""The spellings of every seat's name, each a sequence of tokens."""
_ROOM = 64  # Greatest number of tokens in a name.


def names_of_seats(num_seats: int) -> tuple[str, ...]:
    """Returns the names of the seats' parameters: seat_0, seat_1, ..."""
    return tuple(f"seat_{number}" for number in range(num_seats))


def adapters_of_seats(adapters: Mapping[str, Adapter]) -> Adapter:
    """Makes one adapter from those of all seats.

    Args:
        adapters: adapters by the names of the seats, in order; LoRA without magnitudes, whose ranks and patterns may
            differ.

    Returns:
        The adapter; its parameters are those of every seat, by name. Merging puts the factors beside the kernels, which
        do not change, for the model of `with_adapters_of_seats`.

    Raises:
        ValueError: an adapter is not such a LoRA; or, when initialised, an adapter changes something other than a
            layer's projection.
    """
    for name, adapter in adapters.items():
        require_plain_lora(adapter, f"of {name}")

    def init(key: Array, params: Params) -> PyTree:
        keys = jax.random.split(key, len(adapters))
        own = {name: adapter.init(key, params) for key, (name, adapter) in zip(keys, adapters.items(), strict=True)}
        for path in (path for one in own.values() for path in one):
            if "/layers" not in path:
                raise ValueError(
                    f"`adapter` must change projections of layers only, got {path}; try pattern=qkv/kernel$."
                )
        return own

    def merge(params: Params, own: PyTree) -> Params:
        return stack_adapters(params, [(adapter, own[name]) for name, adapter in adapters.items()])

    description = {name: dict(adapter.description) for name, adapter in adapters.items()}
    return Adapter(init=init, merge=merge, description={"kind": "seats", "adapters": description})


def with_adapters_of_seats(policy: LanguagePolicy, environment: Environment) -> LanguagePolicy:
    """Makes a policy that reads and generates every turn with the adapter of the acting seat.

    The acting seat is the one whose name, "player 0" and so on, comes first in the observation of the turn. A prompt,
    which is the same for all seats, is read once with each adapter, and a seat sees the result for its own. So the text
    of a seat has the same probability as under a model with its adapter merged. Text outside the turns of a game, such
    as free text, is read without an adapter.

    Args:
        policy: policy of the world.
        environment: text world with N seats.

    Returns:
        The policy; the parameters of its model are those that `adapters_of_seats` merges.

    Raises:
        ValueError: the observations do not name the seat.
    """
    num_seats = environment.num_players
    names = _names_in_tokens(policy, environment)
    model, layout, marks, frames = policy.model, policy.layout, policy.tokenizer.marks, policy.lexicon.frames
    prompt, size, turn = layout.prompt, layout.observation, layout.turn
    extra = (num_seats - 1) * prompt  # Room for the prompt as read with the other seats' adapters.
    opening = marks["think"] if layout.thought else marks["act"]
    opening, begins = (opening, (marks["observation"],)) if frames is None else (frames.opening, frames.openings)

    def whose(observation: Array) -> Array:
        framed = reduce(or_, (observation[..., 0] == token for token in begins)) & (
            observation[..., size - 1] == opening
        )
        return jnp.where(framed, find_seat(observation, names), -1)

    def apply(params: Params, tokens: Array, *, positions: Array, mask: Array | CausalMask) -> Array:
        (num_rows, length), mask = tokens.shape, dense_mask(mask)
        if length <= prompt or (length - prompt) % turn:
            nobody = jnp.full(num_rows, -1, jnp.int32)
            return choose_adapters(model, nobody).apply(params, tokens, positions=positions, mask=mask)
        seat = jnp.repeat(whose(tokens[:, prompt:].reshape(num_rows, -1, turn)[..., :size]), turn, axis=1)
        of_prompts = jnp.repeat(jnp.arange(num_seats, dtype=jnp.int32), prompt)[None]
        choice = jnp.concatenate([jnp.where(jnp.any(seat >= 0, axis=1)[:, None], of_prompts, -1), seat], axis=1)
        tokens, positions = (
            jnp.concatenate([jnp.tile(x[:, :prompt], (1, num_seats)), x[:, prompt:]], axis=1)
            for x in (tokens, positions)
        )
        mask = jnp.concatenate([jnp.tile(mask[:, :prompt], (1, num_seats, 1)), mask[:, prompt:]], axis=1)
        mask = _own_prompts(mask, choice, prompt, num_seats)
        return choose_adapters(model, choice).apply(params, tokens, positions=positions, mask=mask)[:, extra:]

    @functools.wraps(model.init_cache)
    def init_cache(batch_size: int, length: int) -> PyTree:
        return {"model": model.init_cache(batch_size, length + extra), "seat": jnp.full(batch_size, -1, jnp.int32)}

    def extend(
        params: Params, cache: PyTree, tokens: Array, *, positions: Array, index: Array, mask: Array | CausalMask
    ) -> tuple[PyTree, Array]:
        mask = dense_mask(mask, index=index, size=tokens.shape[1])

        def read(seat: Array, inner: PyTree, index: Array) -> tuple[PyTree, Array]:
            seen = _own_prompts(mask, seat[:, None], prompt, num_seats)
            chosen = choose_adapters(model, seat)
            return chosen.extend(params, inner, tokens, positions=positions, index=index, mask=seen)

        def read_prompt() -> tuple[PyTree, Array]:
            inner, hidden = cache["model"], jnp.zeros(())
            for number in range(num_seats):
                inner, hidden = read(jnp.full_like(cache["seat"], number), inner, index + number * prompt)
            return inner, hidden

        seat = cache["seat"]
        if tokens.shape[1] == size:
            seat = jnp.where((index - prompt) % turn == 0, whose(tokens), seat)
        if prompt and tokens.shape[1] == prompt < mask.shape[2]:  # The cache of a game has room for its turns, too.
            inner, hidden = jax.lax.cond(index < prompt, read_prompt, lambda: read(seat, cache["model"], index + extra))
        else:
            inner, hidden = read(seat, cache["model"], index + extra)
        return {"model": inner, "seat": seat}, hidden

    return policy._replace(model=model._replace(apply=apply, init_cache=init_cache, extend=extend))


def find_seat(tokens: Array, names: Names) -> Array:
    """Finds the seat whose name comes first; if one name begins with another, the longer one counts.

    Args:
        tokens: int32 `[..., n]`.
        names: names of the seats.

    Returns:
        int32 `[...]`, the index of the seat; -1 if there is no name.
    """
    size, longest = tokens.shape[-1], max(len(pieces) for spellings in names for pieces in spellings)
    padded = jnp.pad(tokens, [(0, 0)] * (tokens.ndim - 1) + [(0, longest - 1)], constant_values=-1)

    def length_at(pieces: tuple[int, ...]) -> Array:
        same = [padded[..., i : i + size] == piece for i, piece in enumerate(pieces)]
        return functools.reduce(jnp.logical_and, same) * len(pieces)

    lengths = [functools.reduce(jnp.maximum, map(length_at, spellings)) for spellings in names]
    begins = functools.reduce(jnp.maximum, lengths)
    first = jnp.argmax(begins > 0, axis=-1, keepdims=True)
    here = jnp.concatenate([jnp.take_along_axis(length, first, axis=-1) for length in lengths], axis=-1)
    return jnp.where(jnp.any(here > 0, axis=-1), jnp.argmax(here, axis=-1), -1).astype(jnp.int32)


def _own_prompts(mask: Array, seat: Array, prompt: int, num_seats: int) -> Array:
    """Shows each query in a mask `[B, S, W]` the prompt of its seat `[B, S]` or `[B, 1]`; without a seat, the last."""
    if not prompt:
        return mask
    own = jnp.where(seat < 0, num_seats - 1, seat)[..., None] == jnp.arange(num_seats)[None, None]
    prompts = mask[:, :, None, :prompt] & own[..., None]
    return jnp.concatenate([prompts.reshape(*mask.shape[:2], -1), mask[:, :, prompt:]], axis=2)


def _names_in_tokens(policy: LanguagePolicy, environment: Environment) -> Names:
    """Renders the names of the seats as tokens, both at the beginning of a text and within it.

    Raises:
        ValueError: the words lack a name, or a first observation does not contain it.
    """
    words, names = list(policy.lexicon.words), []
    room = policy.layout.prompt + policy.layout.turn + 2 * _ROOM  # More than any part of an episode needs.

    def write(*phrases: str) -> tuple[int, ...]:
        tokens, mask = policy.lexicon.render(jnp.asarray([words.index(one) for one in phrases], jnp.int32), room)
        return tuple(int(token) for token in np.asarray(tokens)[np.asarray(mask)])

    for number in range(environment.num_players):
        phrases = [one for one in ((f"player {number}",), ("player", str(number))) if set(one) <= set(words)]
        pairs = [(write(*one), write(one[0], *one)[len(write(one[0])) :]) for one in phrases]
        names.append(tuple(dict.fromkeys(spelling for pair in pairs for spelling in pair)))

    @jax.jit
    def names_its_player(key: Array) -> Array:
        task_key, reset_key = jax.random.split(key)
        _, timestep = environment.reset(reset_key, environment.sample_task(task_key))
        named = find_seat(policy.lexicon.render(timestep.observation, room)[0], tuple(names))
        player: Any = timestep.player
        return jnp.equal(named, player)

    if not all(names) or not names_its_player(jax.random.key(0)):
        raise ValueError(
            f"`environment` must say 'player 0' and so on to the seat that an observation is for, {environment.name!r} "
            "does not; try +wrapper=seats, which puts the names in front."
        )
    return tuple(names)

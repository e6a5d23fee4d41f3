"""Episodes in which somebody else takes some of the actions, and which of the actions were mistakes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.language.relabeling import recorded_words
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, State, Task, TimeStep

_ASKED = 16  # A stream of the key that interventions get, who split it in less.

Intervene = Callable[[Array, State, Array, Array, Array], Array]
"""`(key, state, action int32 [M], after_mistake bool [], expert's int32 [M]) -> action int32 [M]`, which is taken."""


@struct.dataclass
class IntervenedState:
    """State of an environment in which somebody intervenes.

    Attributes:
        inner: of the environment.
        key: uint32 `[2]`, of the interventions to come.
        action: int32 `[M]`, the last one that was taken; -1 at the start.
        after_mistake: bool, it was a mistake.
    """

    inner: State
    key: Array
    action: Array
    after_mistake: Array


class Replay(NamedTuple):
    """What came of N sequences of actions.

    Attributes:
        actions: int32 `[N, T, M]`, that were taken.
        live: bool `[N, T]`, the turn took place.
        mistaken: bool `[N, T]`, it took place and was a mistake.
        success: bool `[N]`.
        thoughts: int32 `[N, T, H]`, of the expert when it was asked in these turns; None where it does not think.
    """

    actions: Array
    live: Array
    mistaken: Array
    success: Array
    thoughts: Array | None = None


def with_interventions(environment: Environment, intervene: Intervene | None = None) -> Environment:
    """Returns an environment in which `intervene` says what is taken in place of the action that was given.

    A mistake is an action after which the success is no closer, `d(s') >= d(s)`; in worlds that do not know the
    distance d, one that is not what the expert said. It is asked once a turn: its choice may be random.

    Args:
        environment: a text world of one seat.
        intervene: chooses the action; None takes the given one.

    Returns:
        The environment; its states are `IntervenedState`s.

    Raises:
        ValueError: not a text world of one seat.
    """
    if environment.text is None or environment.num_players > 1:
        raise ValueError(f"`environment` must be a text world of one seat, got {environment.name!r}.")
    text = environment.text
    asks = intervene is not None or text.distance is None

    def reset(key: Array, task: Task) -> tuple[IntervenedState, TimeStep]:
        reset_key, own_key = jax.random.split(key)
        inner, timestep = environment.reset(reset_key, task)
        nothing = jnp.full(environment.action_space.shape, -1, jnp.int32)
        state = IntervenedState(
            inner=inner, key=jax.random.key_data(own_key), action=nothing, after_mistake=jnp.zeros((), bool)
        )
        return state, timestep

    def step(key: Array, state: IntervenedState, action: Array) -> tuple[IntervenedState, TimeStep]:
        own_key, next_key = jax.random.split(jax.random.wrap_key_data(state.key))
        right = text.expert(expert_key(state), state.inner)[0] if asks else action
        taken = action if intervene is None else intervene(own_key, state.inner, action, state.after_mistake, right)
        taken = taken.astype(jnp.int32)
        inner, timestep = environment.step(key, state.inner, taken)
        if text.distance is None:
            mistaken = jnp.any(taken != right)
        else:
            mistaken = text.distance(inner) >= text.distance(state.inner)
        after = IntervenedState(
            inner=inner, key=jax.random.key_data(next_key), action=taken, after_mistake=jnp.asarray(mistaken)
        )
        return after, timestep

    def lift(function: Callable | None) -> Any:
        return None if function is None else lambda state: function(state.inner)

    def lift_keyed(function: Callable | None) -> Any:
        return None if function is None else lambda key, state: function(key, state.inner)

    interface = replace(
        text,
        fingerprint=lift(text.fingerprint),
        distance=lift(text.distance),
        expert=lift_keyed(text.expert),
        draw=lift_keyed(text.draw),
    )
    return replace(environment, reset=reset, step=step, render=lift(environment.render), text=interface)


def expert_key(state: IntervenedState) -> Array:
    """Returns the key with which the expert is asked in a state, another than those of interventions."""
    return jax.random.fold_in(jax.random.split(jax.random.wrap_key_data(state.key))[0], _ASKED)


def replay(environment: Environment, start: tuple[IntervenedState, TimeStep], actions: Array) -> Replay:
    """Takes recorded actions again, with the same interventions.

    Args:
        environment: of `with_interventions`; in which chance has no part after the start.
        start: states and time steps, leaves `[N, ...]`, those that the recorded episodes started in.
        actions: int32 `[N, T, M]`, given ones; -1 is an action that could not be read.

    Returns:
        What was taken, and what came of it.
    """
    keys = jax.random.split(jax.random.key(0), actions.shape[0])  # Chance has no part.

    thinks = bool(environment.text.patterns and environment.text.patterns.thought)

    def think(state: IntervenedState) -> Array:
        return environment.text.expert(expert_key(state), state)[1]

    def take(now: tuple[IntervenedState, TimeStep], given: Array) -> tuple[Any, Any]:
        live = ~(now[1].terminated | now[1].truncated)
        thought = jax.vmap(think)(now[0]) if thinks else None
        state, timestep = jax.vmap(environment.step)(keys, now[0], given)
        success = timestep.info["success"] & live
        return (state, timestep), Replay(state.action, live, state.after_mistake & live, success, thought)

    turns = jax.lax.scan(take, start, jnp.swapaxes(actions, 0, 1))[1]
    played = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), turns)
    return played._replace(success=jnp.any(played.success, axis=1))


def episode_actions(environment: Environment, policy: LanguagePolicy, episode: Episode) -> tuple[Array, Array | None]:
    """Reads the actions and thoughts of own episodes; an action that ran out of room, or is too long, is none.

    Args:
        environment: a text world.
        policy: that generated them.
        episode: B episodes of T turns.

    Returns:
        Word ids int32 `[B, T, M]`, -1 where nothing can be read, and thoughts as `relabeling.recorded_words`.
    """
    ended = episode.action_mask & policy.tokenizer.is_end(episode.tokens) & ~episode.thought_mask
    actions, thoughts = recorded_words(policy, episode)
    most = environment.action_space.shape[0]
    read = jnp.any(ended, axis=2, keepdims=True) & jnp.all(actions[..., most:] < 0, axis=2, keepdims=True)
    return jnp.where(read, actions[..., :most], -1), thoughts


def expert_along(
    environment: Environment, start: tuple[IntervenedState, TimeStep], actions: Array
) -> tuple[Array, Array | None]:
    """Returns what the expert would do and think in every state that recorded actions lead to.

    Args:
        environment: of `with_interventions`, see `replay`.
        start: see `replay`.
        actions: int32 `[N, T, M]`.

    Returns:
        Actions int32 `[N, T, M]`, and thoughts int32 `[N, T, H]` where it thinks.
    """
    keys = jax.random.split(jax.random.key(0), actions.shape[0])

    def take(now: tuple[IntervenedState, TimeStep], given: Array) -> tuple[Any, Any]:
        return jax.vmap(environment.step)(keys, now[0], given), jax.vmap(environment.text.expert)(keys, now[0])

    turns = jax.lax.scan(take, start, jnp.swapaxes(actions, 0, 1))[1]
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), turns)

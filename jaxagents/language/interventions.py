"""Episodes in which some actions are replaced by interventions, and which of the actions were mistakes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.language.relabeling import recorded_words
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, State, Task, TimeStep

_ASKED = 16  # A stream of the interventions' key; interventions split the key into fewer.

Intervene = Callable[[Array, State, Array, Array, Array], Array]
"""`(key, state, action int32 [M], after_mistake bool [], expert's int32 [M]) -> action int32 [M]` that is taken."""


@struct.dataclass
class IntervenedState:
    """State of an environment with interventions.

    Attributes:
        inner: state of the environment.
        key: uint32 `[2]`, key of the interventions to come.
        action: int32 `[M]`, the last action taken; -1 at the start.
        after_mistake: bool, whether it was a mistake.
    """

    inner: State
    key: Array
    action: Array
    after_mistake: Array


class Replay(NamedTuple):
    """The outcome of N sequences of actions.

    Attributes:
        actions: int32 `[N, T, M]`, actions that were taken.
        live: bool `[N, T]`, whether the turn took place.
        mistaken: bool `[N, T]`, whether it took place and was a mistake.
        success: bool `[N]`, whether the episode succeeded.
        thoughts: int32 `[N, T, H]`, the expert's thoughts in these turns; None if it does not think.
    """

    actions: Array
    live: Array
    mistaken: Array
    success: Array
    thoughts: Array | None = None


def with_interventions(environment: Environment, intervene: Intervene | None = None) -> Environment:
    """Returns an environment in which `intervene` determines the action that is taken instead of the given one.

    A mistake is an action after which success is no closer, `d(s') >= d(s)`; in worlds with unknown distance d, it is
    an action other than the expert's. The expert is asked once per turn, because its choice may be random.

    Args:
        environment: text world of one player.
        intervene: chooses the action; None: the given action.

    Returns:
        The environment; its states are `IntervenedState`s.

    Raises:
        ValueError: the environment is not a text world of one player.
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
    """Returns the key with which the expert is asked in a state, different from those of interventions."""
    return jax.random.fold_in(jax.random.split(jax.random.wrap_key_data(state.key))[0], _ASKED)


def replay(environment: Environment, start: tuple[IntervenedState, TimeStep], actions: Array) -> Replay:
    """Replays recorded actions, with the same interventions.

    Args:
        environment: result of `with_interventions`, without chance after the start.
        start: states and time steps, leaves `[N, ...]`, in which the recorded episodes started.
        actions: int32 `[N, T, M]`, given actions; -1 is an action that could not be parsed.

    Returns:
        The actions taken, and their outcome.
    """
    keys = jax.random.split(jax.random.key(0), actions.shape[0])  # Unused: there is no chance.

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
    """Extracts the actions and thoughts of own episodes; actions that ran out of room, or are too long, are left out.

    Args:
        environment: text world.
        policy: policy that generated them.
        episode: B episodes of T turns.

    Returns:
        Word ids int32 `[B, T, M]`, -1 if nothing can be parsed, and thoughts as in `relabeling.recorded_words`.
    """
    ended = episode.action_mask & policy.tokenizer.is_end(episode.tokens) & ~episode.thought_mask
    actions, thoughts = recorded_words(policy, episode)
    most = environment.action_space.shape[0]
    read = jnp.any(ended, axis=2, keepdims=True) & jnp.all(actions[..., most:] < 0, axis=2, keepdims=True)
    return jnp.where(read, actions[..., :most], -1), thoughts


def expert_along(
    environment: Environment, start: tuple[IntervenedState, TimeStep], actions: Array
) -> tuple[Array, Array | None]:
    """Returns the expert's actions and thoughts in every state that recorded actions lead to.

    Args:
        environment: result of `with_interventions`, see `replay`.
        start: see `replay`.
        actions: int32 `[N, T, M]`, recorded actions.

    Returns:
        Actions int32 `[N, T, M]`, and thoughts int32 `[N, T, H]` if it thinks.
    """
    keys = jax.random.split(jax.random.key(0), actions.shape[0])

    def take(now: tuple[IntervenedState, TimeStep], given: Array) -> tuple[Any, Any]:
        return jax.vmap(environment.step)(keys, now[0], given), jax.vmap(environment.text.expert)(keys, now[0])

    turns = jax.lax.scan(take, start, jnp.swapaxes(actions, 0, 1))[1]
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), turns)

"""What a world answers to an action in words, written into the turn that said it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxagents.language.turns import Turn
from jaxagents.ops.rows import where_rows
from jaxagents.types import Array, Environment, State, TimeStep


def player_of(timestep: TimeStep, turn: Array) -> Array:
    """Returns who acts next, int32 `[B]`; the first agent in worlds of one. `turn` says how many rows there are."""
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
    """Acts in every row, and writes what the world says about it into the turn.

    Args:
        environment: single instance.
        keys: `[B]`.
        state: leaves `[B, ...]`.
        timestep: the one acted in.
        action: int32 `[B, M]` word ids.
        turn: as `conversation.answer` returns it.
        live: bool `[B]`, rows in which the turn takes place.
        parsed: bool `[B]`, the action could be read.
        cut: bool `[B]`, the turn is the last one in any case.
        parts: of what the world reports, by name, that are written into the turn.

    Returns:
        The states and time steps that follow, and the turn.
    """
    after_state, after = jax.vmap(environment.step)(keys, state, action)
    told = {name: after.info["metrics"][name] for name in parts}
    turn = turn.replace(
        parts={name: jnp.where(live, value, 0.0).astype(jnp.float32) for name, value in told.items()},
        reward=where_rows(live, after.reward, jnp.zeros_like(after.reward)),
        valid=live,
        action_valid=parsed & after.info["valid"],
        terminated=after.terminated,
        truncated=(after.truncated | cut) & ~after.terminated,
        fingerprint=jax.vmap(environment.text.fingerprint)(state),
        agent=player_of(timestep, live),
    )
    return after_state, after, turn

"""Retroformer (Yao et al., 2024): a second seat reflects on failed trials, and is paid by the next one's result."""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp

from jaxagents.environments.text.retries import with_retries
from jaxagents.environments.text.world import Status, World
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, State


def with_reflector(
    world: World, *, num_trials: int = 3, max_words: int = 4, words: Sequence[str] | None = None
) -> World:
    """Lets a second seat write the reflections of `with_retries`, and pays it the gain of the trial after each of them.

    The reflector's turn after a reflection earns `G_{k + 1} - G_k`; since only failed trials are repeated, that is 1 if
    the next trial succeeds. Seat 0 acts in all trials, and is paid 1 for success.

    Args:
        world: rules with one seat.
        num_trials: maximum number of trials, 2 to 9.
        max_words: maximum words of a reflection.
        words: possible words of a reflection; None: those of the actions.

    Returns:
        The rules with two seats. The expert writes the words of its next action.

    Raises:
        ValueError: see `with_retries`.

    References:
        Yao et al. (2024), "Retroformer: Retrospective Large Language Agents with Policy Gradient Optimization".
    """
    require_positive("max_words", max_words)
    retried = with_retries(world, num_trials=num_trials, reflection_words=max_words, words=words)

    def status(state: State) -> Status:
        outcome = retried.status(state)
        success = outcome.success & outcome.over
        payoff = jnp.stack([success, success & (state["inner"]["trial"] > 0)])
        return outcome.replace(payoff=payoff.astype(jnp.float32))

    def player(state: State) -> Array:
        return state["writing"].astype(jnp.int32)

    return replace(retried, num_seats=2, status=status, player=player)

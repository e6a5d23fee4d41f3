"""Decisions of text worlds' experts: random choices, rules in order, scores, and lookahead."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.grammar import Grammar
from jaxagents.environments.text.world import World
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, PyTree, State


def choose(key: Array, mask: Array | np.ndarray) -> Array:
    """Draws one of the indices where a mask is True, uniformly; int32 `[]`, 0 if there is none.

    Args:
        key: PRNG key.
        mask: bool `[A]`.
    """
    nth = jax.random.randint(key, (), 0, jnp.maximum(jnp.sum(mask), 1))
    return jnp.argmax(jnp.cumsum(mask) > nth).astype(jnp.int32)


def first_rule(cases: Sequence[tuple[Any, PyTree]]) -> PyTree:
    """Returns the value of the first rule whose condition holds, or of the last rule if none does.

    Args:
        cases: pairs of a condition, bool `[]`, and a pytree; all of one structure, such as `(verb, args)`.

    Returns:
        The pytree of the rule.
    """
    *rules, (_, chosen) = cases
    for condition, value in reversed(rules):
        chosen = select(condition, value, chosen)
    return chosen


def first_action(grammar: Grammar, rules: Sequence[tuple]) -> tuple[Array, Array]:
    """Returns the action of the first rule whose condition holds, or of the last rule if none does.

    Args:
        grammar: grammar of the world.
        rules: tuples of a condition, bool `[]`, a verb, and a value per field, see `Grammar.args`.

    Returns:
        Verb and args.
    """
    cases = [(condition, (verb, grammar.args(*values))) for condition, verb, *values in rules]
    verb, args = first_rule(cases)
    return jnp.asarray(verb, jnp.int32), args


def best_of(score: Array, count: int) -> Array:
    """Finds the highest scores above 0, the first of equal ones; int32 `[count]`, -1 if there are no more."""
    best, index = jax.lax.top_k(score, count)
    return jnp.where(best > 0, index, -1)


def lookahead(world: World, depth: int) -> Callable[[State], Array]:
    """Makes the function that computes the value of every action to the seat that acts.

    `Q(s, a) = V_i(s')` with the payoffs at the end or after `depth` actions, where every seat takes what is best for
    itself: minimax in two-player games. Only for worlds whose `play` draws nothing, with one seat (whose progress
    counts) or with a `player`; the time is multiplied by the number of entries with every action.

    Args:
        world: world without free fields; its `expert` is not used.
        depth: number of actions to look ahead, at least 1.

    Returns:
        `(state) -> float32 [E]`, `-inf` for actions that are not allowed.
    """
    grammar = world.grammar

    def worth(state: State) -> Array:
        """Returns the value of the state to all seats, float32 `[P]`."""
        status = world.status(state)
        return jnp.atleast_1d(status.progress if status.payoff is None else status.payoff)

    def look(state: State, ahead: int) -> tuple[Array, Array]:
        """Returns the values of the actions to the seat that acts, and the value of the best one to all seats."""
        seat = jnp.int32(0) if world.player is None else world.player(state)

        def after(verb: Array, args: Array) -> Array:
            following = world.play(jax.random.key(0), state, verb, args)
            if ahead == 1:
                return worth(following)
            return jnp.where(world.status(following).over, worth(following), look(following, ahead - 1)[1])

        values = jax.vmap(after)(jnp.asarray(grammar.entry_verb), jnp.asarray(grammar.entry_args))
        own = values[:, seat]
        own = own if world.allowed is None else jnp.where(world.allowed(state), own, -jnp.inf)
        return own, values[jnp.argmax(own)]

    return lambda state: look(state, depth)[0]

"""What experts of text worlds choose by: chance, rules in order, scores, and a look ahead."""

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
    """Draws one of the indices where a mask is True, uniformly; int32 `[]`, 0 where there is none.

    Args:
        key: PRNG key.
        mask: bool `[A]`.
    """
    nth = jax.random.randint(key, (), 0, jnp.maximum(jnp.sum(mask), 1))
    return jnp.argmax(jnp.cumsum(mask) > nth).astype(jnp.int32)


def first_rule(cases: Sequence[tuple[Any, PyTree]]) -> PyTree:
    """Returns what the first rule says whose condition holds, and the last one's without any.

    Args:
        cases: condition, bool `[]`, and a pytree; all of one structure, such as `(verb, args)`.

    Returns:
        The pytree of the rule.
    """
    *rules, (_, chosen) = cases
    for condition, value in reversed(rules):
        chosen = select(condition, value, chosen)
    return chosen


def first_action(grammar: Grammar, rules: Sequence[tuple]) -> tuple[Array, Array]:
    """Returns what the first rule says whose condition holds, and the last one's without any, as an action.

    Args:
        grammar: of the world.
        rules: condition, bool `[]`, verb, and a value per field, see `Grammar.args`.

    Returns:
        Verb and args.
    """
    cases = [(condition, (verb, grammar.args(*values))) for condition, verb, *values in rules]
    verb, args = first_rule(cases)
    return jnp.asarray(verb, jnp.int32), args


def best_of(score: Array, count: int) -> Array:
    """Finds the highest scores above 0, of equal ones the first; int32 `[count]`, -1 where there are no more."""
    best, index = jax.lax.top_k(score, count)
    return jnp.where(best > 0, index, -1)


def lookahead(world: World, depth: int) -> Callable[[State], Array]:
    """Makes the function that says what every action is worth to the seat that acts.

    `Q(s, a) = V_i(s')` with the payoffs at the end or after `depth` actions, where every seat takes what is best for
    itself: minimax in games of two. Only for worlds whose `play` draws nothing, with one seat (whose progress counts)
    or with a `player`; the time grows with the number of entries by every action.

    Args:
        world: without free fields; its `expert` is not used.
        depth: actions ahead, at least 1.

    Returns:
        `(state) -> float32 [E]`, `-inf` for what is not allowed.
    """
    grammar = world.grammar

    def worth(state: State) -> Array:
        """Returns what the seats have, float32 `[P]`."""
        status = world.status(state)
        return jnp.atleast_1d(status.progress if status.payoff is None else status.payoff)

    def look(state: State, ahead: int) -> tuple[Array, Array]:
        """Returns what the actions are worth to who acts, and what the best one is worth to all."""
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

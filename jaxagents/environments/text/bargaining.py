"""Bargaining in words: two seats offer each other shares of a pie, which shrinks with every refusal."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, number, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

MOST = 9
ACCEPT, REFUSE, KEEP = range(3)


@struct.dataclass
class BargainState:
    """A bargain: number of refusals so far, what the last offer keeps (-1: no offer), and whether one was accepted."""

    task: Task
    refused: Array
    kept: Array
    accepted: Array


def make_environment(*, max_offers: int = 4, **options: Any) -> Environment:
    """Makes a game of alternating offers.

    The seat that offers sees `pie 9 less 2 offers 3` and says `keep 6`, so that the other one would get 3; the seat
    that answers sees `pie 9 less 2 offers 3 they keep 6` and says `accept` or `refuse`. With each refusal, the pie
    loses the amount after `less`, and the seat that refused makes the next offer; after the last refusal nobody gets
    anything. Payoffs are shares of the first pie. Player 0 makes the first offer. The expert plays the subgame-perfect
    equilibrium: it offers what the other seat would gain by waiting, and accepts no less; it also answers any other
    offer optimally.

    Args:
        max_offers: maximum offers of a task, 1 to 9; tasks have from one up to this number.
        **options: arguments of `make_text_world`.

    Returns:
        The environment with two seats, whose tasks are pies, their losses, and numbers of offers.

    Raises:
        ValueError: the number of offers is out of its range.

    References:
        Rubinstein (1982), Perfect Equilibrium in a Bargaining Model; Stahl (1972) for finitely many offers.
    """
    if not 1 <= max_offers <= 9:
        raise ValueError(f"`max_offers` must be from 1 to 9, got {max_offers}; try 4.")
    grammar = make_grammar("accept", "refuse", "keep {coins}", coins=tuple(map(str, range(MOST + 1))))
    zero = jnp.zeros((), jnp.int32)

    def sample(key: Array, level: Array) -> Task:
        keys = jax.random.split(key, 3)
        return {
            "pie": jax.random.randint(keys[0], (), 4, MOST + 1),
            "less": jax.random.randint(keys[1], (), 1, 4),
            "offers": jax.random.randint(keys[2], (), 1, max_offers + 1),
            "level": level,
        }

    def play(key: Array, state: BargainState, verb: Array, args: Array) -> BargainState:
        return state.replace(
            refused=state.refused + (verb == REFUSE),
            kept=jnp.where(verb == KEEP, args[0, 0], jnp.where(verb == ACCEPT, state.kept, -1)),
            accepted=verb == ACCEPT,
        )

    def player(state: BargainState) -> Array:
        return (state.refused + (state.kept >= 0)) % 2

    def allowed(state: BargainState) -> Array:
        asked = state.kept >= 0
        return jnp.concatenate(
            [jnp.stack([asked, asked]), ~asked & (jnp.arange(MOST + 1) <= pie(state.task, state.refused))]
        )

    def status(state: BargainState) -> Status:
        over = state.accepted | (state.refused >= state.task["offers"])
        # The seat that offered has half of the refusals.
        mine = jnp.where(state.accepted, state.kept, 0)
        other = jnp.where(state.accepted, pie(state.task, state.refused) - state.kept, 0)
        payoff = jnp.where(state.refused % 2 == jnp.arange(2), mine, other) / state.task["pie"]
        parts = {"agreed": state.accepted.astype(jnp.float32), "welfare": jnp.sum(payoff)}
        return Status(success=over, over=over, payoff=payoff.astype(jnp.float32), parts=parts)

    def expert(key: Array, state: BargainState) -> tuple[Array, Array, Text]:
        wait = worth(state.task, state.refused + 1, max_offers)  # For the seat that answers, if it refuses.
        answers, left = state.kept >= 0, pie(state.task, state.refused)
        verb = jnp.where(answers, jnp.where(left - state.kept >= wait, ACCEPT, REFUSE), KEEP)
        args = jnp.where(answers, grammar.args(), grammar.args(left - wait))
        return verb.astype(jnp.int32), args, text("waiting brings", number(wait, 1))

    world = World(
        name="bargaining",
        grammar=grammar,
        max_steps=4 * max_offers,
        num_seats=2,
        sample=sample,
        start=lambda key, task: BargainState(task=task, refused=zero, kept=zero - 1, accepted=jnp.bool_(False)),
        player=player,
        play=play,
        allowed=allowed,
        status=status,
        tell=tell,
        expert=expert,
    )
    return make_text_world(world, **options)


def pie(task: Task, refused: Array | int) -> Array:
    """Returns the size of the pie after some refusals, int32 `[]`."""
    return jnp.maximum(task["pie"] - refused * task["less"], 0)


def worth(task: Task, refused: Array, max_offers: int) -> Array:
    """Computes the worth of the next offer to its seat: `v_k = pie_k - v_{k + 1}`, 0 after the last offer."""
    value = jnp.zeros((), jnp.int32)
    for later in reversed(range(max_offers + 1)):
        value = jnp.where((later >= refused) & (later < task["offers"]), pie(task, later) - value, value)
    return value


def tell(state: BargainState, seat: Array) -> Text:
    """Describes the pie, its loss, the remaining offers, and the last offer."""
    del seat
    task = state.task
    left = jnp.maximum(task["offers"] - state.refused, 0)
    head = text("pie", number(pie(task, state.refused), 1), "less", number(task["less"], 1), "offers", number(left, 1))
    return text(head, when(state.kept >= 0, text("they keep", number(jnp.maximum(state.kept, 0), 1))))

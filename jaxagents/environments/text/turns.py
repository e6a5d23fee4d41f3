"""Turns of a text world: which seat acts, what is allowed, the effect of a turn, and when an episode ends."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, PyTree, Task


@struct.dataclass
class TextWorldState:
    """State of an episode of a text world.

    Attributes:
        task: task of the episode.
        inner: state of the rules.
        valid: bool, whether the last action was understood and allowed.
        num_steps: int32, number of turns taken.
        score: float32 `[P]`, or `[]` with one seat, what the rules have paid so far.
        terminated: bool.
        truncated: bool.
        offender: int32, seat of the last action that was not understood or allowed; -1 for none.
        pending: if all seats act at once, verbs int32 `[P]`, args int32 `[P, max_args, max_length]`, and the seat that
            is asked, int32 `[]`; else None.
        payouts: memories of the world's payouts.
    """

    task: Task
    inner: PyTree
    valid: Array
    num_steps: Array
    score: Array
    terminated: Array
    truncated: Array
    offender: Array
    pending: tuple[Array, Array, Array] | None
    payouts: tuple[PyTree, ...] = ()


def seat_of(world: World, state: TextWorldState) -> Array:
    """Returns the seat that is asked, int32 `[]`."""
    if world.num_seats == 1:
        return jnp.zeros((), jnp.int32)
    return state.pending[2] if world.player is None else world.player(state.inner).astype(jnp.int32)


def draw_action(world: World, key: Array, state: TextWorldState) -> Array:
    """Draws an allowed entry, and its free fields, uniformly; int32 `[M]`."""
    entry_key, slot_key = jax.random.split(key)
    return world.grammar.render(*world.grammar.draw(slot_key, choose(entry_key, allowed_entries(world, state))))


def acts_together(world: World) -> bool:
    """Returns whether all seats act at once."""
    return world.num_seats > 1 and world.player is None


def first_turn(world: World, task: Task, inner: PyTree, score: Array) -> TextWorldState:
    """Returns the state before the first turn, given the first state of the rules and its score."""
    pending = None
    if acts_together(world):
        shape = (world.num_seats, world.grammar.max_args, world.grammar.max_length)
        pending = jnp.zeros(shape[0], jnp.int32), jnp.full(shape, -1, jnp.int32), jnp.zeros((), jnp.int32)
    return TextWorldState(
        task=task,
        inner=strong(inner),
        valid=jnp.ones((), bool),
        num_steps=jnp.zeros((), jnp.int32),
        score=score,
        terminated=jnp.zeros((), bool),
        truncated=jnp.zeros((), bool),
        offender=jnp.full((), -1, jnp.int32),
        pending=pending,
        payouts=tuple(strong(payout.init(jnp.zeros_like(score))) for payout in world.payouts),
    )


def allowed_entries(world: World, state: TextWorldState) -> Array:
    """Returns the entries that are allowed for the seat that is asked, bool `[E]`."""
    if world.allowed is None:
        return jnp.ones(world.grammar.num_entries, bool)
    allowed = world.allowed(state.inner)
    return allowed[seat_of(world, state)] if acts_together(world) else allowed


def action_mask(world: World, state: TextWorldState) -> Array | None:
    """Returns the actions that are allowed, bool `[A]`; None if all are, or if they are not listed."""
    if world.allowed is None or world.grammar.actions is None:
        return None
    entry = jnp.asarray(world.grammar.action_entry)
    if world.subgrammar is None:
        return allowed_entries(world, state)[entry]
    entry = entry[world.subgrammar(state.inner)]
    return allowed_entries(world, state)[entry] & (entry >= 0)


def read_action(world: World, state: TextWorldState, action: Array) -> tuple[Array, Array, Array]:
    """Returns verb and args of an action in words, and whether it is understood and allowed."""
    subgrammar = () if world.subgrammar is None else (world.subgrammar(state.inner),)
    verb, args, entry, known = world.grammar.parse(action, *subgrammar)
    valid = known & allowed_entries(world, state)[entry]
    return verb, args, valid if world.accepts is None else valid & world.accepts(state.inner, verb, args)


def play_turn(
    world: World, key: Array, state: TextWorldState, verb: Array, args: Array, valid: Array
) -> tuple[PyTree, tuple[Array, Array, Array] | None]:
    """Plays a valid action, or passes; if all seats act at once, the last one plays the actions of all."""
    passed = state.inner if world.skip is None else world.skip(state.inner)
    if not acts_together(world):
        return strong(select(valid, world.play(key, state.inner, verb, args), passed)), None
    verbs, all_args, seat = state.pending
    verbs = verbs.at[seat].set(jnp.where(valid, verb, verbs[seat]))
    all_args = all_args.at[seat].set(jnp.where(valid, args, all_args[seat]))
    complete = valid & (seat == world.num_seats - 1)
    inner = select(complete, world.play(key, state.inner, verbs, all_args), select(valid, state.inner, passed))
    return strong(inner), (verbs, all_args, jnp.where(complete, 0, seat + valid).astype(jnp.int32))


def strong(tree: PyTree) -> PyTree:
    """Returns a tree whose arrays have no weak types, so that a loop can carry it."""

    def convert(leaf: Array) -> Array:
        leaf = jnp.asarray(leaf)
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return leaf if is_key else jax.lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(convert, tree)


def score_of(world: World, reward: str, status: Status) -> Array:
    """Returns the score so far: float32 `[P]`, or `[]` with one seat."""
    if status.payoff is not None:
        return (status.payoff[0] if world.num_seats == 1 else status.payoff).astype(jnp.float32)
    if reward == "dense":
        return status.progress.astype(jnp.float32)
    return (status.success & status.over).astype(jnp.float32)


def make_finish(
    world: World, illegal: str, forfeit_payoff: Sequence[float]
) -> Callable[[TextWorldState, Array, Array], tuple[TextWorldState, Array]]:
    """Makes `(state, earned, over) -> (state, earned)`, which applies limits and forfeits."""
    lost, won = forfeit_payoff

    def finish(state: TextWorldState, earned: Array, over: Array) -> tuple[TextWorldState, Array]:
        at_limit = state.num_steps >= (world.max_steps if world.limit is None else world.limit(state.task))
        forfeit = jnp.zeros((), bool) if illegal == "no_op" else ~state.valid
        if world.num_seats > 1:
            forfeit = forfeit | (at_limit & (state.offender >= 0))
        forfeit = forfeit & ~over
        seats = jnp.arange(world.num_seats) if world.num_seats > 1 else jnp.zeros((), jnp.int32)
        penalty = jnp.where(seats == state.offender, lost, won)
        terminated = over | forfeit
        state = state.replace(terminated=terminated, truncated=at_limit & ~terminated)
        return state, jnp.where(forfeit, penalty, earned)

    return finish


def pay_out(world: World, keys: Sequence[Array], state: TextWorldState, earned: Array) -> tuple[TextWorldState, Array]:
    """Applies the payouts of the world to what was earned."""
    ended, memories = state.terminated | state.truncated, []
    for key, payout, memory in zip(keys, world.payouts, state.payouts, strict=True):
        memory, earned = payout.pay(key, memory, state.inner, earned, ended)
        memories.append(memory)
    return state.replace(payouts=tuple(memories)), earned

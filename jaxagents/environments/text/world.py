"""The specification of a text world: a record of rules, from which `make_text_world` makes the environment."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.grammar import Grammar
from jaxagents.environments.text.texts import Text
from jaxagents.types import Array, PyTree, State, Task


@struct.dataclass
class Status:
    """The status of an episode according to the rules; the builder adds limits and forfeits.

    Attributes:
        success: bool `[]`, whether the task is done; in a game, whether it ended by its rules.
        over: bool `[]`, whether the rules end the episode here (also after a failure).
        payoff: float32 `[P]`, what every seat has earned since the start of the episode, initially zeros; the reward of
            a step is the increase. None if success or progress is rewarded. Required with several seats.
        progress: float32 `[]`, the potential of dense rewards, which pay its increase; a good scale is 1 more at the
            success than at the start. None if there are only sparse rewards.
        parts: graded scores of the episode so far, float32 `[]` by name, such as the right parts of an answer. They are
            reported as `info["metrics"]`. The names are the same in every state.
    """

    success: Array
    over: Array
    payoff: Array | None = None
    progress: Array | None = None
    parts: Mapping[str, Array] = struct.field(default_factory=dict)


def grades(**parts: Array) -> dict[str, Array]:
    """Returns numbers and bools by name as float32, for `Status.parts`."""
    return {name: jnp.asarray(value, jnp.float32) for name, value in parts.items()}


class Payout(NamedTuple):
    """How and when the payments of the rules are handed out; see `environments.text.rewards` for examples.

    Attributes:
        init: `(reward) -> memory`, pytree of arrays, given a reward of zeros, float32 `[]`, or `[P]` with several
            seats.
        pay: `(key, memory, state, reward, ended bool []) -> (memory, reward)`, given the reward that a step would have
            paid; `state` is that of the rules, `ended` says that the episode is over, or truncated.
    """

    init: Callable[[Array], PyTree]
    pay: Callable[[Array, PyTree, State, Array, Array], tuple[PyTree, Array]]


@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """The rules of a text world, as pure functions of one instance that can be traced; the builder does not vmap.

    A task is a dict or a dataclass of arrays; one of its fields is `level`, int32 `[]`. A state is a pytree of arrays
    whose shapes and dtypes never change. It contains what the functions need of the task, for instance the task itself,
    and no counts of turns, unless they matter to the rules.

    Attributes:
        name: name for logs and messages.
        grammar: grammar of the actions, see `make_grammar`.
        max_steps: number of turns, of all seats, after which an episode is truncated. If the rules themselves end an
            episode after a number of turns, `status` says so.
        sample: `(key, level int32 []) -> task`, with `task["level"] == level`. It is repeated until the task is on the
            requested side of the split.
        start: `(key, task) -> state`.
        play: `(key, state, verb int32 [], args int32 [max_args, max_length]) -> state`, see `Grammar` for their
            meaning. It is called for actions that are understood and allowed; its result for others is discarded. If
            all seats act at once, verbs are `[P]` and args `[P, max_args, max_length]`.
        status: `(state) -> Status`.
        tell: `(state, seat int32 []) -> Text`, what a seat sees; its structure is the same in every state, with `when`
            and `cases` inside. "nothing happens ." after an action that was not understood or allowed is added at the
            end, or at the place of `refusal()`.
        expert: `(key, state) -> (verb, args, thought Text | None)`, an action for the seat that acts, as good as
            possible, and the thought that leads to it. One key makes one decision. If all seats act at once, as in
            `play`, with one thought or none.
        num_levels: number of levels of difficulty.
        num_seats: P, number of players. With more than one, `status` gives payoffs.
        identity: `(task) -> pytree of integers or bools`, what identifies the task. Splits hash it: tasks with the same
            identity are on the same side. It is the same before and after `complete`. None: the whole task except its
            level.
        complete: `(key, task, held_out bool) -> task`, adds to a task what is not part of its identity and what is too
            costly to draw repeatedly, or differs between the sides of the split. None: nothing is added.
        situation: `(state) -> pytree of arrays`, what identifies the situation within a task, for fingerprints. None:
            the whole state except fields named `level`. Two situations of one task are the same if and only if these
            arrays are equal.
        player: `(state) -> int32 []`, the seat that acts. None if there is one seat, or if all seats act at once: they
            are asked one after the other, do not see each other's actions, and `play` receives all actions.
        allowed: `(state) -> bool [E]`, over the entries of the grammar; if all seats act at once, bool `[P, E]`. None:
            everything is allowed.
        accepts: `(state, verb, args) -> bool []`, whether an action that `allowed` admits is legal with these free
            arguments. None: all are legal.
        subgrammar: `(state) -> int32 []`, the subgrammar by which actions are read, see `subgrammars.join_grammars`;
            None: the only one.
        limit: `(task) -> int32 []`, number of turns after which an episode of this task is truncated, at most
            `max_steps`; None: `max_steps`.
        payouts: payouts that are applied to the rewards, one after the other.
        skip: `(state) -> state`, effect of a turn in which nothing was understood or allowed, such as a lost attempt.
            None: the state is unchanged.
        prompt: `(task) -> Text`, shown once before the first observation; None: no prompt.
        distance: `(state) -> float32 []`, the fewest actions to a success; `inf` if none is possible any more. None if
            it is unknown.
        render: `(state) -> str`, on the host; None: the observation of the seat that acts.
        easier: `(task, number int32 []) -> task`, the same task made easier `number` times, such as a smaller part of a
            screen. None if there is no such function.
        look: `(state) -> Text`, what is seen without the instruction. None if these are not separate.
    """

    name: str
    grammar: Grammar
    max_steps: int
    sample: Callable[[Array, Array], Task]
    start: Callable[[Array, Task], State]
    play: Callable[[Array, State, Array, Array], State]
    status: Callable[[State], Status]
    tell: Callable[[State, Array], Text]
    expert: Callable[[Array, State], tuple[Array, Array, Text | None]]
    num_levels: int = 1
    num_seats: int = 1
    identity: Callable[[Task], PyTree] | None = None
    complete: Callable[[Array, Task, bool], Task] | None = None
    situation: Callable[[State], PyTree] | None = None
    player: Callable[[State], Array] | None = None
    allowed: Callable[[State], Array] | None = None
    accepts: Callable[[State, Array, Array], Array] | None = None
    subgrammar: Callable[[State], Array] | None = None
    limit: Callable[[Task], Array] | None = None
    payouts: tuple[Payout, ...] = ()
    skip: Callable[[State], State] | None = None
    prompt: Callable[[Task], Text] | None = None
    distance: Callable[[State], Array] | None = None
    render: Callable[[Any], str] | None = None
    easier: Callable[[Task, Array], Task] | None = None
    look: Callable[[State], Text] | None = None

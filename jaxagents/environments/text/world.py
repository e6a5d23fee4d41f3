"""What a text world is written as: a record of rules. `make_text_world` makes the environment of it."""

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
    """How far an episode is, as the rules see it; the builder adds limits and forfeits.

    Attributes:
        success: bool `[]`, the task is done; in a game, that it came to its end by the rules.
        over: bool `[]`, the rules end the episode here (also where it failed).
        payoff: float32 `[P]`, what every seat has earned since the start of the episode, zeros at first; the reward of
            a step is what it adds. None where success or progress is rewarded. Needed with several seats.
        progress: float32 `[]`, the potential of dense rewards, which pay what a step adds to it; 1 more at the success
            than at the start is a good scale. None where there are only sparse rewards.
        parts: graded scores of what was done so far, float32 `[]` by name, as the parts of an answer that are right.
            They are reported as `info["metrics"]`. The names are the same in every state.
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
    """What is handed out of what the rules pay, and when; `environments.text.rewards` has some.

    Attributes:
        init: `(reward) -> memory`, pytree of arrays, of a reward of zeros, float32 `[]`, or `[P]` with several seats.
        pay: `(key, memory, state, reward, ended bool []) -> (memory, reward)`, of what a step would have paid; `state`
            is that of the rules, `ended` says that the episode is over, or cut.
    """

    init: Callable[[Array], PyTree]
    pay: Callable[[Array, PyTree, State, Array, Array], tuple[PyTree, Array]]


@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """The rules of a text world, as pure functions of one instance that can be traced; the builder vmaps nothing.

    A task is a dict or a dataclass of arrays; one of its fields is `level`, int32 `[]`. A state is a pytree of arrays
    whose shapes and dtypes never change. It holds what of the task the functions need, for instance the task itself,
    and no counts of turns, unless they matter to the rules.

    Attributes:
        name: for logs and messages.
        grammar: of `make_grammar`, of the actions.
        max_steps: turns after which an episode is cut (truncated); turns of all seats count. What is over after a
            number of turns by its rules says so in `status`.
        sample: `(key, level int32 []) -> task`, with `task["level"] == level`. It is drawn again until the task is on
            the side of the split that is asked for.
        start: `(key, task) -> state`.
        play: `(key, state, verb int32 [], args int32 [max_args, max_length]) -> state`, see `Grammar` for what they
            hold. Called for actions that are understood and allowed; what it returns for others is thrown away. Where
            all seats act at once, verbs are `[P]` and args `[P, max_args, max_length]`.
        status: `(state) -> Status`.
        tell: `(state, seat int32 []) -> Text`, what a seat sees; it says the same kind of thing in every state, with
            `when` and `cases` inside. "nothing happens ." after what was not understood or not allowed is added at the
            end, or where `refusal()` stands.
        expert: `(key, state) -> (verb, args, thought Text | None)`, as good an action of whoever acts as there is, and
            the thought that leads to it. One key makes one decision. Where all seats act at once, as in `play`, with
            one thought or none.
        num_levels: of difficulty.
        num_seats: P, players. With more than one, `status` gives payoffs.
        identity: `(task) -> pytree of integers or bools`, what makes it the same task. Splits hash it: tasks with the
            same identity are on the same side. It is the same before and after `complete`. None takes all of the task
            but its level.
        complete: `(key, task, held_out bool) -> task`, adds to a task what its identity does not depend on and what is
            too costly to draw again and again, or differs between the sides of the split. None adds nothing.
        situation: `(state) -> pytree of arrays`, what makes it the same situation within a task, for fingerprints. None
            takes all of the state but fields that are called `level`. Two situations of one task are the same if and
            only if these arrays are equal.
        player: `(state) -> int32 []`, the seat that acts. None where there is one seat, or where all seats act at once:
            they are asked one after the other, see nothing of what the others say, and `play` gets all actions.
        allowed: `(state) -> bool [E]`, over `grammar.entries`; where all seats act at once, bool `[P, E]`. None allows
            everything.
        accepts: `(state, verb, args) -> bool []`, whether an action that `allowed` admits is legal with these free
            arguments. None accepts all.
        subgrammar: `(state) -> int32 []`, by which the grammar reads actions, see `subgrammars.join_grammars`; None for
            the only one.
        limit: `(task) -> int32 []`, turns after which an episode of this task is cut, at most `max_steps`, which None
            takes.
        payouts: what is handed out of the rewards, one after the other.
        skip: `(state) -> state`, what a turn costs in which nothing was understood or allowed, as an attempt. None
            leaves the state as it is.
        prompt: `(task) -> Text`, given once before the first observation; None says nothing.
        distance: `(state) -> float32 []`, the fewest actions to a success; `inf` where there is none left. None where
            it is not known.
        render: `(state) -> str`, on the host; None writes the observation of the seat that acts.
        easier: `(task, number int32 []) -> task`, the same task made easier so many times, as a smaller part of a
            screen. None where there is no such thing.
        look: `(state) -> Text`, what is seen without what is asked for. None where that is not separate.
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

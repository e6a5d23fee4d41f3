"""A meeting in words: no seat alone knows which place is open to all; they exchange messages, then all go at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, each, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment, Task

PLACES = ("park", "cafe", "beach", "tower", "market", "museum")
SAY, GO = range(2)


@struct.dataclass
class MeetingState:
    """A meeting: messages of the seats, int32 `[P, 2]`, and where they went, int32 `[P]`; -1 if not yet."""

    task: Task
    messages: Array
    gone: Array


def make_environment(num_seats: int = 2, *, num_places: int = 6, distinct: bool = True, **options: Any) -> Environment:
    """Makes a meeting.

    Two places are open to each seat, and exactly one to all of them. All seats name one or two places at once, `say
    park cafe`, and then go at once, `go park`. A seat sees `player 0 open park cafe`, and after the messages `player 0
    open park cafe heard park tower`, with the messages of the others. All are paid 1 if all are at the place that is
    open to all, else 0. The expert names its places, and goes where all can go, so that it always succeeds.

    Args:
        num_seats: P, number of seats, 2 to 4.
        num_places: number of places, 3 to 6.
        distinct: whether seats are called `player 0` and so on; otherwise they cannot tell who they are.
        **options: arguments of `make_text_world`.

    Returns:
        The environment, whose tasks are places and the seats to which they are open.

    Raises:
        ValueError: numbers of seats or places are out of their range.

    References:
        Lewis (1969), Convention; Lazaridou, Peysakhovich and Baroni (2017), Multi-Agent Cooperation and the Emergence
            of (Natural) Language.
    """
    if not 2 <= num_seats <= 4 or not 3 <= num_places <= len(PLACES):
        raise ValueError(f"`num_seats` must be 2 to 4 and `num_places` 3 to 6, got {num_seats} and {num_places}.")
    places = PLACES[:num_places]
    grammar = make_grammar("say {message:1-2}", "go {place}", message=places, place=places)
    seats = np.arange(num_seats)

    def sample(key: Array, level: Array) -> Task:
        place_key, other_key = jax.random.split(key)
        # The first two seats have different other places, so that no other place is open to all.
        meet, *first_two = draw_distinct(place_key, jnp.ones(num_places, bool), 3)
        others = (meet + jax.random.randint(other_key, (num_seats,), 1, num_places)) % num_places
        return {"meet": meet, "others": others.at[:2].set(jnp.stack(first_two)), "level": level}

    def start(key: Array, task: Task) -> MeetingState:
        nothing = jnp.full((num_seats, 2), -1, jnp.int32)
        return MeetingState(task=task, messages=nothing, gone=nothing[:, 0])

    def talking(state: MeetingState) -> Array:
        return state.messages[0, 0] < 0

    def play(key: Array, state: MeetingState, verb: Array, args: Array) -> MeetingState:
        talks = talking(state)
        return state.replace(
            messages=jnp.where(talks, args[:, 0, :2], state.messages), gone=jnp.where(talks, -1, args[:, 0, 0])
        )

    def allowed(state: MeetingState) -> Array:
        row = jnp.where(np.arange(1 + num_places) < 1, talking(state), ~talking(state))
        return jnp.broadcast_to(row, (num_seats, 1 + num_places))

    def status(state: MeetingState) -> Status:
        met = jnp.all(state.gone == state.task["meet"])
        return Status(
            success=state.gone[0] >= 0,
            over=state.gone[0] >= 0,
            payoff=jnp.full(num_seats, met, jnp.float32),
            parts={"met": met.astype(jnp.float32)},
        )

    def open_to(task: Task) -> Array:
        """Returns to which seats places are open, bool `[P, places]`."""
        index = np.arange(num_places)
        return (index == task["meet"])[None] | (index[None] == task["others"][:, None])

    def tell(state: MeetingState, seat: Array) -> Text:
        name = pick([("player", str(one)) for one in seats], seat) if distinct else None
        received = jnp.where((seats == seat)[:, None], -1, state.messages)
        last = when(talking(state), None, text("heard", pick(places, received)))
        return text(name, "open", each(places, open_to(state.task)[seat], most=2), last)

    def expert(key: Array, state: MeetingState) -> tuple[Array, Array, None]:
        own = open_to(state.task)
        named = jnp.any(state.messages[:, :, None] == np.arange(num_places)[None, None], axis=1)
        goal = jnp.argmax(
            jnp.all(jnp.where((seats[:, None] == seats[None])[:, :, None], own[None], named[None]), axis=1), axis=1
        )
        both = jnp.argsort(~own, axis=1, stable=True)[:, :2]
        row = jnp.where(talking(state), both, jnp.stack([goal, jnp.full(num_seats, -1)], axis=1))
        return jnp.full(num_seats, jnp.where(talking(state), SAY, GO), jnp.int32), row[:, None].astype(jnp.int32), None

    world = World(
        name="meeting",
        grammar=grammar,
        max_steps=4 * num_seats,
        num_seats=num_seats,
        sample=sample,
        start=start,
        play=play,
        allowed=allowed,
        status=status,
        tell=tell,
        expert=expert,
    )
    return make_text_world(world, **options)

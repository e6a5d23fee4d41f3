"""Errands in a household: a request fits several things, and the user, who knows which one is meant, can be asked."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose, first_action
from jaxagents.environments.text.grammar import allow, make_grammar
from jaxagents.environments.text.texts import Text, number, pick, text, when
from jaxagents.environments.text.world import Status, World, grades
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, Environment, Task

THINGS = ("mug", "book", "plate", "bowl", "pen", "apple")
PLACES = ("countertop", "cabinet", "fridge", "shelf", "desk", "bed")  # Three in the kitchen, three in the bedroom.
ATTRIBUTES = {"colour": ("red", "blue", "green"), "size": ("small", "large"), "room": ("kitchen", "bedroom")}
LOOKS = [(colour, size) for colour in ATTRIBUTES["colour"] for size in ATTRIBUTES["size"]]
SUBSETS = np.arange(2 ** len(ATTRIBUTES))[:, None] >> np.arange(len(ATTRIBUTES)) & 1 == 1
GO, TAKE, ASK = range(3)


@struct.dataclass
class ErrandsState:
    """State of an errand.

    It has the agent's place, int32, -1 at first; the places that it saw, bool `[6]`; the attributes that it asked for,
    bool `[3]`; whether it took what is there, bool; and the number of useful questions, int32.
    """

    task: Task
    at: Array
    seen: Array
    asked: Array
    taken: Array
    useful: Array


def make_environment(
    num_candidates: Sequence[int] = (2, 3, 4), *, slack: int = 0, max_steps: int = 12, **options: Any
) -> Environment:
    """Makes a world of errands.

    Things of one kind lie in different places; the user wants one of them, and says only `bring mug of 2`. The
    observation adds the user's answers, the agent's place and what lies there, and what it saw elsewhere: `bring mug of
    2 red at shelf see blue large cabinet red small`. `ask colour`, `ask size` and `ask room` take a turn; `take` ends
    the episode, with success if it is the thing that was meant. Colour and size together always identify it.

    `info["metrics"]` grades the questions: `questions`; `useful`, those that ruled out a thing that had been seen and
    was not yet ruled out; `over_budget`, those beyond the fewest that identify the thing, plus `slack`. `progress` is
    half the share of the other things that answers rule out, and 1 with success. Held-out tasks ask for combinations of
    kind, colour and size that training never asks for.

    Args:
        num_candidates: number of things of the kind, one per level, from 2 to 6.
        slack: number of questions beyond the fewest that are within the budget.
        max_steps: maximum turns; ten are enough.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers of things or turns are out of their range.

    References:
        Ramrakhya et al. (2025), Grounding Multimodal LLMs to Embodied Agents that Ask for Help, section 3.
    """
    require_between("num_candidates", num_candidates, 2, len(PLACES))
    require_between("slack", slack, 0)
    require_between("max_steps", max_steps, len(PLACES) + 4)
    grammar = make_grammar("go to {place}", "take", "ask {attribute}", place=PLACES, attribute=tuple(ATTRIBUTES))
    places, attributes = np.arange(len(PLACES)), np.arange(len(ATTRIBUTES))

    def start(key: Array, task: Task) -> ErrandsState:
        no = jnp.zeros(len(PLACES), bool)
        return ErrandsState(task=task, at=jnp.int32(-1), seen=no, asked=no[:3], taken=no[0], useful=jnp.int32(0))

    def play(key: Array, state: ErrandsState, verb: Array, args: Array) -> ErrandsState:
        at = jnp.where(verb == GO, args[0, 0], state.at)
        asked = state.asked | ((verb == ASK) & (attributes == args[0, 0]))
        ruled_out = fits(state.task, state.asked) & ~fits(state.task, asked) & known(state)
        useful = state.useful + jnp.any(ruled_out)
        return state.replace(at=at, seen=state.seen | (places == at), asked=asked, taken=verb == TAKE, useful=useful)

    def allowed(state: ErrandsState) -> Array:
        found = jnp.any(state.task["things"][:, 3] == state.at) & (state.at >= 0)
        return allow(grammar, places != state.at, found, ~state.asked)

    def expert(key: Array, state: ErrandsState) -> tuple[Array, Array, None]:
        things, left = state.task["things"], fits(state.task, state.asked)
        same = (things[:, None, :3] == things[None, :, :3]) & (left[:, None] & left[None])[:, :, None]
        expected = jnp.where(state.asked, jnp.inf, jnp.sum(same, axis=(0, 1)))  # Pairs that an answer leaves together.
        goal, (go_key, ask_key) = things[jnp.argmax(left), 3], jax.random.split(key)
        rules = [
            (jnp.any((things[:, 3] >= 0) & ~known(state)), GO, choose(go_key, ~state.seen)),
            (jnp.sum(left) > 1, ASK, choose(ask_key, expected == jnp.min(expected))),
            (state.at != goal, GO, goal),
            (True, TAKE),
        ]
        return *first_action(grammar, rules), None

    world = World(
        name="errands",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=len(num_candidates),
        sample=partial(sample, tuple(num_candidates)),
        identity=lambda task: (task["kind"], task["things"][task["target"], :2]),
        start=start,
        play=play,
        allowed=allowed,
        status=partial(status, slack),
        tell=tell,
        expert=expert,
    )
    return make_text_world(world, **options)


def sample(num_candidates: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws things, int32 `[C, 4]`: colour, size, room and place, -1 for none; their kind, and which one is meant."""
    place_key, look_key, kind_key, target_key = jax.random.split(key, 4)
    most, count = max(num_candidates), jnp.asarray(num_candidates)[level]
    place = jax.random.permutation(place_key, len(PLACES))[:most]
    look = jax.random.permutation(look_key, len(LOOKS))[:most]
    things = jnp.stack([look // 2, look % 2, place // 3, place], axis=1)
    things = jnp.where((jnp.arange(most) < count)[:, None], things, -1)
    kind, target = jax.random.randint(kind_key, (), 0, len(THINGS)), jax.random.randint(target_key, (), 0, count)
    return {"things": things, "kind": kind, "target": target, "level": level}


def fits(task: Task, asked: Array) -> Array:
    """Returns which things agree with the one that is meant in the attributes, bool `[3]`, that were asked for."""
    things = task["things"]
    return jnp.all((things[:, :3] == things[task["target"], :3][None]) | ~asked[None], axis=1) & (things[:, 3] >= 0)


def known(state: ErrandsState) -> Array:
    """Returns which things have been seen, bool `[C]`."""
    place = state.task["things"][:, 3]
    return state.seen[place] & (place >= 0)


def status(slack: int, state: ErrandsState) -> Status:
    """Returns success, and grades the questions."""
    task, place, questions = state.task, state.task["things"][:, 3], jnp.sum(state.asked)
    success = state.taken & (place[task["target"]] == state.at)
    alone = jnp.sum(jax.vmap(partial(fits, task))(jnp.asarray(SUBSETS)), axis=1) == 1
    fewest = jnp.min(jnp.where(alone, SUBSETS.sum(axis=1), len(ATTRIBUTES)))
    over_budget = jnp.maximum(questions - fewest - slack, 0)
    parts = grades(questions=questions, useful=state.useful, over_budget=over_budget)
    ruled_out = 1.0 - (jnp.sum(fits(task, state.asked)) - 1) / (jnp.sum(place >= 0) - 1)
    progress = jnp.where(state.taken, success, ruled_out / 2)
    return Status(success=success, over=state.taken, progress=progress, parts=parts)


def tell(state: ErrandsState, seat: Array) -> Text:
    """Describes the request, the user's answers, the agent's place, what lies there, and what it saw elsewhere."""
    task, things = state.task, state.task["things"]
    look, here = things[:, 0] * 2 + things[:, 1], (things[:, 3] == state.at) & (state.at >= 0)
    answers = jnp.where(state.asked, things[task["target"], :3], -1)
    answered = [pick(words, answer) for words, answer in zip(ATTRIBUTES.values(), answers)]
    sees = when(jnp.any(here), pick(LOOKS, look[jnp.argmax(here)]), "nothing")
    elsewhere = known(state) & ~here
    rows = [text(pick(PLACES, things[i, 3]), pick(LOOKS, look[i])) for i in range(len(things))]
    listed = [when(elsewhere[i], row) for i, row in enumerate(rows)]
    request = text("bring", pick(THINGS, task["kind"]), "of", number(jnp.sum(things[:, 3] >= 0), 1), *answered)
    return text(request, when(state.at >= 0, text("at", pick(PLACES, state.at), "see", sees)), *listed)

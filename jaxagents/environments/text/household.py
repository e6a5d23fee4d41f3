"""A household of rooms in words: find things, treat them, put them where they belong (Shridhar et al., 2021)."""

from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text import household_rules as rules
from jaxagents.environments.text import household_tables as names
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.household_expert import choose_action
from jaxagents.environments.text.household_rules import HouseholdState, HouseholdTask
from jaxagents.environments.text.household_tables import Tables, make_tables
from jaxagents.environments.text.household_tasks import furnish, identify, require_goals, sample_goal
from jaxagents.environments.text.texts import Text, cases, each, pick, refusal, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.types import Array, Environment

LAMP_KIND = names.LAMP.split()[0]


def make_environment(
    num_levels: int = len(names.LEVELS),
    *,
    kitchenette: bool = False,
    reward: Literal["sparse", "dense"] = "sparse",
    step_penalty: float = 0.0,
    goal_in_observation: bool = True,
    expert: Literal["searching", "informed"] = "searching",
    held_out_fraction: float = 0.25,
    max_steps: int = 30,
    **options: Any,
) -> Environment:
    """Makes a household.

    An agent in a room of receptacles ("fridge 1", "drawer 2") moves things ("apple 1"), at most one of them in its
    hand; names and numbers are separate words. It sees what is in the receptacle where it is, unless that is closed.
    There are six families of tasks: put a thing somewhere; clean, heat or cool it first; look at it under the lamp,
    which is on the desk; put two of a kind somewhere. The task names kinds ("put some apple in cabinet"); any thing and
    any receptacle of the kind will do. No action is final: every task can be solved from every state.

    Actions are "go to", "open" and "close" with a receptacle, "take", "put", "clean" (at the sinkbasin), "heat" (at the
    microwave), "cool" (at the fridge), "slice" (with a knife in the hand) and "examine" (answered with its condition)
    with a thing, "use" "desklamp 1", "look" and "inventory". Impossible actions are not admissible, nor are those that
    would change or show nothing; "look" and "inventory" always are.

    An observation has, in this order and without gaps: "nothing happens ." after an action that was not admissible, or
    the condition after "examine"; the goal; the agent's place; "open" or "closed" if that can change; what it holds,
    with the condition if it is not ordinary; and what it sees. `prompt` gives the receptacles and the goal.

    Combinations of family, object and place of the goal are held out: each part is known from other tasks.

    Args:
        num_levels: number of levels, the first ones of `household_tables.LEVELS`. Arrays, observations and words are as
            large as the last level needs: 2 makes a small world.
        kitchenette: whether `household_tables.KITCHENETTE` is the only level instead, for which 15 steps are enough.
        reward: "sparse" is 1 for success; "dense" pays the change of `household_rules.progress`, also 1 in total.
        step_penalty: penalty subtracted from the reward of every step.
        goal_in_observation: whether every observation repeats the goal, for contexts of few turns.
        expert: "searching": it knows what the agent has seen, so that a policy with memory can imitate it; "informed":
            it knows everything.
        held_out_fraction: fraction of the combinations that are held out.
        max_steps: steps before truncation (50 in ALFWorld).
        **options: further arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: an option is invalid, or the limit is too short to search everything.

    References:
        Shridhar, Yuan, Cote, Bisk, Trischler and Hausknecht (2021), ALFWorld: Aligning Text and Embodied Environments
            for Interactive Learning, section 2 and appendix.
    Deviation: the lamp is always on the desk, nothing has to be sliced, both of two things may be in different
    receptacles of the kind, and any receptacle accepts anything.
    """
    tables = _check(num_levels, kitchenette, expert, max_steps)
    require_goals(tables, held_out_fraction)
    grammar = tables.grammar

    def play(key: Array, state: HouseholdState, verb: Array, args: Array) -> HouseholdState:
        entry = jnp.argmax((grammar.entry_verb == verb) & (grammar.entry_args[:, 0, 0] == args[0, 0]))
        return rules.transition(tables, state, jnp.asarray(tables.verb)[entry], jnp.asarray(tables.argument)[entry])

    def status(state: HouseholdState) -> Status:
        success = rules.is_success(tables, state)
        return Status(success=success, over=success, progress=rules.progress(tables, state, success))

    def advise(key: Array, state: HouseholdState) -> tuple[Array, Array, None]:
        verb, argument = choose_action(tables, state, searching=expert == "searching")
        return *grammar.entry(jnp.argmax((tables.verb == verb) & (tables.argument == argument))), None

    world = World(
        name="household",
        grammar=grammar,
        max_steps=max_steps,
        num_levels=len(tables.levels),
        sample=partial(sample_goal, tables),
        identity=identify,
        complete=partial(furnish, tables),
        start=lambda key, task: rules.first_state(tables, task),
        situation=situation,
        allowed=partial(rules.admissible, tables),
        play=play,
        skip=lambda state: state.replace(examined=jnp.full((), -1, jnp.int32), looked=jnp.zeros((), bool)),
        status=status,
        tell=lambda state, seat: tell(tables, state, goal_in_observation=goal_in_observation),
        prompt=partial(prompt, tables),
        expert=advise,
        render=partial(render, tables),
    )
    return make_text_world(
        world, reward=reward, step_penalty=step_penalty, held_out_fraction=held_out_fraction, **options
    )


def _check(num_levels: int, kitchenette: bool, expert: str, max_steps: int) -> Tables:
    """Refuses invalid options, and returns the constants of the world."""
    if not 1 <= num_levels <= len(names.LEVELS):
        raise ValueError(f"`num_levels` must be from 1 to {len(names.LEVELS)}, got {num_levels}; try 2.")
    if expert not in ("searching", "informed"):
        raise ValueError(f'`expert` must be "searching" or "informed", got {expert!r}; try "searching".')
    tables = make_tables((names.KITCHENETTE,) if kitchenette else names.LEVELS[:num_levels])
    # The longest search visits every receptacle, opens closed ones, and ends with two trips or a treatment.
    longest = tables.num_receptacles + int(tables.closable.sum()) + 7
    if max_steps < longest:
        raise ValueError(f"`max_steps` must leave time for a search of {longest}, got {max_steps}; try {longest}.")
    return tables


def goal_text(tables: Tables, task: HouseholdTask) -> Text:
    """Describes a goal: family, object, joining word, place."""
    families = {family for level in tables.levels for family in level.families}

    def say(family: int) -> Text | None:
        if family not in families:
            return None
        place = LAMP_KIND if family == names.EXAMINE else pick(tables.kinds, task.target_kind)
        start, joint = names.GOALS[family]
        return text(start, pick(tables.types, task.object_type), joint, place)

    return cases(task.family, *map(say, range(len(names.GOALS))))


def tell(tables: Tables, state: HouseholdState, *, goal_in_observation: bool) -> Text:
    """Describes what the agent perceives, see `make_environment`.

    Parts that depend on the kind of the place and on what is held are named choices: nothing is seen where things are
    hidden, and what is held is not seen, so that the maximum length of texts is exact.
    """
    here = np.arange(tables.num_receptacles) == state.location
    can_open, is_open = jnp.any(here & tables.closable), jnp.any(here & state.opened)
    lamp, middle = state.location == tables.stations["desk"], state.location == tables.num_receptacles
    # An open and a closed receptacle, the desk, others, the middle of the room.
    place = jnp.select([can_open & is_open, can_open, lamp, middle], [0, 1, 2, 4], 3)
    is_desk = np.arange(tables.num_receptacles + 1) == tables.stations["desk"]
    closable, is_middle = np.append(tables.closable, False), np.arange(len(is_desk)) == tables.num_receptacles
    at_open, at_desk, at_other, at_middle = (
        pick([name if one else None for name, one in zip(tables.receptacles, mask)], state.location)
        for mask in (closable, is_desk, ~(closable | is_desk | is_middle), is_middle)
    )
    hold, contents = _hand(tables, state)
    visible = when(jnp.any(rules.visible(tables, state)), contents, "nothing")
    lamp_seen = text("you see", *names.LAMP.split(), contents) if is_desk.any() else None
    examined = [name if able else None for name, able in zip(names.CONDITIONS, np.any(tables.conditions, axis=0))]
    parts: list[Text | str] = [
        when(state.examined >= 0, text(pick(examined, state.examined), "."), refusal()),
        *([goal_text(tables, state.task)] if goal_in_observation else []),
        "you are at",
        cases(place, text(at_open, "open"), text(at_open, "closed"), at_desk, at_other, at_middle, name="place"),
        "you hold",
        hold,
        cases(place, text("you see", visible), None, lamp_seen, text("you see", visible), None, name="place"),
    ]
    return text(*parts)


def _hand(tables: Tables, state: HouseholdState) -> tuple[Text, Text]:
    """Describes what is held, with its condition if that is special, and what is seen of the things."""
    num_types, most = len(tables.types), tables.num_objects
    held, seen = state.places == rules.HELD, rules.visible(tables, state)
    thing = jnp.argmax(held)
    special = [[(*name, *[word][: word != "ordinary"]) for word in names.CONDITIONS] for name in tables.objects]
    special = [[p if able else None for p, able in zip(*row)] for row in zip(special, tables.conditions)]
    index = thing * len(names.CONDITIONS) + rules.conditions(state)[thing]

    def holding(first: int, last: int) -> Text:
        return pick([p if first <= i < last else None for i, row in enumerate(special) for p in row], index)

    def seeing(firsts: int, seconds: int) -> Text:
        later = each(tables.objects[num_types:], seen[num_types:], most=seconds) if seconds else None
        return text(each(tables.objects[:num_types], seen[:num_types], most=firsts), later)

    in_hand, two = jnp.any(held), state.task.family == names.TWO
    ways = [("nothing", seeing(most, 0)), (holding(0, num_types), seeing(most - 1, 0))]
    way = in_hand.astype(jnp.int32)
    if len(tables.objects) > num_types:
        # Two of a kind exist only in tasks about them.
        second = holding(num_types, 2 * num_types)
        ways += [("nothing", seeing(most - 1, 1)), (holding(0, num_types), seeing(most - 2, 1))]
        ways += [(second, seeing(most - 1, 0))]
        way = jnp.where(in_hand & (thing >= num_types), 4, way + 2 * two)
    hold, contents = (cases(way, *column, name="hand") for column in zip(*ways))
    return hold, contents


def prompt(tables: Tables, task: HouseholdTask) -> Text:
    """Describes the agent's place, the receptacles, and the goal."""
    number = np.arange(tables.num_receptacles)
    there = jnp.where(number < rules.level_sizes(tables, "num_receptacles")[task.level], number, -1)
    seen = pick(tables.receptacles[:-1], there)
    return text("you are at", names.MIDDLE, ".", "you see", seen, ".", "your task is to", goal_text(tables, task), ".")


def situation(state: HouseholdState) -> tuple[Array, ...]:
    """Returns the state of affairs, without its history."""
    things = state.places, state.temperature, state.clean, state.sliced
    return state.task.level, state.location, state.opened, *things


def render(tables: Tables, state: HouseholdState) -> str:
    """Lists the receptacles and their contents, marks the agent's place with `>`, and shows what it holds.

    Args:
        tables: constants of the world.
        state: state of one instance, on the host.

    Returns:
        The goal, one line per receptacle, and the hand.
    """

    task = state.task
    family, kind = int(task.family), tables.kinds[int(task.target_kind)]
    start, joint = names.GOALS[family]
    place = LAMP_KIND if family == names.EXAMINE else kind

    def things(place: int) -> str:
        inside = np.flatnonzero(np.asarray(state.places) == place)
        return " ".join(" ".join(tables.objects[i]) for i in inside) or "-"

    lines = [f"{start} {tables.types[int(task.object_type)]} {joint} {place}"]
    for i in range(tables.levels[int(task.level)].num_receptacles):
        mark = ">" if int(state.location) == i else " "
        shut = " (closed)" if tables.closable[i] and not bool(state.opened[i]) else ""
        lines.append(f"{mark} {' '.join(tables.receptacles[i])}{shut}: {things(i)}")
    return "\n".join([*lines, f"  hand: {things(rules.HELD)}"])

"""A household of rooms in words: find things, treat them, put them where they belong (Shridhar et al., 2021)."""

from functools import partial
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text import household_rules as rules
from jaxagents.environments.text import household_tables as names
from jaxagents.environments.text.faces import absorbing_world
from jaxagents.environments.text.household_expert import choose_action
from jaxagents.environments.text.household_rules import HouseholdState, HouseholdTask
from jaxagents.environments.text.household_tables import Tables, make_tables
from jaxagents.environments.text.household_tasks import make_samplers
from jaxagents.environments.text.splits import hash_integers
from jaxagents.environments.text.words import NOTHING_HAPPENS, compact, find_row, one_of, sentence
from jaxagents.environments.timesteps import first_timestep
from jaxagents.types import Array, Box, Environment, Patterns, TextFace, TimeStep


def make_environment(
    num_levels: int = len(names.LEVELS),
    *,
    reward: Literal["sparse", "dense"] = "sparse",
    step_penalty: float = 0.0,
    goal_in_observation: bool = True,
    expert: Literal["searching", "informed"] = "searching",
    held_out_fraction: float = 0.25,
    max_steps: int = 30,
) -> Environment:
    """Makes a household.

    An agent in a room of receptacles ("fridge 1", "drawer 2") moves things ("apple 1"), at most one in its hand; names
    and numbers are words of their own. It sees what is in the receptacle where it is, unless that is closed. Six
    families of tasks: put a thing somewhere; clean, heat or cool it first; look at it under the lamp, which is on the
    desk; put two of a kind somewhere. The task names kinds ("put some apple in cabinet"); any thing and any receptacle
    of the kind will do. No act is final: every task can be solved from every state.

    Actions are "go to", "open" and "close" of a receptacle, "take", "put", "clean" (at the sinkbasin), "heat" (at the
    microwave), "cool" (at the fridge), "slice" (with a knife in the hand) and "examine" (answers with its condition)
    of a thing, "use" "desklamp 1", "look" and "inventory". Those that would change or show nothing do not
    count as admissible, and neither does what cannot be done; "look" and "inventory" always do.

    An observation says, in this order and without gaps: "nothing happens ." after an action that was not admissible,
    or the condition after "examine"; the goal; where the agent is; "open" or "closed" where that can change; what it
    holds, and the condition if it is not ordinary; what it sees. `TextFace.prompt` says the receptacles and the goal.

    Held out are combinations of family, object and place of the goal: each part is known from other tasks.

    Args:
        num_levels: the levels 0 to `num_levels - 1` of `household_tables.LEVELS` are there. Arrays, observations and
            words are as large as the last one needs: 2 makes a small world.
        reward: "sparse" is 1 for success; "dense" pays the change of `household_rules.progress`, 1 in sum as well.
        step_penalty: subtracted from the reward of every step.
        goal_in_observation: whether every observation repeats the goal, for contexts of few turns.
        expert: "searching" knows what the agent has seen, so that a policy with memory can imitate it; "informed"
            knows everything.
        held_out_fraction: of the combinations.
        max_steps: steps before truncation (50 in ALFWorld).

    Returns:
        The environment.

    Raises:
        ValueError: an option that is not there, or a limit that leaves no time to search everything.

    References:
        Shridhar, Yuan, Cote, Bisk, Trischler and Hausknecht (2021), ALFWorld: Aligning Text and Embodied Environments
            for Interactive Learning, section 2 and appendix.
    Deviation: the lamp is always on the desk, nothing has to be sliced, both of two things may be in different
        receptacles of the kind, and any receptacle takes anything.
    """
    tables = _check(num_levels, reward, expert, max_steps)

    def describe(state: HouseholdState, timestep: TimeStep, outcome: Array) -> TimeStep:
        observation = observe(tables, state, outcome, goal_in_observation=goal_in_observation)
        return timestep.replace(observation=observation, action_mask=rules.admissible(tables, state))

    def reset(key: Array, task: HouseholdTask) -> tuple[HouseholdState, TimeStep]:
        del key
        state = rules.first_state(tables, task)
        info = {"success": jnp.zeros((), bool), "valid": jnp.ones((), bool)}
        return state, describe(state, first_timestep(None, info=info), jnp.asarray([-1, -1], jnp.int32))

    def step(key: Array, state: HouseholdState, action: Array) -> tuple[HouseholdState, TimeStep]:
        del key
        row, well_formed = find_row(action, tables.actions)
        valid = well_formed & rules.admissible(tables, state)[row]
        verb = jnp.where(valid, jnp.asarray(tables.verb)[row], names.NO_VERB)
        argument = jnp.asarray(tables.argument)[row]
        following = rules.transition(tables, state, verb, argument).replace(num_steps=state.num_steps + 1)
        success = rules.is_success(tables, following, verb)
        gain = rules.progress(tables, following, success) - rules.progress(tables, state, jnp.zeros((), bool))
        earned = gain if reward == "dense" else success.astype(jnp.float32)
        timestep = TimeStep(
            observation=None,
            reward=earned - jnp.float32(step_penalty),
            terminated=success,
            truncated=(following.num_steps >= max_steps) & ~success,
            info={"success": success, "valid": valid},
        )
        return following, describe(following, timestep, answer(tables, state, verb, argument))

    sample_task, sample_held_out_task = make_samplers(tables, held_out_fraction=held_out_fraction)
    length = observation_length(tables, goal_in_observation=goal_in_observation)

    def advise(key: Array, state: HouseholdState) -> tuple[Array, None]:
        del key
        verb, argument = choose_action(tables, state, searching=expert == "searching")
        chosen = (jnp.asarray(tables.verb) == verb) & (jnp.asarray(tables.argument) == argument)
        return jnp.asarray(tables.actions)[jnp.argmax(chosen)], None

    return absorbing_world(
        Environment(
            name="household",
            sample_task=sample_task,
            reset=reset,
            step=step,
            observation_space=Box((length,), -1, len(tables.words) - 1, np.int32),
            action_space=Box((3,), -1, len(tables.words) - 1, np.int32),
            max_steps=max_steps,
            render=partial(render, tables),
            text=TextFace(
                words=tables.words,
                actions=tables.actions,
                expert=advise,
                fingerprint=fingerprint,
                sample_held_out_task=sample_held_out_task,
                num_levels=num_levels,
                prompt=partial(prompt, tables),
                patterns=_patterns(tables, goal_in_observation=goal_in_observation),
            ),
        )
    )


def _check(num_levels: int, reward: str, expert: str, max_steps: int) -> Tables:
    """Refuses options that are not there, and returns the constants of the world."""
    if not 1 <= num_levels <= len(names.LEVELS):
        raise ValueError(f"`num_levels` must be from 1 to {len(names.LEVELS)}, got {num_levels}; try 2.")
    if reward not in ("sparse", "dense"):
        raise ValueError(f'`reward` must be "sparse" or "dense", got {reward!r}; try "sparse".')
    if expert not in ("searching", "informed"):
        raise ValueError(f'`expert` must be "searching" or "informed", got {expert!r}; try "searching".')
    tables = make_tables(num_levels)
    # The longest search sees every receptacle, opens what is closed, and ends with two trips or a treatment.
    longest = tables.num_receptacles + int(tables.closable.sum()) + 7
    if max_steps < longest:
        raise ValueError(f"`max_steps` must leave time for a search of {longest}, got {max_steps}; try {longest}.")
    return tables


def observation_length(tables: Tables, *, goal_in_observation: bool) -> int:
    """Returns the most words of an observation.

    Two of an answer, the goal, where, open or not (or the lamp, where nothing opens), what is held, what is seen. What
    is held has two words and perhaps a condition, "nothing" one, and then there is one thing more to see.
    """
    where = 3 + (2 if tables.stations["desk"] >= 0 else 1)
    return 2 + 4 * goal_in_observation + where + 3 + 2 * tables.num_objects


def _patterns(tables: Tables, *, goal_in_observation: bool) -> Patterns:
    """Returns what can be said: of observations, one pattern for every kind of place and of what is held."""
    one = partial(one_of, tables.ids)
    things, goals = tables.object_ids, [[words[part] for words in tables.goal_ids] for part in range(2)]
    kinds = np.append(tables.kind_ids, tables.ids("desklamp"))
    goal = tuple(np.reshape(ids, (-1, 1)) for ids in (goals[0], tables.type_ids, goals[1], kinds))
    outcome = one(None, NOTHING_HAPPENS, *((condition, ".") for condition in names.CONDITIONS))
    receptacles = tables.receptacle_ids[:-1]
    closable = receptacles[tables.closable]
    desk = tables.receptacle_ids[[tables.stations["desk"]]] if tables.stations["desk"] >= 0 else receptacles[:0]
    others = np.concatenate([receptacles[~tables.closable], tables.receptacle_ids[-1:]])
    # The number of things that may be seen is one less where something is held.
    seen = (np.concatenate([things, np.full((1, 2), -1, np.int32)]),) * tables.num_objects
    hands = [((one("nothing"),), seen), ((things, one(None, *names.CONDITIONS[1:])), seen[1:])]
    hidden = (one("closed"),)
    observations = []
    for held, visible in hands:
        nothing = one("nothing")
        for place, state, sight in (
            (closable, hidden, ()),
            (closable, (one("open"),), (one("you see"), *visible)),
            (closable, (one("open"),), (one("you see"), nothing)),
            (desk, (), (one("you see"), tables.lamp_ids[None], *visible)),
            (others, (), (one("you see"), *visible)),
            (others, (), (one(None, ("you see", "nothing")),)),
        ):
            where = (one("you are at"), place, *state, one("you hold"))
            observations += [(outcome, *goal * goal_in_observation, *where, *held, *sight)] * (len(place) > 0)
    start, end = one(("you are at", names.MIDDLE, ".", "you see")), one((".", "your task is to"))
    rooms = [receptacles[[index]] for index in range(len(receptacles))]
    prompts = ((start, *rooms[: level.num_receptacles], end, *goal, one(".")) for level in tables.levels)
    return Patterns(observation=tuple(observations), prompt=tuple(prompts))


def answer(tables: Tables, state: HouseholdState, verb: Array, argument: Array) -> Array:
    """Words that answer an action, done in `state`: int32 `[2]`."""
    condition = _conditions(tables, state)[argument]
    said = jnp.stack([condition, jnp.asarray(tables.ids(".")[0])])
    refused = jnp.asarray(tables.ids(*NOTHING_HAPPENS))
    return jnp.where(verb == names.NO_VERB, refused, jnp.where(verb == names.LOOK_AT, said, -1))


def _conditions(tables: Tables, state: HouseholdState) -> Array:
    condition = state.temperature + 3 * state.clean + 6 * state.sliced
    return jnp.asarray(tables.ids(*names.CONDITIONS))[condition]


def say_goal(tables: Tables, task: HouseholdTask) -> Array:
    """Words of the goal, int32 `[4]`: family, object, joint, place."""
    kind = jnp.asarray(tables.kind_ids)[task.target_kind]
    place = jnp.where(task.family == names.EXAMINE, tables.ids("desklamp")[0], kind)
    do, joint = jnp.asarray(tables.goal_ids)[task.family]
    return jnp.stack([do, jnp.asarray(tables.type_ids)[task.object_type], joint, place])


def observe(tables: Tables, state: HouseholdState, outcome: Array, *, goal_in_observation: bool) -> Array:
    """Says what the agent perceives.

    Args:
        tables: of the world.
        state: what is the case.
        outcome: int32 `[2]`, of `answer`.
        goal_in_observation: whether to repeat the goal.

    Returns:
        Int32 `[K]`, see `make_environment`.
    """

    def word(phrase: str, condition: Array) -> Array:
        return jnp.where(condition, jnp.asarray(tables.ids(phrase)), -1)

    always = jnp.ones((), bool)
    held, seen = state.places == rules.HELD, rules.visible(tables, state)
    near, in_hand = rules.accessible(tables, state), jnp.any(held)
    here = jnp.arange(tables.num_receptacles) == state.location
    can_open, is_open = jnp.any(here & tables.closable), jnp.any(here & state.opened)
    lamp = state.location == tables.stations["desk"]
    thing = jnp.sum(jnp.where(held[:, None], jnp.asarray(tables.object_ids), 0), axis=0)
    condition = jnp.sum(jnp.where(held, _conditions(tables, state), 0))
    special = in_hand & (condition != tables.ids(names.CONDITIONS[0])[0])
    contents = jnp.where(seen[:, None], jnp.asarray(tables.object_ids), -1)
    parts = [
        outcome,
        *([say_goal(tables, state.task)] if goal_in_observation else []),
        word("you are at", always),
        jnp.asarray(tables.receptacle_ids)[state.location],
        word("open", is_open),
        word("closed", can_open & ~is_open),
        word("you hold", always),
        jnp.where(in_hand, thing, -1),
        word("nothing", ~in_hand),
        jnp.where(special, condition, -1)[None],
        word("you see", near),
        jnp.where(lamp, jnp.asarray(tables.lamp_ids), -1),
        word("nothing", near & ~lamp & ~jnp.any(seen)),
        contents.reshape(-1),
    ]
    said = compact(jnp.concatenate(parts).astype(jnp.int32))
    return said[: observation_length(tables, goal_in_observation=goal_in_observation)]


def prompt(tables: Tables, task: HouseholdTask) -> Array:
    """Words before the first observation, int32 `[P]`: where the agent is, which receptacles there are, the goal."""
    exists = jnp.arange(tables.num_receptacles) < rules.level_sizes(tables, "num_receptacles")[task.level]
    receptacles = jnp.where(exists[:, None], jnp.asarray(tables.receptacle_ids[:-1]), -1).reshape(-1)
    start, end = tables.ids("you are at", names.MIDDLE, ".", "you see"), tables.ids(".", "your task is to")
    parts = [jnp.asarray(start), receptacles, jnp.asarray(end), say_goal(tables, task), jnp.asarray(tables.ids("."))]
    return compact(jnp.concatenate(parts).astype(jnp.int32))


def fingerprint(state: HouseholdState) -> Array:
    """Computes a hash of the goal and of what is the case, not of how it came about: uint32 `[]`."""
    task = state.task
    goal = jnp.stack([task.level, task.family, task.object_type, task.target_kind, state.location])
    return hash_integers(goal, state.opened, state.places, state.temperature, state.clean, state.sliced)


def render(tables: Tables, state: HouseholdState) -> str:
    """Lists the receptacles and what is in them, `>` before that where the agent is, and what it holds.

    Args:
        tables: of the world.
        state: of one instance, on the host.

    Returns:
        The goal, one line per receptacle, and the hand.
    """

    spell = partial(sentence, tables.words)

    def things(place: int) -> str:
        inside = np.flatnonzero(np.asarray(state.places) == place)
        return " ".join(spell(tables.object_ids[i]) for i in inside) or "-"

    lines = [spell(say_goal(tables, state.task))]
    for i in range(tables.levels[int(state.task.level)].num_receptacles):
        mark = ">" if int(state.location) == i else " "
        shut = " (closed)" if tables.closable[i] and not bool(state.opened[i]) else ""
        lines.append(f"{mark} {spell(tables.receptacle_ids[i])}{shut}: {things(i)}")
    return "\n".join([*lines, f"  hand: {things(rules.HELD)}"])

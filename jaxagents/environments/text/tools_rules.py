"""Rules of the world of tools: registries, tasks, answers of calls, and the shortest path."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.experts import choose, first_rule
from jaxagents.environments.text.world import Status
from jaxagents.ops.call_grades import Call
from jaxagents.types import Array, Task

NAMES = ("find", "open", "fetch", "list", "track", "send", "push", "set", "post", "move", "mark", "load")
TYPES = ("person", "order", "room", "parcel", "flight", "account")
DAY = len(TYPES)
KEYS = (*TYPES, "day")
VALUES = ("amber", "birch", "cedar", "dune", "elm", "fern", "gold", "hazel", "ivy", "jade")
DAYS = ("monday", "tuesday", "friday")
PURPOSES = ("ship", "refund", "upgrade", "delay", "renew", "cancel")
CALL, ASK, CONFIRM, REFUSE = range(4)
FINE, MALFORMED, NO_TOOL, WRONG_KEYS, UNKNOWN_VALUE, BUSY = range(6)
ERRORS = ("malformed", "no such tool", "wrong keys", "unknown value", "busy")
NUM_LOOKUPS, NUM_TOOLS = 4, 8


@struct.dataclass
class ToolsState:
    """State of the calls.

    Attributes:
        task: the task of the episode.
        seen: bool `[7, V]`, values of each key that were given or returned; only these can be used.
        key: int32, key of the last answer; -1 for none.
        value: int32, value of that key.
        error: int32, one of `ERRORS`, counted from 1; 0 for none.
        confirmed: bool, whether the user confirmed.
        ended: bool, whether something was done, or refused.
        success: bool, whether it was the right thing.
        counts: int32 `[6]`, number of calls; of those that failed, and that could not be read; and of those whose name,
            keys and values were those of the next call of the shortest path.
    """

    task: Task
    seen: Array
    key: Array
    value: Array
    error: Array
    confirmed: Array
    ended: Array
    success: Array
    counts: Array


def make_apps(seed: int, num_apps: int) -> dict[str, np.ndarray]:
    """Draws registries, on the host: tools 0 to 2 lead along a path of types, 3 is a look-alike, 4 to 7 are acts on it.

    Returns:
        Int32 `[A, 8]`: `name`, `takes` and `gives` (types, the latter -1 for acts), `does` (a purpose, -1 for
        look-ups), `dated` (1 if a day is needed), `shown` (the order in the prompt); and `spare`, a purpose that no
        tool serves, `[A]`.
    """
    rng, rows = np.random.default_rng(seed), []
    for _ in range(num_apps):
        path, purposes = rng.permutation(len(TYPES)), rng.permutation(len(PURPOSES))
        acts_on = [*path[1:4], path[rng.integers(1, 4)]]
        rows.append(
            {
                "name": rng.permutation(len(NAMES))[:NUM_TOOLS],
                "takes": [*path[:3], path[4], *acts_on],
                "gives": [*path[1:4], path[rng.integers(1, 4)], -1, -1, -1, -1],
                "does": [-1, -1, -1, -1, *purposes[:4]],
                "dated": [0, 0, 0, 0, *rng.integers(2, size=4)],
                "shown": rng.permutation(NUM_TOOLS),
                "spare": purposes[4],
            }
        )
    return {name: np.asarray([row[name] for row in rows], np.int32) for name in rows[0]}


def sample(
    apps: dict, num_calls: tuple[int, ...], shares: tuple[float, float, float], key: Array, level: Array
) -> Task:
    """Draws an app, an act, the start of the path to it, and the results of the look-ups."""
    app_key, act_key, value_key, day_key, result_key, *share_keys = jax.random.split(key, 8)
    app = jax.random.randint(app_key, (), 0, len(apps["spare"]))
    task = {name: jnp.asarray(table)[app] for name, table in apps.items()}
    calls = jnp.asarray(num_calls, jnp.int32)[level]
    place = place_on_path(task, jnp.arange(4, NUM_TOOLS))
    act = 4 + choose(act_key, place >= calls - 1)
    hidden, careful, impossible = (jax.random.bernoulli(k, share) for k, share in zip(share_keys, shares, strict=True))
    return task | {
        "app": app,
        "act": act,
        "first": place_on_path(task, act) - calls + 1,
        "value": jax.random.randint(value_key, (), 0, len(VALUES)),
        "day": jax.random.randint(day_key, (), 0, len(DAYS)),
        "results": jax.random.randint(result_key, (4, len(VALUES)), 0, len(VALUES)),
        "hidden": hidden,
        "careful": careful,
        "impossible": impossible,
        "level": level,
    }


def path_types(task: Task) -> Array:
    """Returns the types along which look-ups lead, int32 `[4]`."""
    return jnp.append(task["takes"][:1], task["gives"][:3])


def place_on_path(task: Task, tool: Array) -> Array:
    """Returns the position on the path of the type that tools take, 0 to 3."""
    return jnp.argmax(
        task["takes"][tool][..., None] == path_types(task).reshape(*(1,) * jnp.ndim(tool), 4), axis=-1
    ).astype(jnp.int32)


def truth(task: Task) -> Array:
    """Returns the values along the path that belong to the request, int32 `[4]`, from its start on."""
    values = [task["value"]]
    for place in range(1, 4):
        looked_up = task["results"][place - 1, values[-1]]
        values.append(jnp.where(place <= task["first"], task["value"], looked_up))
    return jnp.stack(values)


def start(key: Array, task: Task) -> ToolsState:
    """Returns the state after the request, which may have given the person and the day."""
    del key
    visible, no, none = ~task["hidden"], jnp.zeros((), bool), jnp.asarray(-1, jnp.int32)
    keys, values = np.arange(len(KEYS))[:, None], np.arange(len(VALUES))[None]
    seen = (keys == path_types(task)[task["first"]]) & (values == task["value"])
    seen |= (keys == DAY) & (values == task["day"]) & (task["dated"][task["act"]] > 0)
    return ToolsState(
        task=task,
        seen=seen & visible,
        key=none,
        value=none,
        error=jnp.zeros((), jnp.int32),
        confirmed=no,
        ended=no,
        success=no,
        counts=jnp.zeros(6, jnp.int32),
    )


def plan(state: ToolsState) -> tuple[Array, Array, Array]:
    """Plans the next step of the shortest path.

    Returns:
        Verb int32 `[]`, args int32 `[2, 4]`, and the number of steps to the goal from here, float32 `[]`.
    """
    task, values, path = state.task, truth(state.task), path_types(state.task)
    first, last, dated = task["first"], place_on_path(task, task["act"]), task["dated"][task["act"]] > 0
    places = np.arange(4)
    on_way = (places >= first) & (places <= last)
    lacks = on_way & ~state.seen[path, values]
    ask_first, ask_day = lacks[first], dated & ~state.seen[DAY, task["day"]]
    look_up = jnp.any(lacks & (places > first))
    place = jnp.where(look_up, jnp.argmax(lacks & (places > first)) - 1, last)
    tool = jnp.where(look_up, place, task["act"])
    with_day = dated & ~look_up
    day = jnp.where(with_day, jnp.stack([DAY, len(KEYS) + len(VALUES) + task["day"]]), -1)
    call = jnp.stack([path[place], len(KEYS) + values[place], day[0], day[1]])
    row = jnp.full(4, -1)
    call = jnp.stack([row.at[0].set(task["name"][tool]), call])
    confirm = task["careful"] & ~state.confirmed
    ask_key = jnp.where(ask_first, path[first], DAY)
    verb, args = first_rule(
        [
            (task["impossible"], (REFUSE, jnp.stack([row, row]))),
            (ask_first | ask_day, (ASK, jnp.stack([row.at[0].set(ask_key), row]))),
            (confirm, (CONFIRM, jnp.stack([row, row]))),
            (True, (CALL, call)),
        ]
    )
    steps = 1.0 + jnp.sum(lacks) + ask_day + confirm
    return jnp.int32(verb), args.astype(jnp.int32), jnp.where(task["impossible"], 1.0, steps)


def play(key: Array, state: ToolsState, verb: Array, args: Array, *, failure_rate: float) -> ToolsState:
    """Answers a call, a question, a confirmation or a refusal."""
    task, values = state.task, args[1]
    tool = jnp.argmax(task["name"] == args[0, 0])
    error = find_error(state, args)
    error = jnp.where((error == FINE) & jax.random.bernoulli(key, failure_rate), BUSY, error)
    called, fine = verb == CALL, (verb == CALL) & (error == FINE)
    acts = fine & (task["gives"][tool] < 0)
    permitted = state.confirmed | ~task["careful"]
    right = (tool == task["act"]) & permitted & ~task["impossible"]

    asks_first = (verb == ASK) & (args[0, 0] == path_types(task)[task["first"]])
    asks_day = (verb == ASK) & (args[0, 0] == DAY)
    looked_up = task["results"][jnp.minimum(tool, 3), jnp.clip(values[1] - len(KEYS), 0, len(VALUES) - 1)]
    given_key, value = first_rule(
        [
            (fine & ~acts, (task["gives"][tool], looked_up)),
            (asks_first, (args[0, 0], task["value"])),
            (asks_day, (jnp.int32(DAY), task["day"])),
            (True, (jnp.int32(-1), jnp.int32(-1))),
        ]
    )
    news = (np.arange(len(KEYS))[:, None] == given_key) & (np.arange(len(VALUES))[None] == value)

    next_verb, next_args, _ = plan(state)
    same = (args == next_args) & (next_verb == CALL)
    right_parts = jnp.stack([same[0, 0], same[1, 0] & same[1, 2], same[1, 1] & same[1, 3]])
    failures = jnp.stack([jnp.ones((), bool), error != FINE, error == MALFORMED])
    return state.replace(
        seen=state.seen | news,
        key=given_key,
        value=value,
        error=jnp.where(called, error, FINE),
        confirmed=state.confirmed | (verb == CONFIRM),
        ended=acts | (verb == REFUSE),
        success=(acts & right) | ((verb == REFUSE) & task["impossible"]),
        counts=state.counts + called * jnp.concatenate([failures, right_parts]).astype(jnp.int32),
    )


def find_error(state: ToolsState, args: Array) -> Array:
    """Returns the error of a call, of `FINE`, `MALFORMED` and so on, int32 `[]`, apart from random failures."""
    task, (key, value, other_key, other_value) = state.task, args[1]
    is_pair = (key < len(KEYS)) & (value >= len(KEYS))
    is_other = (other_key >= 0) & (other_key < len(KEYS)) & (other_value >= len(KEYS))
    well_formed = is_pair & (is_other | ((other_key < 0) & (other_value < 0)))
    tool, exists = jnp.argmax(task["name"] == args[0, 0]), jnp.any(task["name"] == args[0, 0])
    keys = (key == task["takes"][tool]) & (other_key == jnp.where(task["dated"][tool] > 0, DAY, -1))
    value, day = value - len(KEYS), other_value - len(KEYS) - len(VALUES)
    known = (value >= 0) & (value < len(VALUES)) & state.seen[key, jnp.clip(value, 0, len(VALUES) - 1)]
    known &= (other_key < 0) | ((day >= 0) & state.seen[DAY, jnp.clip(day, 0)])
    return first_rule(
        [
            (~well_formed, jnp.int32(MALFORMED)),
            (~exists, jnp.int32(NO_TOOL)),
            (~keys, jnp.int32(WRONG_KEYS)),
            (~known, jnp.int32(UNKNOWN_VALUE)),
            (True, jnp.int32(FINE)),
        ]
    )


def documented(state: ToolsState, call: Call) -> Array:
    """Returns whether the app has the called tool, bool `[]`; True for actions that call none."""
    return (call.verb != CALL) | jnp.any(state.task["name"] == call.args[0, 0])


def distance(state: ToolsState) -> Array:
    """Counts the fewest steps to the goal without a failure, float32 `[]`; inf after a wrong act."""
    return jnp.where(state.ended, jnp.where(state.success, 0.0, jnp.inf), plan(state)[2])


def status(state: ToolsState) -> Status:
    """Returns success, the share of the path that is done, and the graded parts."""
    task = state.task
    total = plan(start(jax.random.key(0), task))[2]
    calls, failed, malformed, *hits = state.counts
    needed = jnp.maximum(calls, place_on_path(task, task["act"]) - task["first"] + 1)
    done = state.success.astype(jnp.float32)
    parts = {
        name: jnp.where(task["impossible"], done, hit / needed)
        for name, hit in zip(("name", "keys", "values"), hits, strict=True)
    }
    share = {"format": 1.0 - malformed / jnp.maximum(calls, 1), "error": failed / jnp.maximum(calls, 1), "state": done}
    progress = jnp.clip(1.0 - distance(state) / total, 0.0, 1.0)
    return Status(success=state.success, over=state.ended, progress=progress, parts=parts | share)


def expert(key: Array, state: ToolsState) -> tuple[Array, Array, None]:
    """Takes the shortest path; it knows what the user wants."""
    del key
    verb, args, _ = plan(state)
    return verb, args, None

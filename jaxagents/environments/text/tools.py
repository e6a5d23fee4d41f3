"""Tools in words: a registry of typed functions, its documentation, a request, and calls that build on each other."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp

from jaxagents.environments.text import tools_rules as rules
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import Text, pick, text, when
from jaxagents.environments.text.world import World
from jaxagents.types import Array, Environment, Task


def make_environment(
    num_calls: tuple[int, ...] = (1, 2, 3, 4),
    *,
    num_apps: int = 64,
    hidden: float = 0.0,
    policy: float = 0.0,
    impossible: float = 0.0,
    failure_rate: float = 0.0,
    recall: bool = False,
    split: Literal["tasks", "apps"] = "tasks",
    seed: int = 0,
    max_steps: int = 8,
    **options: Any,
) -> Environment:
    """Makes a world of tools.

    An app has eight tools. The prompt documents them: look-ups, `open takes person gives order`, and acts, `send takes
    order day does ship`; and it gives the user's request: `user wants ship for person elm day friday`. Names, types and
    purposes are drawn for each app, so that names carry no meaning. `call open person elm` is answered by `order gold`,
    or by an error; `call send order gold day friday` ends the episode, with success if it was the right act on the
    right thing. Only values from the dialogue work, so that the number of steps to the goal is exact.

    `info["metrics"]` has the graded parts: `name`, `keys`, `values` (calls in which they were those of the next call of
    the shortest path, divided by the number of calls, or of those needed if that is more), `format` and `error` (calls
    that were understood, and that failed), and `state`, whether the right thing was done in the end.

    Args:
        num_calls: number of calls that a request needs, one per level, from 1 to 4.
        num_apps: number of registries.
        hidden: share of requests that do not say for whom and when; `ask person` and `ask day` make the user say it.
        policy: share of tasks with a rule, `confirm first`: an act without `confirm` before it is a failure.
        impossible: share of requests that no tool of the app serves: `refuse` is then right.
        failure_rate: probability that a call answers `error busy` and has no effect.
        recall: whether the observation repeats what is known, for contexts of few turns.
        split: what is held out: "tasks", or "apps" with tools that training never sees.
        seed: seed of the apps.
        max_steps: maximum turns.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: apps do not have the numbers of calls, shares are not in [0, 1], or there are too few turns or apps.

    References:
        Qian et al. (2025), ToolRL, section 3; Yao et al. (2024), tau-bench, section 3.
    """
    num_calls = tuple(num_calls)
    _check(num_calls, num_apps, (hidden, policy, impossible, failure_rate), split, max_steps)
    world = World(
        name="tools",
        grammar=make_grammar(
            "call {name} {argument:2-4}",
            "ask {key}",
            "confirm",
            "refuse",
            name=rules.NAMES,
            argument=(*rules.KEYS, *rules.VALUES, *rules.DAYS),
            key=rules.KEYS,
        ),
        max_steps=max_steps,
        num_levels=len(num_calls),
        sample=partial(rules.sample, rules.make_apps(seed, num_apps), num_calls, (hidden, policy, impossible)),
        identity=lambda task: task["app"] if split == "apps" else {k: v for k, v in task.items() if k != "level"},
        start=rules.start,
        play=partial(rules.play, failure_rate=failure_rate),
        status=rules.status,
        tell=partial(tell, recall=recall),
        prompt=prompt,
        expert=rules.expert,
        distance=rules.distance,
    )
    return make_text_world(world, **options)


def _check(num_calls, num_apps: int, shares: tuple[float, ...], split: str, max_steps: int) -> None:
    if not num_calls or not 1 <= min(num_calls) <= max(num_calls) <= rules.NUM_LOOKUPS:
        raise ValueError(f"`num_calls` must be from 1 to {rules.NUM_LOOKUPS}, got {num_calls}; try (1, 2).")
    if any(not 0.0 <= share <= 1.0 for share in shares):
        raise ValueError(f"`hidden`, `policy`, `impossible`, `failure_rate` must be in [0, 1], got {shares}.")
    if split not in ("tasks", "apps") or num_apps < (16 if split == "apps" else 1):
        raise ValueError(f'`split` must be "tasks", or "apps" with at least 16, got {split!r} with {num_apps}.')
    needed = max(num_calls) + 2 * (shares[0] > 0) + (shares[1] > 0)
    if max_steps < needed:
        raise ValueError(f"`max_steps` must be at least {needed} for these requests, got {max_steps}.")


def tell(state: rules.ToolsState, seat: Array, *, recall: bool) -> Text:
    """Describes the last answer; with `recall`, the request and everything known come first."""
    del seat
    news = _fact(state.key, state.value)
    quiet = when(state.ended, "done", when(state.confirmed, "yes", "ready"))
    answer = when(
        state.error > 0, text("error", pick(rules.ERRORS, state.error - 1)), when(state.key >= 0, news, quiet)
    )
    known = [when(jnp.any(row), _fact(key, jnp.argmax(row))) for key, row in enumerate(state.seen)]
    return text(_request(state.task), *known, answer) if recall else answer


def _fact(key: Array | int, value: Array) -> Text:
    return text(
        pick(rules.KEYS, key), when(jnp.asarray(key) == rules.DAY, pick(rules.DAYS, value), pick(rules.VALUES, value))
    )


def _request(task: Task) -> Text:
    """Describes what the user wants."""
    whom = text(
        "for",
        pick(rules.TYPES, rules.path_types(task)[task["first"]]),
        when(task["hidden"], None, pick(rules.VALUES, task["value"])),
    )
    dated = (task["dated"][task["act"]] > 0) & ~task["hidden"]
    return text(
        "user wants", pick(rules.PURPOSES, wanted(task)), whom, when(dated, text("day", pick(rules.DAYS, task["day"])))
    )


def document(task: Task, tool: Array) -> Text:
    """Describes a tool: what it takes, and what it gives or does."""
    gives, does = task["gives"][tool], task["does"][tool]
    return text(
        pick(rules.NAMES, task["name"][tool]),
        "takes",
        pick(rules.TYPES, task["takes"][tool]),
        when(task["dated"][tool] > 0, "day"),
        when(gives >= 0, text("gives", pick(rules.TYPES, gives)), text("does", pick(rules.PURPOSES, does))),
    )


def prompt(task: Task, shown: Array | None = None, card: Callable[[Task, Array], Text] = document) -> Text:
    """Describes the documentation of the app, or of the tools that are `shown`, the rule, and the user's request."""
    lines = [card(task, tool) for tool in task["shown"]]
    if shown is not None:
        lines = [when(shown[tool], line) for tool, line in zip(task["shown"], lines, strict=True)]
    return text(*lines, when(task["careful"], text("rule", "confirm")), _request(task))


def wanted(task: Task) -> Array:
    """Returns the purpose that the user names, int32 `[]`; that of the act, if there is a tool for it."""
    return jnp.where(task["impossible"], task["spare"], task["does"][task["act"]])

"""Starting points for wrappers of worlds: the rules over a state, or over a task, that contains the wrapped one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxagents.environments.text.splits import leaves_without_level
from jaxagents.environments.text.world import Payout, World
from jaxagents.types import Array, PyTree, State, Task


def with_inner_state(world: World) -> World:
    """Returns the rules over states `{"inner": state, ...}`, whose other fields they leave unchanged."""

    def lift(function: Callable | None) -> Any:
        return None if function is None else lambda state, *rest: function(state["inner"], *rest)

    def lift_payout(payout: Payout) -> Payout:
        def pay(key: Array, memory: PyTree, state: State, reward: Array, ended: Array) -> tuple[PyTree, Array]:
            return payout.pay(key, memory, state["inner"], reward, ended)

        return payout._replace(pay=pay)

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        return {**state, "inner": world.play(key, state["inner"], verb, args)}

    skip = world.skip
    names = ("player", "allowed", "accepts", "subgrammar", "distance", "render", "look")
    return replace(
        world,
        start=lambda key, task: {"inner": world.start(key, task)},
        play=play,
        status=lift(world.status),
        tell=lift(world.tell),
        expert=lambda key, state: world.expert(key, state["inner"]),
        situation=lift(world.situation or leaves_without_level),
        skip=None if skip is None else lambda state: {**state, "inner": skip(state["inner"])},
        payouts=tuple(map(lift_payout, world.payouts)),
        **{name: lift(getattr(world, name)) for name in names},
    )


def with_inner_task(world: World, **fields: Any) -> World:
    """Returns the rules over tasks `{"inner": task, "level", ...}`.

    Args:
        world: rules of the world.
        **fields: further fields of the tasks, arrays, with their values before `complete` changes them.

    Returns:
        The rules; `start` and `prompt` still see only the inner task.
    """

    def sample(key: Array, level: Array) -> Task:
        return {"inner": world.sample(key, level), "level": level, **fields}

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        return {**task, "inner": world.complete(key, task["inner"], held_out)}

    def easier(task: Task, number: Array) -> Task:
        return {**task, "inner": world.easier(task["inner"], number)}

    identity, prompt, limit = world.identity or leaves_without_level, world.prompt, world.limit
    return replace(
        world,
        sample=sample,
        identity=lambda task: identity(task["inner"]),
        complete=None if world.complete is None else complete,
        start=lambda key, task: world.start(key, task["inner"]),
        prompt=None if prompt is None else lambda task: prompt(task["inner"]),
        limit=None if limit is None else lambda task: limit(task["inner"]),
        easier=None if world.easier is None else easier,
    )

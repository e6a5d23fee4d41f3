"""Turn budgets that are drawn with the task and shown (DoctorAgent-RL, Feng et al., 2025)."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Text, number, text
from jaxagents.environments.text.world import Status, World, grades
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, State, Task


def with_turn_budget(world: World, *, fewest: int = 2, most: int | None = None) -> World:
    """Draws the number of turns of an episode, and shows it: `turn 3 of 8 <observation>`.

    The task is `{"inner": task, "budget": int32, "level": int32}`; the budget is uniform from `fewest` to `most`. An
    episode is truncated after it. The part `overtime` says that all turns are used and the episode has not ended by
    itself.

    Args:
        world: rules with one seat.
        fewest: minimum turns of a budget.
        most: maximum turns of a budget; None: the limit of the world.

    Returns:
        The rules.

    Raises:
        ValueError: the world has several seats, or the budgets do not fit its limit.

    References:
        Feng et al. (2025), "DoctorAgent-RL: A Multi-Agent Collaborative Reinforcement Learning System for Multi-Turn
        Clinical Dialogue" (dynamic turn budgets).
    """
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat for a budget, got {world.num_seats} in {world.name!r}.")
    most = world.max_steps if most is None else most
    require_between("most", most, 1, world.max_steps)
    require_between("fewest", fewest, 1, most)
    outer, digits = with_inner_state(with_inner_task(world, budget=jnp.int32(most))), len(str(most))

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        budget_key, key = jax.random.split(key)
        inner = task["inner"] if world.complete is None else world.complete(key, task["inner"], held_out)
        return {**task, "inner": inner, "budget": jax.random.randint(budget_key, (), fewest, most + 1)}

    def limit(task: Task) -> Array:
        own = world.max_steps if world.limit is None else world.limit(task["inner"])
        return jnp.minimum(task["budget"], own)

    def start(key: Array, task: Task) -> State:
        return {"inner": world.start(key, task["inner"]), "turn": jnp.int32(0), "budget": limit(task)}

    def after_turn(state: State) -> State:
        return {**state, "turn": state["turn"] + 1}

    def status(state: State) -> Status:
        inner = outer.status(state)
        overtime = (state["turn"] >= state["budget"]) & ~inner.over
        return inner.replace(parts={**inner.parts, **grades(overtime=overtime)})

    def tell(state: State, seat: Array) -> Text:
        turn = jnp.minimum(state["turn"] + 1, state["budget"])
        counter = text("turn", number(turn, digits), "of", number(state["budget"], digits))
        return text(counter, outer.tell(state, seat))

    return replace(
        outer,
        complete=complete,
        limit=limit,
        max_steps=most,
        start=start,
        play=lambda key, state, verb, args: after_turn(outer.play(key, state, verb, args)),
        skip=lambda state: after_turn(state if world.skip is None else outer.skip(state)),
        status=status,
        tell=tell,
        situation=lambda state: (state["turn"], state["budget"], outer.situation(state)),
    )

"""Single steps of worlds, graded by comparison with the expert's: the data of step-wise reinforcement learning."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.world import Status, World, grades
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.types import Array, State, Task

GRADES = ("step_valid", "step_type", "step_right", "step_tool", "step_answer")


def with_expert_steps(world: World, *, num_steps: int = 4) -> World:
    """Starts episodes on the expert's path and grades every action by the expert's in the same state.

    With `collector.max_turns=1`, episodes are single steps of transcripts. The world reports these parts, each the sum
    over the turns so far, so that dense rewards pay the increase of a turn:

    - `step_valid`: the action was understood and allowed;
    - `step_type`: it has the verb of the expert's action;
    - `step_right`: it has the same effect as the expert's action, such as another place in the same box;
    - `step_tool`: neither the expert's action nor this one ends the episode: a tool was used;
    - `step_answer`: the expert ends the episode, and the action does, too; the F1 of the words of its fields and those
      of the expert's, 1 without fields.

    The task is `{"inner": task, "ahead": int32, "level": int32}`. Held-out tasks start at their beginning.

    Args:
        world: rules with one seat.
        num_steps: maximum steps of the expert before an episode, drawn uniformly from 0; never past the end.

    Returns:
        The rules.

    Raises:
        ValueError: the world has several seats, or the number of steps is negative.

    References:
        Liu et al. (2025), "Visual Agentic Reinforcement Fine-Tuning" (rewards by the kind of a step).
        Yan et al. (2025), "GUI Exploration Lab" (single-turn RL on steps of shortest paths).
    """
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat, got {world.num_seats} in {world.name!r}.")
    if num_steps < 0:
        raise ValueError(f"`num_steps` must not be negative, got {num_steps}; try 0 for whole episodes.")
    literal = {
        word for row in world.grammar.elements for one in row if one.kind == "literal" for word in one.phrases[0]
    }
    fields = np.asarray([word not in literal for word in world.grammar.words])
    outer = with_inner_state(with_inner_task(world, ahead=jnp.zeros((), jnp.int32)))
    situation = outer.situation

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        inner_key, step_key = jax.random.split(key)
        inner = task["inner"] if world.complete is None else world.complete(inner_key, task["inner"], held_out)
        ahead = jax.random.randint(step_key, (), 0, num_steps + 1)
        return {**task, "inner": inner, "ahead": jnp.where(held_out, 0, ahead)}

    def start(key: Array, task: Task) -> State:
        start_key, expert_key = jax.random.split(key)
        inner = on_the_way(world, expert_key, world.start(start_key, task["inner"]), task["ahead"], num_steps)
        return {"inner": inner, "grades": jnp.zeros(len(GRADES))}

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        other_verb, other_args, _ = world.expert(key, state["inner"])
        after, other = outer.play(key, state, verb, args), outer.play(key, state, other_verb, other_args)
        ends, other_ends = (world.status(one["inner"]).over for one in (after, other))
        same = [jnp.all(one == two) for one, two in zip(*(jax.tree.leaves(situation(s)) for s in (after, other)))]
        words = [world.grammar.render(*action) for action in ((verb, args), (other_verb, other_args))]
        grade = [
            True,
            verb == other_verb,
            jnp.all(jnp.asarray(same)),
            ~ends & ~other_ends,
            jnp.where(ends & other_ends, field_f1(*(_mentioned(one, fields) for one in words)), 0.0),
        ]
        return {**after, "grades": state["grades"] + jnp.stack([jnp.asarray(one, jnp.float32) for one in grade])}

    def status(state: State) -> Status:
        inner = outer.status(state)
        return inner.replace(parts={**inner.parts, **grades(**dict(zip(GRADES, state["grades"])))})

    return replace(outer, complete=complete, start=start, play=play, status=status)


def ask_some(world: World, *, share: float, num_steps: int) -> Callable[[Array, Task, bool], Task]:
    """Makes the function that turns some tasks into questions, asked on the expert's path.

    Args:
        world: rules whose task is `task["inner"]`.
        share: share of the tasks that are questions, in [0, 1]; held-out ones never are.
        num_steps: maximum steps of the expert before the question, drawn uniformly from 0.

    Returns:
        `(key, task, held_out) -> task`, with `asks` (bool) and `ahead` (int32).
    """

    def complete(key: Array, task: Task, held_out: bool) -> Task:
        inner_key, ask_key, step_key = jax.random.split(key, 3)
        inner = task["inner"] if world.complete is None else world.complete(inner_key, task["inner"], held_out)
        asks = jax.random.bernoulli(ask_key, share) & (not held_out)
        ahead = jax.random.randint(step_key, (), 0, num_steps + 1)
        return {**task, "inner": inner, "asks": asks, "ahead": jnp.where(asks, ahead, 0)}

    return complete


def on_the_way(
    world: World, key: Array, state: State, ahead: Array | int, num_steps: int, *, to_end: bool = False
) -> State:
    """Returns the state after some steps of the expert.

    Args:
        world: rules with one seat.
        key: random key for its decisions and for chance.
        state: initial state.
        ahead: int32 `[]`, number of steps.
        num_steps: maximum number of steps, static.
        to_end: whether to take the step that ends the episode, too; False: stops before it.

    Returns:
        The state.
    """
    for number in range(num_steps):
        expert_key, play_key = jax.random.split(jax.random.fold_in(key, number))
        after = world.play(play_key, state, *world.expert(expert_key, state)[:2])
        goes = (number < ahead) & ~world.status(state if to_end else after).over
        state = jax.tree.map(lambda new, old, goes=goes: jnp.where(goes, new, old), after, state)
    return state


def field_f1(one: Array, other: Array) -> Array:
    """Computes the F1 of two sets of words, bool `[W]` each; 1 if both are empty."""
    shared, total = jnp.sum(one & other), jnp.sum(one) + jnp.sum(other)
    return jnp.where(total == 0, 1.0, 2.0 * shared / jnp.maximum(total, 1))


def _mentioned(action: Array, fields: np.ndarray) -> Array:
    """Returns which words of fields an action has, bool `[W]`."""
    return jnp.any(action[:, None] == np.arange(len(fields))[None], axis=0) & fields

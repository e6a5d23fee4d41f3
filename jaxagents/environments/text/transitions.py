"""UIShift (Gao et al., 2025): which action leads from one screen to the next? Transcripts without instructions."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.environments.text.expert_steps import ask_some, on_the_way
from jaxagents.environments.text.texts import Text, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.wrapping import with_inner_state, with_inner_task
from jaxagents.ops.checks import require_between
from jaxagents.types import Array, State, Task


def with_transitions(world: World, *, share: float = 1.0, num_steps: int = 4, gap: int = 1) -> World:
    """Turns some tasks into a question: which action leads from the first view to the second?

    The observation reads `<view> then <later view>`, without the instruction of the task (`World.look`; without one,
    the whole observation). Between them are actions of the expert, the first of which is asked for. The answer is an
    action of the world and ends the episode; it is right if it has the verb and the effect of the expert's action, such
    as another place in the same box. Held-out tasks are never questions.

    The task is `{"inner": task, "asks": bool, "ahead": int32, "level": int32}`.

    Args:
        world: rules with one seat.
        share: share of the tasks that are questions, in [0, 1].
        num_steps: maximum steps of the expert before the question, drawn uniformly from 0; never past the end.
        gap: k, number of actions between the views; fewer if the episode ends.

    Returns:
        The rules.

    Raises:
        ValueError: the world has several seats, the share is not in [0, 1], or there is no action in between.

    References:
        Gao et al. (2025), "UIShift: Enhancing VLM-based GUI Agents through Self-supervised Reinforcement Learning",
        section 3 (k-step UI transition).
    """
    if world.num_seats > 1:
        raise ValueError(f"`world` must have one seat, got {world.num_seats} in {world.name!r}.")
    require_between("share", share, 0.0, 1.0)
    require_between("gap", gap, 1)
    outer = with_inner_state(with_inner_task(world, asks=jnp.zeros((), bool), ahead=jnp.zeros((), jnp.int32)))
    situation = outer.situation

    def start(key: Array, task: Task) -> State:
        start_key, expert_key, later_key = jax.random.split(key, 3)
        inner = on_the_way(world, expert_key, world.start(start_key, task["inner"]), task["ahead"], num_steps)
        verb, args, _ = world.expert(later_key, inner)
        later = on_the_way(world, later_key, world.play(later_key, inner, verb, args), gap - 1, gap - 1, to_end=True)
        no = jnp.zeros((), bool)
        state = {"inner": inner, "asks": task["asks"], "later": later, "verb": verb, "args": args}
        return state | {"answered": no, "right": no}

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        after, other = outer.play(key, state, verb, args), outer.play(key, state, state["verb"], state["args"])
        same = [jnp.all(one == two) for one, two in zip(*(jax.tree.leaves(situation(s)) for s in (after, other)))]
        right = (verb == state["verb"]) & jnp.all(jnp.asarray(same))
        answered = {**state, "answered": jnp.ones((), bool), "right": right}
        return jax.tree.map(lambda one, two: jnp.where(state["asks"], one, two), answered, after)

    def status(state: State) -> Status:
        inner = outer.status(state)
        progress = None if inner.progress is None else jnp.where(state["asks"], 0.0 + state["right"], inner.progress)
        return inner.replace(
            success=jnp.where(state["asks"], state["right"], inner.success),
            over=jnp.where(state["asks"], state["answered"], inner.over),
            progress=progress,
        )

    def tell(state: State, seat: Array) -> Text:
        look = world.look or (lambda inner: world.tell(inner, seat))
        both = text(look(state["inner"]), "then", look(state["later"]))
        return when(state["asks"], both, outer.tell(state, seat))

    def expert(key: Array, state: State) -> tuple[Array, Array, Text | None]:
        verb, args, thought = world.expert(key, state["inner"])
        known = jax.tree.map(
            lambda one, two: jnp.where(state["asks"], one, two), (state["verb"], state["args"]), (verb, args)
        )
        return *known, thought

    def distance(state: State) -> Array:
        asked = jnp.where(state["answered"], jnp.where(state["right"], 0.0, jnp.inf), 1.0)
        return jnp.where(state["asks"], asked, world.distance(state["inner"]))

    return replace(
        outer,
        complete=ask_some(world, share=share, num_steps=num_steps),
        start=start,
        play=play,
        status=status,
        tell=tell,
        look=None,
        expert=expert,
        distance=None if world.distance is None else distance,
        situation=lambda state: ({k: v for k, v in state.items() if k != "inner"}, situation(state)),
    )

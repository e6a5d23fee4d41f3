"""Return values of the functions of a text world, found by tracing them, and checks of these."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.environments.text.texts import Text
from jaxagents.environments.text.turns import acts_together
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.writing import words_of
from jaxagents.types import Array, PyTree


class Shapes(NamedTuple):
    """Return values of the functions of a world, with abstract arrays."""

    state: PyTree
    status: Status
    observation: Text
    prompt: Text | None
    action: tuple[Any, Any]
    thought: Text | None
    following: PyTree
    allowed: Any


def trace_world(world: World) -> Shapes:
    """Traces the return values of the functions of a world; nothing is computed."""
    key, zero, shape = jax.random.key(0), jnp.zeros((), jnp.int32), (world.grammar.max_args, world.grammar.max_length)
    several = (world.num_seats,) if acts_together(world) else ()

    def follow(key: Array) -> Shapes:
        task = world.sample(key, zero)
        task = task if world.complete is None else world.complete(key, task, False)
        state = world.start(key, task)
        *action, thought = world.expert(key, state)
        verb, args = jnp.zeros(several, jnp.int32), jnp.zeros((*several, *shape), jnp.int32)
        return Shapes(
            state=state,
            status=world.status(state),
            observation=world.tell(state, zero),
            prompt=None if world.prompt is None else world.prompt(task),
            action=tuple(action),  # type: ignore[arg-type]
            thought=thought,
            following=world.play(key, state, verb, args),
            allowed=None if world.allowed is None else world.allowed(state),
        )

    return jax.eval_shape(follow, key)


def world_words(world: World) -> tuple[str, ...]:
    """Lists all words of a world: those of its actions, observations, prompts and thoughts."""
    shapes = trace_world(world)
    texts = [one for one in (shapes.observation, shapes.prompt, shapes.thought) if one is not None]
    return tuple(dict.fromkeys([*world.grammar.words, *(word for one in texts for word in words_of(one))]))


def check_world(world: World, shapes: Shapes, reward: str, illegal: str) -> None:
    grammar, several = world.grammar, (world.num_seats,) if acts_together(world) else ()
    if reward not in ("sparse", "dense"):
        raise ValueError(f'`reward` must be "sparse" or "dense", got {reward!r}; try "sparse".')
    if illegal not in ("no_op", "forfeit"):
        raise ValueError(f'`illegal` must be "no_op" or "forfeit", got {illegal!r}.')
    status = shapes.status
    if reward == "dense" and status.progress is None and status.payoff is None:
        raise ValueError(f'`reward` must be "sparse" where the rules tell no progress, got "dense" in {world.name!r}.')
    payoff = None if status.payoff is None else status.payoff.shape
    if payoff != (world.num_seats,) and (payoff is not None or world.num_seats > 1):
        raise ValueError(
            f"`status` must give a payoff to each of {world.num_seats} seats of {world.name!r}, got {payoff}."
        )
    action = [(*several,), (*several, grammar.max_args, grammar.max_length)]
    for name, got, wanted in (
        ("expert", [one.shape for one in shapes.action], action),
        ("play", _described(shapes.following), _described(shapes.state)),
        (
            "allowed",
            None if shapes.allowed is None else shapes.allowed.shape,
            None if shapes.allowed is None else (*several, grammar.num_entries),
        ),
    ):
        if got != wanted:
            raise ValueError(f"`{name}` of {world.name!r} must return arrays of {wanted}, got {got}.")


def _described(tree: PyTree) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}

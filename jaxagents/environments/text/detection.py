"""Pictures in words, in which all objects of a class are to be found: boxes, with a confidence for each."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text import scene
from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.texts import pick
from jaxagents.environments.text.world import Status, World, grades
from jaxagents.ops.checks import require_between
from jaxagents.ops.detection import detection_rewards
from jaxagents.types import Array, Environment, Task

CONFIDENCES = {"low": 0.1, "even": 0.5, "high": 0.9}


def make_environment(num_objects: Sequence[int] = (2,), **options: Any) -> Environment:
    """Makes a world of pictures in which all objects of a class are to be found, in one turn.

    Pictures are those of `environments.text.scene`, upright. `find cat` asks for all cats; in one of two pictures, each
    object but the first is a cat, too. The answer has a box per cat, each with a word of confidence: `boxes 2 0 high 0
    2 low`. It is a success if all boxes are right and none is missing or superfluous.

    `info["metrics"]` has `iou` and `confidence`, see `ops.detection.detection_rewards`, and `right`, the success.
    `progress` is `iou`. The expert is confident.

    Args:
        num_objects: number of objects in a picture, one per level, from 1 to 3.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: the numbers of objects are out of their range.

    References:
        Liu et al. (2025), Visual-RFT, section 3.2 (lists of boxes with confidences).
    """
    require_between("num_objects", num_objects, 1, 3)
    sides, most = tuple(min(2 + 2 * count, 6) for count in num_objects), max(num_objects)
    box, places = " {column} {row} {confidence}", tuple(map(str, range(max(sides))))
    templates = ["boxes" + box * count for count in range(1, most + 1)]
    grammar = make_grammar(*templates, column=places, row=places, confidence=tuple(CONFIDENCES))
    world = World(
        name="detection",
        grammar=grammar,
        max_steps=1,
        num_levels=len(num_objects),
        sample=partial(sample, tuple(num_objects), sides),
        start=partial(start, most),
        play=lambda key, state, verb, args: state.replace(answer=args[:, 0].reshape(-1, 3)),
        status=status,
        tell=partial(scene.tell, max(sides)),
        expert=expert,
    )
    return make_text_world(world, **options)


def sample(num_objects: tuple[int, ...], sides: tuple[int, ...], key: Array, level: Array) -> Task:
    """Draws objects as `scene.sample` does; each one after the first has its class in one of two pictures."""
    scene_key, twin_key = jax.random.split(key)
    task = scene.sample(num_objects, sides, 0.0, scene_key, level)
    name = task["objects"][:, 0]
    twin = jax.random.bernoulli(twin_key, 0.5, name.shape) & (name >= 0)
    name = jnp.where(twin, name[0], name)
    return {**task, "objects": task["objects"].at[:, 0].set(name), "finds": jnp.bool_(True)}


def start(most: int, key: Array, task: Task) -> scene.SceneState:
    """Returns the picture before the answer."""
    del key
    no, nothing = jnp.bool_(False), jnp.full((most, 3), -1, jnp.int32)
    return scene.SceneState(task=task, turned=no, inverted=no, answer=nothing, tools=jnp.int32(0))


def status(state: scene.SceneState) -> Status:
    """Grades the boxes."""
    objects, predicted = state.task["objects"], state.answer[:, 0] >= 0
    truth, there = _corners(objects[:, 1:]), objects[:, 0] == objects[0, 0]
    confidence = jnp.asarray(list(CONFIDENCES.values()))[state.answer[:, 2]]
    iou, sure = detection_rewards(_corners(state.answer[:, :2]), confidence, predicted, truth, there)
    over = jnp.any(predicted)
    right = over & (iou == 1.0) & (jnp.sum(predicted) == jnp.sum(there))
    return Status(success=right, over=over, progress=iou, parts=grades(iou=iou, confidence=sure, right=right))


def expert(key: Array, state: scene.SceneState) -> tuple[Array, Array, Any]:
    """Gives all boxes, from left to right in the list of the task, and thinks of the pattern that it looks for."""
    del key
    objects = state.task["objects"]
    there = objects[:, 0] == objects[0, 0]
    first = jnp.argsort(~there, stable=True)
    sure = jnp.full((len(objects), 1), list(CONFIDENCES).index("high"))
    boxes = jnp.where(there[first, None], jnp.concatenate([objects[first, 1:], sure], axis=1), -1)
    thought = pick(scene.CELLS, jnp.asarray(scene.INK)[objects[0, 0]])
    return (jnp.sum(there) - 1).astype(jnp.int32), boxes.reshape(-1, 1).astype(jnp.int32), thought


def _corners(place: Array) -> Array:
    """Returns left, top, right and bottom of boxes of two by two cells, from their columns and rows `[M, 2]`."""
    return jnp.concatenate([place, place + 2], axis=1).astype(np.float32)

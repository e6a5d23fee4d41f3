"""Episodes on screens: apps of linked pages with decoys and loading failures, in which a page has to be found."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.screen import KINDS, LABELS, SIDE, list_elements
from jaxagents.environments.text.screens_apps import ADVERT, DEPTH, ELEMENTS, PAGES, Apps, draw_apps
from jaxagents.environments.text.texts import Text, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.ops.checks import require_between, require_one_of, require_positive
from jaxagents.types import Array, Environment, Task

CLICK, BACK, FINISH = range(3)


@struct.dataclass
class ScreensState:
    """State of the navigation.

    Attributes:
        task: the task of the episode.
        at: int32, current page.
        before: int32, page from which an advert was opened.
        failed: bool, whether the last click should have opened a page but failed.
        finished: bool, whether the episode was finished.
        counts: float32 `[3]`, numbers of steps back, adverts and failures so far.
    """

    task: Task
    at: Array
    before: Array
    failed: Array
    finished: Array
    counts: Array


def make_environment(
    num_apps: int = 64,
    *,
    num_decoys: int = 1,
    failure_rate: float = 0.0,
    split: str = "apps",
    max_steps: int = 10,
    seed: int = 0,
    **options: Any,
) -> Environment:
    """Makes episodes on screens, each in one of some apps of eight pages.

    The observation names the page, lists its elements as in `environments.text.screen`, and says what to find: `home
    link save 3 5 icon mail 10 2 find news`. `click 3 5` opens the page with the same name as the element that it hits;
    decoys, whose names belong to no page, open an advert. `back` leads to the previous page, `finish` ends the episode,
    with success on the page to be found. Level l asks for pages l + 1 clicks away. Apps are the same in every task, so
    that those of training can be memorised and others have to be explored.

    `info["metrics"]` has `steps_back`, `adverts` and `failures`. The expert knows all apps.

    Args:
        num_apps: number of apps.
        num_decoys: maximum number of decoys per page, 0 to 3; no page has more than four elements.
        failure_rate: probability that a click fails and is answered by `failed`, in [0, 1).
        split: what is held out: "apps", or "tasks", pages to find in apps that training knows.
        max_steps: maximum turns.
        seed: seed of the apps.
        **options: arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers, a rate or the split are invalid, or there are too few turns for the farthest page.

    References:
        Bai et al. (2024), DigiRL, section 3 (failing pages); Xie et al. (2025), GE-Lab (navigation graphs).
    """
    require_positive("num_apps", num_apps)
    require_between("num_decoys", num_decoys, 0, ELEMENTS - 1)
    if not 0.0 <= failure_rate < 1.0:
        raise ValueError(f"`failure_rate` must be at least 0 and below 1, got {failure_rate}; try 0.2.")
    require_one_of("split", split, ("apps", "tasks"))
    require_between("max_steps", max_steps, DEPTH + 1)
    apps = draw_apps(num_apps, num_decoys, seed)
    cells = tuple(map(str, range(SIDE)))
    world = World(
        name="screens",
        grammar=make_grammar("click {column} {row}", "back", "finish", column=cells, row=cells),
        max_steps=max_steps,
        num_levels=DEPTH,
        sample=partial(sample, apps),
        identity=lambda task: task["app"] if split == "apps" else (task["app"], task["goal"]),
        start=start,
        situation=lambda state: (state.task["goal"], state.at, state.before, state.failed, state.finished),
        play=partial(play, apps, failure_rate),
        status=partial(status, apps),
        allowed=lambda state: jnp.ones(SIDE**2 + 2, bool).at[-2].set(state.at != 0),
        tell=partial(tell, apps, cells),
        look=partial(look, apps, cells),
        expert=partial(expert, apps),
        distance=None if failure_rate else partial(distance, apps),
    )
    return make_text_world(world, **options)


def sample(apps: Apps, key: Array, level: Array) -> Task:
    """Draws an app, and a page of it at the distance of the level."""
    app_key, goal_key = jax.random.split(key)
    app = jax.random.randint(app_key, (), 0, len(apps.depth))
    return {"app": app, "goal": choose(goal_key, jnp.asarray(apps.depth)[app] == level + 1), "level": level}


def start(key: Array, task: Task) -> ScreensState:
    """Returns the first page."""
    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    return ScreensState(task=task, at=zero, before=zero, failed=no, finished=no, counts=jnp.zeros(3))


def play(apps: Apps, failure_rate: float, key: Array, state: ScreensState, verb: Array, args: Array) -> ScreensState:
    """Clicks, goes back or finishes."""
    app, at = state.task["app"], state.at
    elements, target = jnp.asarray(apps.elements)[app, at], jnp.asarray(apps.target)[app, at]
    size = jnp.asarray(list(KINDS.values()), jnp.int32)[elements[:, 0]]
    offset = args[:2, 0][None] - elements[:, 2:]
    hit = jnp.all((offset >= 0) & (offset < size), axis=1) & (target >= 0)
    opened = jnp.where(jnp.any(hit), target[jnp.argmax(hit)], at)
    failed = (verb == CLICK) & (opened != at) & jax.random.bernoulli(key, failure_rate)
    parent = jnp.where(at == ADVERT, state.before, jnp.asarray(apps.parent)[app, jnp.minimum(at, PAGES - 1)])
    to = jnp.where(verb == BACK, parent, jnp.where((verb == CLICK) & ~failed, opened, at))
    return state.replace(
        at=to,
        before=jnp.where((to == ADVERT) & (at != ADVERT), at, jnp.where(to == ADVERT, state.before, 0)),
        failed=failed,
        finished=verb == FINISH,
        counts=state.counts + jnp.stack([verb == BACK, (to == ADVERT) & (at != ADVERT), failed]),
    )


def distance(apps: Apps, state: ScreensState) -> Array:
    """Returns the fewest actions to a success, including `finish`, if no page fails."""
    page, advert = jnp.where(state.at == ADVERT, state.before, state.at), state.at == ADVERT
    left = jnp.asarray(apps.steps)[state.task["app"], page, state.task["goal"]] + advert + 1.0
    won = state.finished & (state.at == state.task["goal"])
    return jnp.where(state.finished, jnp.where(won, 0.0, jnp.inf), left)


def status(apps: Apps, state: ScreensState) -> Status:
    """Returns whether the right page was found, and how near it is."""
    success = state.finished & (state.at == state.task["goal"])
    far = distance(apps, state.replace(finished=jnp.bool_(False))) - success
    progress = jnp.where(state.finished & ~success, 0.0, 1.0 - far / (state.task["level"] + 2.0))
    parts = dict(zip(("steps_back", "adverts", "failures"), state.counts))
    return Status(success=success, over=state.finished, progress=progress, parts=parts)


def tell(apps: Apps, cells: tuple[str, ...], state: ScreensState, seat: Array) -> Text:
    """Describes the page, its elements, and what is to be found."""
    goal = pick(LABELS, jnp.asarray(apps.title)[state.task["app"]][state.task["goal"]])
    return text(look(apps, cells, state), "find", goal)


def look(apps: Apps, cells: tuple[str, ...], state: ScreensState) -> Text:
    """Describes the page and its elements."""
    app, titles = state.task["app"], jnp.asarray(apps.title)[state.task["app"]]
    named = jnp.where(state.at == ADVERT, 1, jnp.where(state.at == 0, 0, 2 + titles[state.at]))
    elements = jnp.asarray(apps.elements)[app, state.at]
    listed = list_elements(cells, elements)
    return text(pick(("home", "advert", *LABELS), named), listed, when(state.failed, "failed"))


def expert(apps: Apps, key: Array, state: ScreensState) -> tuple[Array, Array, None]:
    """Takes the shortest path, with clicks in the middle of boxes."""
    app, goal = state.task["app"], state.task["goal"]
    way = jnp.where(state.at == ADVERT, -1, jnp.asarray(apps.way)[app, jnp.minimum(state.at, PAGES - 1), goal])
    kind, _, *corner = jnp.asarray(apps.elements)[app, state.at, way]
    middle = jnp.stack(corner) + (jnp.asarray(list(KINDS.values()), jnp.int32)[kind] - 1) // 2
    verb = jnp.where(state.at == goal, FINISH, jnp.where(way < 0, BACK, CLICK)).astype(jnp.int32)
    return verb, jnp.where(verb == CLICK, middle, -1)[:, None].astype(jnp.int32), None

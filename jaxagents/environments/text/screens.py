"""Episodes on screens: apps of linked pages with decoys and pages that fail to load; a page has to be found."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.experts import choose
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.screen import KINDS, LABELS, SIDE
from jaxagents.environments.text.texts import Text, pick, text, when
from jaxagents.environments.text.world import Status, World
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Environment, Task

PAGES, ELEMENTS, MOST_LINKS, DEPTH = 8, 4, 3, 3
ADVERT = PAGES
"""The page behind every decoy; it leads nowhere but back."""
CLICK, BACK, FINISH = range(3)


class Apps(NamedTuple):
    """Tables of A apps; page 0 is the first one.

    Attributes:
        title: int32 `[A, 9]`, label of a page; -1 for the first one and the advert.
        depth: int32 `[A, 8]`, clicks from the first page.
        elements: int32 `[A, 9, 4, 4]`, kind, label, column and row, -1 for none.
        target: int32 `[A, 9, 4]`, page behind an element, -1 for none.
        parent: int32 `[A, 8]`, the page before; of the first one itself.
        steps: int32 `[A, 8, 8]`, clicks and ways back from a page to another.
        way: int32 `[A, 8, 8]`, the element to click on the way, -1 to go back or where it is.
    """

    title: np.ndarray
    depth: np.ndarray
    elements: np.ndarray
    target: np.ndarray
    parent: np.ndarray
    steps: np.ndarray
    way: np.ndarray


@struct.dataclass
class ScreensState:
    """Where the user is.

    Attributes:
        task: the task of the episode.
        at: int32, the page.
        before: int32, the page from which an advert was opened.
        failed: bool, the last click opened nothing though it should have.
        finished: bool.
        counts: float32 `[3]`, ways back, adverts and failures so far.
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

    The observation names the page, lists what is on it as in `environments.text.screen`, and says what to find:
    `home link save 3 5 icon mail 10 2 find news`. `click 3 5` opens the page that is called like the element which it
    hits; decoys, which are called like no page, open an advert. `back` leads to the page before, `finish` ends the
    episode, with success on the page that was to be found. Level l asks for pages l + 1 clicks away. Apps are the same
    in every task, so that those of training can be learnt by heart and others have to be searched.

    `info["metrics"]` tells `steps_back`, `adverts` and `failures`. The expert knows all apps.

    Args:
        num_apps: how many there are.
        num_decoys: on every page, at most, 0 to 3; no page has more than four elements.
        failure_rate: probability that a click in vain is answered by `failed`, in [0, 1).
        split: holds out "apps", or "tasks": pages to find in apps that training knows.
        max_steps: turns.
        seed: of the apps.
        **options: of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: numbers, a rate or a split that are not there, or too few turns for the farthest page.

    References:
        Bai et al. (2024), DigiRL, section 3 (failing pages); Xie et al. (2025), GE-Lab (navigation graphs).
    """
    require_positive("num_apps", num_apps)
    if not 0 <= num_decoys <= ELEMENTS - 1:
        raise ValueError(f"`num_decoys` must be from 0 to {ELEMENTS - 1}, got {num_decoys}.")
    if not 0.0 <= failure_rate < 1.0:
        raise ValueError(f"`failure_rate` must be at least 0 and below 1, got {failure_rate}; try 0.2.")
    if split not in ("apps", "tasks"):
        raise ValueError(f'`split` must be "apps" or "tasks", got {split!r}.')
    if max_steps < DEPTH + 1:
        raise ValueError(f"`max_steps` must be at least {DEPTH + 1}, got {max_steps}.")
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
        expert=partial(expert, apps),
        distance=None if failure_rate else partial(distance, apps),
    )
    return make_text_world(world, **options)


def draw_apps(num_apps: int, num_decoys: int, seed: int) -> Apps:
    """Draws apps, on the host."""
    generator = np.random.default_rng(seed)
    return Apps(*map(np.stack, zip(*(_draw_app(generator, num_decoys) for _ in range(num_apps)))))


def _draw_app(generator: np.random.Generator, num_decoys: int) -> Apps:
    parent, depth = np.zeros(PAGES, np.int32), np.zeros(PAGES, np.int32)
    for page in range(1, PAGES):
        free = [one for one in range(page) if np.sum(parent[1:page] == one) < MOST_LINKS and depth[one] < DEPTH]
        parent[page] = page - 1 if page <= DEPTH else generator.choice(free)
        depth[page] = depth[parent[page]] + 1
    labels = generator.permutation(len(LABELS)).astype(np.int32)
    title = np.concatenate([[-1], labels[: PAGES - 1], [-1]]).astype(np.int32)
    decoys = iter(np.tile(labels[PAGES - 1 :], 2))
    elements = np.full((PAGES + 1, ELEMENTS, 4), -1, np.int32)
    target = np.full((PAGES + 1, ELEMENTS), -1, np.int32)
    for page in range(PAGES):
        links = [(child, title[child]) for child in range(1, PAGES) if parent[child] == page]
        links += [(ADVERT, next(decoys)) for _ in range(min(num_decoys, ELEMENTS - len(links)))]
        slots = generator.permutation(8)[: len(links)]
        for number, (child, label) in enumerate(links[i] for i in generator.permutation(len(links))):
            kind = generator.integers(len(KINDS))
            room = np.asarray([8, 4]) - list(KINDS.values())[kind] + 1
            corner = [slots[number] % 2 * 8, slots[number] // 2 * 4] + generator.integers(room)
            elements[page, number], target[page, number] = [kind, label, *corner], child
    above = [[page] for page in range(PAGES)]  # A page and those on the way to the first one.
    for page in range(1, PAGES):
        above[page] += above[parent[page]]
    steps, way = np.zeros((PAGES, PAGES), np.int32), np.full((PAGES, PAGES), -1, np.int32)
    for page, goal in np.ndindex(PAGES, PAGES):
        common = next(one for one in above[page] if one in above[goal])
        steps[page, goal] = depth[page] + depth[goal] - 2 * depth[common]
        if page == common != goal:
            child = above[goal][above[goal].index(page) - 1]
            way[page, goal] = np.argmax(target[page] == child)
    return Apps(title, depth, elements, target, parent, steps, way)


def sample(apps: Apps, key: Array, level: Array) -> Task:
    """Draws an app, and a page of it as far away as the level says."""
    app_key, goal_key = jax.random.split(key)
    app = jax.random.randint(app_key, (), 0, len(apps.depth))
    return {"app": app, "goal": choose(goal_key, jnp.asarray(apps.depth)[app] == level + 1), "level": level}


def start(key: Array, task: Task) -> ScreensState:
    """Returns the first page."""
    del key
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
    """Returns the fewest actions to a success, `finish` included, where no page fails."""
    page, advert = jnp.where(state.at == ADVERT, state.before, state.at), state.at == ADVERT
    left = jnp.asarray(apps.steps)[state.task["app"], page, state.task["goal"]] + advert + 1.0
    won = state.finished & (state.at == state.task["goal"])
    return jnp.where(state.finished, jnp.where(won, 0.0, jnp.inf), left)


def status(apps: Apps, state: ScreensState) -> Status:
    """Tells whether the right page was found, and how near it is."""
    success = state.finished & (state.at == state.task["goal"])
    far = distance(apps, state.replace(finished=jnp.bool_(False))) - success
    progress = jnp.where(state.finished & ~success, 0.0, 1.0 - far / (state.task["level"] + 2.0))
    parts = dict(zip(("steps_back", "adverts", "failures"), state.counts))
    return Status(success=success, over=state.finished, progress=progress, parts=parts)


def tell(apps: Apps, cells: tuple[str, ...], state: ScreensState, seat: Array) -> Text:
    """Says which page it is, what is on it, and what is to be found."""
    del seat
    app, titles = state.task["app"], jnp.asarray(apps.title)[state.task["app"]]
    named = jnp.where(state.at == ADVERT, 1, jnp.where(state.at == 0, 0, 2 + titles[state.at]))
    elements = jnp.asarray(apps.elements)[app, state.at]
    offset = jnp.asarray([0, len(KINDS), len(KINDS) + len(LABELS), len(KINDS) + len(LABELS)])
    listed = pick((*KINDS, *LABELS, *cells), jnp.where(elements < 0, -1, elements + offset[None]))
    goal = pick(LABELS, titles[state.task["goal"]])
    return text(pick(("home", "advert", *LABELS), named), listed, when(state.failed, "failed"), "find", goal)


def expert(apps: Apps, key: Array, state: ScreensState) -> tuple[Array, Array, None]:
    """Takes the shortest way, in the middle of boxes."""
    del key
    app, goal = state.task["app"], state.task["goal"]
    way = jnp.where(state.at == ADVERT, -1, jnp.asarray(apps.way)[app, jnp.minimum(state.at, PAGES - 1), goal])
    kind, _, *corner = jnp.asarray(apps.elements)[app, state.at, way]
    middle = jnp.stack(corner) + (jnp.asarray(list(KINDS.values()), jnp.int32)[kind] - 1) // 2
    verb = jnp.where(state.at == goal, FINISH, jnp.where(way < 0, BACK, CLICK)).astype(jnp.int32)
    return verb, jnp.where(verb == CLICK, middle, -1)[:, None].astype(jnp.int32), None

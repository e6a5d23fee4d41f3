"""Apps of linked pages with decoys, drawn on the host, and the paths in them."""

from typing import NamedTuple

import numpy as np

from jaxagents.environments.text.screen import KINDS, LABELS

PAGES, ELEMENTS, MOST_LINKS, DEPTH = 8, 4, 3, 3
ADVERT = PAGES
"""The page behind every decoy; it leads nowhere but back."""


class Apps(NamedTuple):
    """Tables of A apps; page 0 is the first one.

    Attributes:
        title: int32 `[A, 9]`, label of each page; -1 for the first page and the advert.
        depth: int32 `[A, 8]`, number of clicks from the first page.
        elements: int32 `[A, 9, 4, 4]`, kind, label, column and row, -1 for none.
        target: int32 `[A, 9, 4]`, page behind each element, -1 for none.
        parent: int32 `[A, 8]`, previous page; for the first page, the page itself.
        steps: int32 `[A, 8, 8]`, number of clicks and steps back from one page to another.
        way: int32 `[A, 8, 8]`, element to click on the path, -1 to go back or on the page itself.
    """

    title: np.ndarray
    depth: np.ndarray
    elements: np.ndarray
    target: np.ndarray
    parent: np.ndarray
    steps: np.ndarray
    way: np.ndarray


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
        cells = generator.permutation(8)[: len(links)]
        for number, (child, label) in enumerate(links[i] for i in generator.permutation(len(links))):
            kind = generator.integers(len(KINDS))
            room = np.asarray([8, 4]) - np.asarray(list(KINDS.values())[kind], int) + 1
            corner = [cells[number] % 2 * 8, cells[number] // 2 * 4] + generator.integers(room)
            elements[page, number], target[page, number] = [kind, label, *corner], child
    above = [[page] for page in range(PAGES)]  # A page and those on the path to the first one.
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

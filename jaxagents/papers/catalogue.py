"""Cards that summarise papers, whether or not they are tested here."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxagents.papers.library import YamlLoader


class Card(NamedTuple):
    """What a paper says, whether or not it is tested here: an entry of `experiments/cards/<family>.yaml`.

    Attributes:
        id: id of the paper.
        number: number of the paper.
        title: title of the paper.
        kind: method, data, system, analysis, benchmark, survey, environment or theory.
        what: the idea in a sentence or two.
        headline: the numbers that the paper reports.
        source: where to find the paper and its code.
        worlds: worlds that a small version of the paper needs.
        size: effort that the paper would need in this code base: S, M or L.
        family: name of the file without its ending.
    """

    id: str
    number: int
    title: str
    kind: str
    what: str
    headline: str
    source: str
    worlds: tuple[str, ...]
    size: str
    family: str


_FIELDS = tuple(name for name in Card._fields if name != "family")


class Family(NamedTuple):
    """A file of cards.

    Attributes:
        name: name of the file.
        title: title in words.
        cards: cards in the order of their numbers.
    """

    name: str
    title: str
    cards: tuple[Card, ...]


def read_cards(folder: str | Path) -> list[Family]:
    """Reads the cards of all papers.

    Args:
        folder: `experiments/cards`.

    Raises:
        ValueError: there are no cards, a card has a missing or unknown field, or two cards have the same id.
    """
    families = []
    for path in sorted(Path(folder).glob("*.yaml")):
        content = yaml.load(path.read_text(encoding="utf-8"), YamlLoader)
        cards = tuple(_make_card(path, node) for node in content["cards"])
        families.append(Family(path.stem, content["title"], cards))
    ids = [card.id for family in families for card in family.cards]
    if not ids or len(set(ids)) < len(ids):
        twice = sorted({name for name in ids if ids.count(name) > 1})
        raise ValueError(f"`cards` must be of different papers, one at least, got {twice or 'none'} in {folder}.")
    return families


def _make_card(path: Path, node: Mapping[str, Any]) -> Card:
    problems = {"missing": sorted({*_FIELDS} - {*node}), "unknown": sorted({*node} - {*_FIELDS})}
    if any(problems.values()):
        description = " and ".join(f"{', '.join(names)} {word}" for word, names in problems.items() if names)
        raise ValueError(
            f"{path.name}: `{node.get('id', 'a card')}` must have {', '.join(sorted(_FIELDS))}, got {description}."
        )
    if not re.fullmatch(r"[\w-]+", str(node["id"])):  # The id names a page.
        raise ValueError(f"{path.name}: `id` must be of letters, digits, _ and -, got {node['id']!r}.")
    return Card(**{**node, "worlds": tuple(node["worlds"]), "family": path.stem})

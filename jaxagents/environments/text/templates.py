"""Templates of actions on the host: their elements, and checks of what reading them from left to right may meet."""

import difflib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxagents.environments.text.words import DIGITS

Words = tuple[str, ...]
_FIELD = re.compile(r"\{(\w+)(?::(\d+)(?:-(\d+))?)?\}")


class Element(NamedTuple):
    """A part of a template.

    Attributes:
        source: text of the element in the template.
        phrases: possible phrases, each a tuple of words; those of a number are the digits.
        low: minimum number of phrases.
        high: maximum number of phrases, one after the other.
        kind: "literal", "listed", "free" or "int".
    """

    source: str
    phrases: tuple[Words, ...]
    low: int = 1
    high: int = 1
    kind: str = "literal"


def split_template(template: str, fields: Mapping[str, tuple[Words, ...]]) -> tuple[Element, ...]:
    """Splits a template into its elements.

    Args:
        template: see `make_grammar`.
        fields: phrases by name.

    Returns:
        The elements from left to right.

    Raises:
        ValueError: see `make_grammar`.
    """
    elements, end = [], 0
    for match in [*_FIELD.finditer(template), None]:
        literal = " ".join(template[end : match.start() if match else None].split())
        if "{" in literal or "}" in literal:
            raise ValueError(
                f"`templates` must have fields such as {{place}}, {{term:1-4}} or {{int:5}}, got {template!r}."
            )
        if literal:
            elements.append(Element(source=literal, phrases=((literal,),)))
        if match:
            elements.append(_field(match, template, fields))
            end = match.end()
    if not elements:
        raise ValueError("`templates` must say something, got an empty one.")
    return tuple(elements)


def _field(match: re.Match, template: str, fields: Mapping[str, tuple[Words, ...]]) -> Element:
    name, low, high = match.group(1), match.group(2), match.group(3)
    if name == "int":
        if low is None or high is not None or not 1 <= int(low) <= 9:
            raise ValueError(f"`templates` must have numbers of 1 to 9 digits, as {{int:5}}, got {template!r}.")
        return Element(match.group(), tuple((digit,) for digit in DIGITS), 1, int(low), "int")
    if name not in fields:
        near = difflib.get_close_matches(name, fields, n=1) or [name]
        raise ValueError(f"`fields` must have the phrases of {match.group()}, got {list(fields)}; try {near[0]}=(...).")
    if low is None:
        return Element(match.group(), fields[name], kind="listed")
    bounds = int(low), int(high or low)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError(f"`templates` must have fields of at least one phrase, as {{term:1-4}}, got {template!r}.")
    if long := [phrase for phrase in fields[name] if len(phrase) > 1]:
        raise ValueError(f"`fields` must have phrases of one word for {match.group()}, got {' '.join(long[0])!r}.")
    return Element(match.group(), fields[name], *bounds, kind="free")


class Place(NamedTuple):
    """A reading position: in element `index`, after some words of a phrase or after some phrases."""

    index: int  # type: ignore[assignment]  # In place of the method of tuples.
    words: Words = ()
    count: int = 0  # type: ignore[assignment]


def _may_end(element: Element, place: Place) -> bool:
    if element.kind in ("literal", "listed"):
        return place.words in element.phrases
    return element.low <= place.count


def continuations(elements: Sequence[Element], place: Place) -> dict[str, Place]:
    """Returns the words that may come next within the element of a place, and the places they lead to."""
    if place.index == len(elements):
        return {}
    element = elements[place.index]
    if element.kind in ("literal", "listed"):
        size = len(place.words)
        longer = [one for one in element.phrases if len(one) > size and one[:size] == place.words]
        return {one[size]: place._replace(words=one[: size + 1]) for one in longer}
    zero = element.kind == "int" and place.words == ("0",)  # Nothing follows a leading zero.
    if place.count >= element.high or zero:
        return {}
    first = place.count == 0 and element.kind == "int"
    return {
        word: place._replace(count=place.count + 1, words=(word,) if first and word == "0" else place.words)
        for (word,) in element.phrases
    }


def places(elements: Sequence[Element], place: Place) -> list[Place]:
    """Returns the place itself, and the start of the next element if this one may end."""
    ends = place.index < len(elements) and _may_end(elements[place.index], place)
    return [place, *([Place(place.index + 1)] if ends else [])]


def next_words(elements: Sequence[Element], place: Place) -> dict[str, Place]:
    """Returns all words that may come next, and the places they lead to.

    Raises:
        ValueError: a word may be read as a continuation of a field or as what follows it.
    """
    found: dict[str, Place] = {}
    for one in places(elements, place):
        further = continuations(elements, one)
        if both := sorted(set(found) & set(further)):
            sources = [element.source for element in elements]
            raise ValueError(
                f"`templates` must be read in one way from left to right, got {' '.join(sources)!r}, where {both[0]!r} "
                f"may be more of {sources[place.index]} or {sources[place.index + 1]}; try a word between them."
            )
        found |= further
    return found


def _accepts(elements: Sequence[Element], place: Place) -> bool:
    return any(one.index == len(elements) for one in places(elements, place))


def require_one_reading(templates: Sequence[Sequence[Element]]) -> None:
    """Refuses templates with the same action.

    Raises:
        ValueError: an action can be read in two ways, or see `next_words`.
    """
    for first, one in enumerate(templates):
        for _ in _walk(one):
            pass
        for other in templates[first + 1 :]:
            if common := _common(one, other):
                both = [" ".join(element.source for element in elements) for elements in (one, other)]
                raise ValueError(
                    f"`templates` must give every action one reading, got {' '.join(common)!r}, which is {both[0]!r} "
                    f"and {both[1]!r}; try other words."
                )


def _walk(elements: Sequence[Element]) -> Iterator[dict[str, Place]]:
    """Visits every place once, and yields the words that follow there."""
    seen, queue = {Place(0)}, deque([Place(0)])
    while queue:
        following = next_words(elements, queue.popleft())
        yield following
        fresh = [place for place in dict.fromkeys(following.values()) if place not in seen]
        seen.update(fresh)
        queue.extend(fresh)


def _common(one: Sequence[Element], other: Sequence[Element]) -> Words | None:
    """Returns the words of an action that two templates share, if there is one."""
    start = (Place(0), Place(0))
    seen, queue = {start}, deque([(*start, ())])  # type: set[tuple[Place, Place | None]], deque[tuple[Place, Place, Words]]
    while queue:
        a, b, words = queue.popleft()
        if words and _accepts(one, a) and _accepts(other, b):
            return words
        further, others = next_words(one, a), next_words(other, b)
        for word in further:
            pair = further[word], others.get(word)
            if pair[1] is not None and pair not in seen:
                seen.add(pair)
                queue.append((*pair, (*words, word)))
    return None


def require_no_collisions(templates: Sequence[Sequence[Element]], words: Sequence[str]) -> None:
    """Refuses words that would be read as a longer one, since the longest word is read first.

    Args:
        templates: templates of actions.
        words: words of the whole table.

    Raises:
        ValueError: words that follow each other in an action begin with a longer word of the table.
    """
    longer: dict[str, list[Words]] = {}
    for word in words:
        parts = tuple(word.split())
        if len(parts) > 1:
            longer.setdefault(parts[0], []).append(parts)
    if not longer:
        return
    for elements in templates:
        for following in _walk(elements):
            for word, place in following.items():
                parts = tuple(word.split())
                for target in longer.get(parts[0], ()):
                    if len(target) > len(parts) and target[: len(parts)] == parts:
                        _require_unread(elements, place, target[len(parts) :], (word,), " ".join(target))


def _require_unread(elements: Sequence[Element], place: Place, rest: Words, read: Words, target: str) -> None:
    """Refuses a continuation whose text begins with the rest of a longer word."""
    if not rest:
        raise ValueError(
            f"`words` must not run together, got {' '.join(read)!r} of the words {list(read)}, which would be read as "
            f"{target!r}; try another word."
        )
    for word, following in next_words(elements, place).items():
        parts = tuple(word.split())
        size = min(len(parts), len(rest))
        if parts[:size] == rest[:size]:
            _require_unread(elements, following, rest[size:], (*read, word), target)

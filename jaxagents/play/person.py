"""A person who types the words of a text world: how input is matched, and which options are the nearest."""

import difflib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from jaxagents.environments.text.words import read_words, sentence
from jaxagents.language.tokenizers import phrase_reader
from jaxagents.types import Environment, TimeStep

_OFFERED = 3  # Number of nearest words.


class Person(NamedTuple):
    """A person who types.

    Attributes:
        ask: `(question, offers) -> str`, one line; raises EOFError if there are no more. `offers` are completions.
        tell: `(text) -> None`, shows a text.
    """

    ask: Callable[[str, Sequence[str]], str]
    tell: Callable[[str | Text], None]


def at_terminal() -> Person:
    """Returns the person at stdin; what they read is written to stdout.

    In a terminal, lines can be edited, and the tab key completes; piped lines are echoed.
    """
    console = Console()
    interactive = sys.stdin.isatty()

    def ask(question: str, offers: Sequence[str]) -> str:
        if interactive:
            with suppress(ImportError):  # Not available everywhere.
                _complete(offers)
            return input(f"{question}> ")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        tell(f"{question}> {line.rstrip()}")
        return line

    def tell(text: str | Text) -> None:
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    return Person(ask=ask, tell=tell)


def _complete(offers: Sequence[str]) -> None:
    import readline

    def complete(text: str, index: int) -> str | None:
        found = [offer for offer in offers if offer.lower().startswith(text.lower())]
        return found[index] if index < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims("")
    readline.parse_and_bind("tab: complete")


def choose(text: str, options: Sequence[str]) -> tuple[str | None, list[str]]:
    """Finds the option that a line means.

    Args:
        text: typed line; surrounding and repeated spaces and capital letters are ignored.
        options: possible options.

    Returns:
        The option and an empty list; or None and the nearest options.
    """
    typed = " ".join(text.split())
    if typed in options:
        return typed, []
    alike = [option for option in options if option.lower() == typed.lower()]
    if len(alike) == 1:
        return alike[0], []
    lowered = {option.lower(): option for option in options}
    near = [option for option in options if typed and option.lower().startswith(typed.lower())]
    near += [lowered[found] for found in difflib.get_close_matches(typed.lower(), lowered, n=_OFFERED, cutoff=0.4)]
    return None, list(dict.fromkeys(near))[:_OFFERED]


def admissible_actions(environment: Environment, timestep: TimeStep) -> list[str]:
    """Returns the texts of the actions that are admissible now, or of all well-formed ones if the world does not tell.

    If there are too many actions to list, the world does not tell, and examples are returned.
    """
    interface = environment.text
    if interface.actions is None:
        return [sentence(interface.words, row) for row in interface.examples]
    mask = np.ones(len(interface.actions), bool) if timestep.action_mask is None else np.asarray(timestep.action_mask)
    return [sentence(interface.words, row) for row in interface.actions[mask]]


def ask_action(person: Person, environment: Environment, offers: Sequence[str]) -> np.ndarray:
    """Asks until a well-formed action is typed; if these cannot be listed, until words of the world are.

    Args:
        person: person who types.
        environment: text world.
        offers: admissible actions.

    Returns:
        int32 `[M]`, word ids of the action.

    Raises:
        EOFError: there are no more lines.
    """
    interface = environment.text
    if interface.actions is None:
        room = environment.action_space.shape[0]
        return ask_words(person, "action", words=interface.words, read=phrase_reader(interface.words), room=room)[1]
    rows = {sentence(interface.words, row): row for row in interface.actions}
    while True:
        typed = person.ask("action", offers)
        chosen, near = choose(typed, list(rows))
        if chosen is not None:
            return rows[chosen]
        person.tell(f"There is no action {typed.strip()!r}; try {' or '.join(near or offers[:_OFFERED])}.")


def ask_words(
    person: Person, question: str, *, words: Sequence[str], read: Callable[[str], Sequence[int] | np.ndarray], room: int
) -> tuple[str, np.ndarray]:
    """Asks until words of a world are typed; returns them as text and as ids. Arguments as in `read_words`."""
    while True:
        typed = " ".join(person.ask(question, words).split())
        try:
            return typed, read_words(typed, words, read, room)
        except ValueError as error:
            person.tell(str(error))

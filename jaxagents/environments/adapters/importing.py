"""Lazy imports of optional suites, and messages for a missing suite or name."""

import difflib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def import_suite(module: str, extra: str = "envs") -> ModuleType:
    """Imports a module of an optional suite.

    Args:
        module: dotted name; its first part is the name of the suite.
        extra: optional dependency group of this package that installs the suite.

    Returns:
        The module.

    Raises:
        ModuleNotFoundError: the suite is not installed; the message says how to install it.
    """
    suite = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != suite:
            raise
        message = f"`{suite}` must be installed for this environment; run `pip install 'jaxagents[{extra}]'`."
        raise ModuleNotFoundError(message, name=error.name, path=error.path) from error


_DRAWING = ("matplotlib", "matplotlib.colors", "matplotlib.pyplot", "seaborn")


class _Later(ModuleType):
    """Placeholder for a module until one of its names is used."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # Accessed by `from matplotlib import colors`.
            raise AttributeError(name)
        _remove_placeholders()
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def drawing_later() -> Iterator[None]:
    """Defers imports of matplotlib and seaborn within the block until something is drawn, as they take a second."""
    if "matplotlib" not in sys.modules:
        later = {name: _Later(name) for name in _DRAWING}
        vars(later["matplotlib"]).update(colors=later["matplotlib.colors"], pyplot=later["matplotlib.pyplot"])
        sys.modules.update({name: module for name, module in later.items() if name not in sys.modules})
    try:
        yield
    finally:
        _remove_placeholders()


def _remove_placeholders() -> None:
    for name in _DRAWING:
        if isinstance(sys.modules.get(name), _Later):
            del sys.modules[name]


def require_name(name: str, known: Iterable[str], suite: str) -> str:
    """Returns `name` if the suite has it, and otherwise suggests the nearest names.

    Args:
        name: name that the caller asked for.
        known: every name that the adapter supports.
        suite: name of the suite, for the message.

    Returns:
        `name`.

    Raises:
        ValueError: `name` is not one of `known`.
    """
    known = sorted(known)
    if name in known:
        return name
    folded = {candidate.lower(): candidate for candidate in known}
    near = [folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)]
    near += [candidate for candidate in known if name.lower() in candidate.lower() and candidate not in near]
    offer = ", ".join((near or known)[:8])
    raise ValueError(f"`name` must be an environment of {suite}, got {name!r}; try {offer}.")


@contextmanager
def options_of(name: str, options: Mapping[str, Any], hint: str = "") -> Iterator[None]:
    """Names the options of a constructor that fails because of their names or types.

    Args:
        name: name of the environment.
        options: options of its constructor.
        hint: suggestion for the user; without one, the message of the error is used.

    Raises:
        ValueError: the block raised a TypeError, and there are options.
    """
    try:
        yield
    except TypeError as error:
        if not options:
            raise
        raise ValueError(
            f"`environment` must have options that the constructor of {name} takes, got {', '.join(options)}; "
            f"{hint or error}"
        ) from error

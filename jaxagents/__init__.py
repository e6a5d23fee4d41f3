"""Trains agents in JAX, in loops that compile end to end.

`import jaxagents` gives packages and their modules by name, each of which is imported when it is first used:

    >>> import jaxagents
    >>> jaxagents.ops.returns.discounted_returns.__name__
    'discounted_returns'
"""

import importlib.util
from collections.abc import Callable
from types import ModuleType

__all__ = [
    *("data", "environments", "games", "language", "learners", "losses", "networks", "ops", "policies", "rollouts"),
    *("search", "training", "types", "values"),
]


def __getattr__(name: str) -> ModuleType:
    """Imports a package, or says which there are."""
    if name in __all__:
        return importlib.import_module(f"jaxagents.{name}")
    raise AttributeError(f"`jaxagents` must be asked for one of {', '.join(__all__)}, got {name!r}.")


def modules_of(package: str) -> Callable[[str], ModuleType]:
    """Returns the `__getattr__` of a package that imports its modules when they are first used."""

    def find(name: str) -> ModuleType:
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def __dir__() -> list[str]:
    return [*globals(), *__all__]

"""Trains agents in JAX, in loops that compile end to end.

`import jaxagents` gives packages and their modules by name, each of which is imported when it is first used:

    >>> import jaxagents
    >>> jaxagents.ops.returns.discounted_returns.__name__
    'discounted_returns'
"""

import importlib.util
from types import ModuleType

__all__ = [
    *("data", "environments", "games", "language", "learners", "losses", "networks", "ops", "policies", "rollouts"),
    *("search", "training", "types", "values"),
]


def __getattr__(name: str) -> ModuleType:
    """Imports a package, or says which there are."""
    if name in __all__:
        return _import(f"jaxagents.{name}")
    raise AttributeError(f"`jaxagents` must be asked for one of {', '.join(__all__)}, got {name!r}.")


def _import(name: str) -> ModuleType:
    """Imports a module; a package imports its own when they are first used."""

    def find(below: str) -> ModuleType:
        if not below.startswith("_") and importlib.util.find_spec(f"{name}.{below}") is not None:
            return _import(f"{name}.{below}")
        raise AttributeError(f"module {name!r} has no attribute {below!r}")

    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        module.__dict__.setdefault("__getattr__", find)
    return module


def __dir__() -> list[str]:
    return [*globals(), *__all__]

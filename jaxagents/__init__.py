"""Trains agents in JAX, in loops that compile end to end.

`import jaxagents` gives the packages by name, each of which is imported when it is first used:

    >>> import jaxagents
    >>> jaxagents.ops.returns.discounted_returns.__name__
    'discounted_returns'
"""

import importlib
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


def __dir__() -> list[str]:
    return [*globals(), *__all__]

"""Names and types of a function's arguments, including those that it passes on as `**options`, before it is called."""

import ast
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

from hydra.utils import get_object

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Taken(NamedTuple):
    """Arguments that a function takes by name.

    Attributes:
        annotations: type of every setting; `typing.Any` if it is unknown.
        is_open: whether it may take others, because the function to which it passes `**options` is unknown.
    """

    annotations: dict[str, Any]
    is_open: bool


def settings_of(function: Callable[..., Any], node: Mapping[str, Any]) -> Taken:
    """Returns the settings of a function, and of the functions to which it passes its `**options`.

    Args:
        function: function that a `_target_` names.
        node: section of the function, in which `inner: {_target_: ...}` is the function that `inner(**options)` calls.

    Returns:
        Names and types.
    """
    slots = {name: slot["_target_"] for name, slot in node.items() if _has_target(slot)}
    return _settings_of(function, tuple(sorted(slots.items())), frozenset())


def _has_target(node: Any) -> bool:
    return isinstance(node, Mapping) and isinstance(node.get("_target_"), str)


@cache
def _settings_of(
    function: Callable[..., Any], slots: tuple[tuple[str, str], ...], within: Set[Callable[..., Any]]
) -> Taken:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Written in C.
        return Taken({}, is_open=True)
    types = _types_of(function)
    annotations = {one.name: types.get(one.name, Any) for one in parameters if one.kind in _NAMED}
    options = [one.name for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
    if not options:
        return Taken(annotations, is_open=False)
    handed_on = None if function in within else _calls_with(function, options[0])
    annotations |= dict.fromkeys(_read_of(function, options[0]), Any)
    is_open = not handed_on
    for call in handed_on or ():
        called = _callee(call, function, dict(slots))
        if called is None:
            is_open = True
            continue
        further = _settings_of(called, slots, frozenset({*within, function}))
        taken = _given(call, called)
        annotations = {name: kind for name, kind in further.annotations.items() if name not in taken} | annotations
        is_open |= further.is_open and _given_first(call, function) is None
    return Taken(annotations, is_open)


def _given_first(call: ast.Call, function: Callable[..., Any]) -> ast.AST | None:
    """Returns what makes the first argument of a call: a `partial`, a call of a global function, or its definition."""
    first = call.args[0] if call.args else None
    if not isinstance(first, ast.Name):
        return first if _is_partial(first, function) else None
    for node in ast.walk(_body_of(function) or call):
        if isinstance(node, ast.FunctionDef) and node.name == first.id:
            return node
        if isinstance(node, ast.Assign) and first.id in map(ast.unparse, node.targets):
            return node.value if _is_partial(node.value, function) else None
    return ast.Call(func=first, args=[], keywords=[]) if callable(_global(function, first.id)) else None


def _is_partial(node: ast.AST | None, function: Callable[..., Any]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _global(function, node.func.id) is partial


def _types_of(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):  # A name that exists only for type checkers.
        return {}


@cache
def _body_of(function: Callable[..., Any]) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None


def _calls_with(function: Callable[..., Any], options: str) -> list[ast.Call] | None:
    """Returns the calls in a function that pass on `**options`, also under another name; None without its source.

    In `shape(partial(make, network), **options)` and `shape(make, **options)`, `make` takes the options that `shape`
    does not take, and its call is returned, too.
    """
    body = None if inspect.isclass(function) else _body_of(function)
    if body is None:
        return None
    names = {options}
    for node in ast.walk(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _spreads(node.value, names):
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
    calls = [call for call in calls if any(one.arg is None and names & _names_in(one.value) for one in call.keywords)]
    given = [_given_first(call, function) for call in calls if not _is_partial(call, function)]
    return calls + [one for one in given if isinstance(one, ast.Call) and _callee(one, function, {}) is not None]


def _read_of(function: Callable[..., Any], options: str) -> Iterator[str]:
    """Yields the names that a function takes out of `**options` itself: `options.pop("name")`."""
    calls = [node for node in ast.walk(_body_of(function) or ast.Module([], [])) if isinstance(node, ast.Call)]
    for call in calls:
        method = call.func if isinstance(call.func, ast.Attribute) and _names_in(call.func) == {options} else None
        if method is not None and method.attr in ("pop", "get") and isinstance(call.args[0], ast.Constant):
            yield str(call.args[0].value)


def _spreads(node: ast.AST, names: Set[str]) -> bool:
    """Tells whether an expression is a dict with all of some options: `{**options, ...}`, `options | {...}`."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return any(key is None and bool(names & _names_in(value)) for key, value in pairs)
    return isinstance(node, ast.BinOp) and bool(names & _names_in(node))


def _names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _callee(call: ast.Call, function: Callable[..., Any], slots: Mapping[str, str]) -> Callable[..., Any] | None:
    """Returns the function that a call within another function calls, or is a `partial` of; None if it is unknown."""
    named = call.func
    if _is_partial(call, function):
        named = call.args[0]
    if isinstance(named, ast.Name) and named.id in slots:
        try:
            called: Any = get_object(slots[named.id])
        except Exception:  # Refused where the slot itself is checked.
            return None
        return called
    if isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name):
        module = _global(function, named.value.id)
        found = getattr(module, named.attr, None) if isinstance(module, ModuleType) else None
    else:
        found = _global(function, named.id) if isinstance(named, ast.Name) else None
    return found if callable(found) else None


def _global(function: Callable[..., Any], name: str) -> Any:
    return getattr(inspect.unwrap(function), "__globals__", {}).get(name)


def _given(call: ast.Call, called: Callable[..., Any]) -> set[str]:
    """Returns the settings that a call passes itself, which its options must not contain."""
    positional = call.args[1:] if isinstance(call.func, ast.Name) and call.func.id == "partial" else call.args
    if any(isinstance(one, ast.Starred) for one in positional):
        positional = []
    names = list(inspect.signature(called).parameters)[: len(positional)]
    return {*names, *(one.arg for one in call.keywords if one.arg)}


def missing_of(function: Callable[..., Any], node: Mapping[str, Any]) -> Iterator[str]:
    """Yields the settings without a default that a section lacks."""
    positional = len(node.get("_args_", ()))
    for index, (name, one) in enumerate(inspect.signature(function).parameters.items()):
        if one.kind in _NAMED and one.default is one.empty and name not in node and index >= positional:
            yield name

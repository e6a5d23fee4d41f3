"""Types of settings, checked against the signature of the function that takes them before anything is built."""

import collections.abc
import difflib
import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagents.ops.checks import require_positive
from jaxagents.training.signatures import missing_of, settings_of

_LISTS = (collections.abc.Sequence, list, tuple)
_MAPPINGS = (collections.abc.Mapping, dict)
_OF_ARRAYS = ("jax", "jaxlib", "numpy")  # They are not imported here, so that wrong names are reported without them.
_PLAIN = (bool, int, float, str, type(None), *_LISTS, *_MAPPINGS)
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "null"}
_MOST_LAYERS = 1000
_NOT = object()  # What `_convert` returns for a value of another type.


def check_settings(node: Any, name_of: Callable[[tuple[str, ...]], str], path: tuple[str, ...] = ()) -> Any:
    """Checks names and types in a part of a config, by the signatures of the functions that its `_target_`s name.

    Args:
        node: resolved part of a config.
        name_of: `(path) -> key`, the user's name of the setting at a path.
        path: path of the node.

    Returns:
        The node, in which whole floats, such as 1e6, are integers for functions that take integers.

    Raises:
        ValueError: a function does not exist, does not take a setting, or a setting has another type: null, a list, a
            mapping, a string or NaN in place of a number; names the key.
    """
    if isinstance(node, list | tuple):
        return [check_settings(item, name_of, (*path, str(index))) for index, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    if "_target_" in node:
        node = _check_call(node, name_of, path)
    return {key: check_settings(value, name_of, (*path, str(key))) for key, value in node.items()}


def _check_call(
    node: Mapping[str, Any], name_of: Callable[[tuple[str, ...]], str], path: tuple[str, ...]
) -> dict[str, Any]:
    function = find_function(node["_target_"], name_of((*path, "_target_")))
    taken = settings_of(function, node)
    unknown = [key for key in node if not str(key).startswith("_") and key not in taken.annotations]
    if unknown and not taken.is_open:
        raise ValueError(_unknown(name_of(path), function, {key: node[key] for key in unknown}, taken.annotations))
    missing = list(missing_of(function, node)) if taken.annotations and not node.get("_partial_") else []
    if missing:
        raise ValueError(
            f"`{name_of(path)}` must have all that {function.__name__} takes, got {function.__name__}() missing "
            f"{len(missing)} required positional argument{'s' if len(missing) > 1 else ''}: "
            f"{', '.join(map(repr, missing))}; try `_partial_: true` beside its `_target_`."
        )
    made = {}
    for key, value in node.items():
        kind = Any if str(key).startswith("_") else taken.annotations.get(key, Any)
        made[key] = convert(name_of((*path, str(key))), value, kind)
        if _is_network(function):
            _require_size(name_of((*path, str(key))), made[key], kind, getattr(function, key, None))
    return made


def require_arguments(
    config: Mapping[str, Any],
    *functions: Callable[..., Any],
    optional: Sequence[str] = (),
    positive: Sequence[str] = (),
) -> None:
    """Checks the settings of a command against the functions that take them.

    Args:
        config: config of the command.
        functions: functions that take settings by their names.
        optional: names that may be null even if the functions do not allow it.
        positive: names of whole numbers that must be at least 1 unless they are null.

    Raises:
        ValueError: a setting has another type.
    """
    kinds = {name: kind for function in functions for name, kind in typing.get_type_hints(function).items()}
    for key in config:
        value = config[key]
        if key in kinds and not (value is None and key in optional):
            value = convert(key, value, kinds[key])
        if key in positive and value is not None:
            require_positive(key, value)


def find_function(target: Any, key: str) -> Callable[..., Any]:
    """Returns the function that a `_target_` names.

    Args:
        target: the `_target_` as it is written.
        key: its key in the config.

    Raises:
        ValueError: it is not a dotted name, or there is no such module or function; the nearest names are suggested.
    """
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")) or "." not in target:
        raise ValueError(f"`{key}` must be the dotted name of a function, got {written(target)}.")
    parts = target.split(".")
    found: Any = None
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # A missing dependency of the module: a suite, whose error says how to install it.
        except Exception as error:
            raise ValueError(f"`{key}` must be in a module that can be imported, got {target}: {error!r}.") from error
    if found is None:
        raise ValueError(f"`{key}` must be in a module that there is, got {target!r}, and no module {parts[0]!r}.")
    for part in parts[end:]:
        place, found = found, getattr(found, part, None)
        if found is None:
            names = [name for name in vars(place) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, n=3, cutoff=0.5)
            hint = f"; try {' or '.join(near)}" if near else ""
            raise ValueError(f"`{key}` must be in the module {module}, got {target!r}{hint}.")
    if not callable(found):
        what = "a module" if inspect.ismodule(found) else f"the value {found!r}"
        raise ValueError(f"`{key}` must name a function, got {target!r}, {what}.")
    function: Callable[..., Any] = found
    return function


def _unknown(name: str, function: Callable[..., Any], unknown: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(next(iter(unknown))), [one for one in known if not one.startswith("_")], n=2)
    target = f"{function.__module__}.{function.__qualname__}"
    out = " ".join(f"~{name}.{key}" for key in unknown)
    if "." in name and any(value is None for value in unknown.values()):  # Hydra cannot delete a key that is null.
        out = f"~{name} '+{name}={{_target_: {target}, ...}}'"
    return (
        f"`{name}` must have keys that {target} takes, got {', '.join(map(str, unknown))}, which the experiment may "
        f"set for another option; try {' or '.join([*near, 'an experiment of this one'])}, or take them out: {out}"
    )


def convert(key: str, value: Any, kind: Any) -> Any:
    """Returns the value of a setting, converted to its type.

    Args:
        key: key of the setting.
        value: plain data; a mapping with a `_target_` may become anything.
        kind: type annotation.

    Raises:
        ValueError: the value has another type.
    """
    made = _convert(value, kind)
    if made is not _NOT and not isinstance(made, str) or made not in (_NOT, "???"):
        return made
    if value == "???":
        raise ValueError(f"`{key}` must be given, got nothing; try {key}={'DIR' if _is_path(kind) else '...'}")
    hint = ""
    if isinstance(value, list | tuple) and value and all(isinstance(one, int | float) for one in value):
        if not any(typing.get_origin(one) in _LISTS for one in (kind, *typing.get_args(kind))):
            hint = f"; try -m {key}={','.join(map(written, value))} for a run each"
    elif value is None and _is_path(kind):
        hint = f"; try {key}=DIR"
    elif _is_list_of(kind, int):
        hint = f"; try {key}=[{value if isinstance(value, int) and not isinstance(value, bool) else '64,64'}]"
    raise ValueError(f"`{key}` must be {_described(kind)}, got {written(value)}{hint}.")


def _convert(value: Any, kind: Any) -> Any:
    """Returns a value converted to a type, or `_NOT`."""
    if kind is Any:
        return value
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        made = [_convert(value, part) for part in parts]
        return next((one for one in made if one is value), next((one for one in made if one is not _NOT), _NOT))
    if origin is typing.Literal:
        return value if value in parts else _NOT
    if not isinstance(value, _PLAIN) or (isinstance(value, Mapping) and "_target_" in value):
        return value  # Already built, or built later.
    if kind is None or kind in _NAMES:
        return _convert_scalar(value, type(None) if kind is None else kind)
    if (origin or kind) in _LISTS:
        return _convert_list(value, parts)
    if (origin or kind) in _MAPPINGS:
        return _convert_mapping(value, parts)
    if isinstance(kind, type) and issubclass(kind, Path):
        return value if isinstance(value, str) else _NOT
    if _is_array(kind):
        return value if _is_numbers(value) else _NOT
    if inspect.isclass(kind) and isinstance(value, kind):
        return value
    is_called = origin is collections.abc.Callable or kind is collections.abc.Callable
    return _NOT if is_called or inspect.isclass(kind) and kind is not object and kind.__name__ != "dtype" else value


def takes_numbers(kind: Any) -> bool:
    """Tells whether a type allows numbers or booleans."""
    return kind is not Any and any(_convert(value, kind) is not _NOT for value in (1, 1.0, True))


def _convert_scalar(value: Any, kind: type) -> Any:
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind in (int, float):
        right = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return value if right and not math.isnan(value) else _NOT
    return value if isinstance(value, kind) else _NOT


def _convert_list(value: Any, parts: Sequence[Any]) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _NOT
    is_fixed = len(parts) > 1 and parts[-1] is not Ellipsis
    kinds = list(parts) if is_fixed else [parts[0] if parts else Any] * len(value)
    made = [_convert(one, kind) for one, kind in zip(value, kinds)]
    if len(kinds) != len(value) or any(one is _NOT for one in made):
        return _NOT
    return tuple(made) if type(value) is tuple else made


def _convert_mapping(value: Any, parts: Sequence[Any]) -> Any:
    if not isinstance(value, Mapping):
        return _NOT
    made = {key: _convert(one, parts[1] if parts else Any) for key, one in value.items()}
    return made if not any(one is _NOT for one in made.values()) else _NOT


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_numbers, value))
    return isinstance(value, int | float) and not math.isnan(value)


def _is_array(kind: Any) -> bool:
    return inspect.isclass(kind) and kind.__module__.partition(".")[0] in _OF_ARRAYS and kind.__name__ != "dtype"


def _is_network(function: Callable[..., Any]) -> bool:
    """Tells whether a function is a class of Flax modules."""
    bases = inspect.getmro(function) if inspect.isclass(function) else ()
    return any((base.__module__, base.__name__) == ("flax.linen.module", "Module") for base in bases)


def _is_path(kind: Any) -> bool:
    return Path in (kind, *typing.get_args(kind))


def _is_list_of(kind: Any, part: type) -> bool:
    kinds = (kind, *typing.get_args(kind))
    return any(typing.get_origin(one) in _LISTS and part in typing.get_args(one) for one in kinds)


def _described(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        names = list(dict.fromkeys(map(_described, parts)))
        plain = [name for name in names if not name.startswith("{")]
        return " or ".join(plain if set(plain) - {"null"} else names)
    if origin is typing.Literal:
        return " or ".join(map(written, parts))
    if kind is None or kind in _NAMES:
        return _NAMES[type(None) if kind is None else kind]
    if (origin or kind) in _LISTS:
        inner = _described(parts[0]) if parts else "values"
        plural = {"a whole number": "whole numbers", "a number": "numbers", "a string": "strings"}
        return f"a list of {plural.get(inner, 'such as ' + inner)}"
    if (origin or kind) in _MAPPINGS:
        return "a mapping of names"
    if isinstance(kind, type) and issubclass(kind, Path):
        return "a path"
    if _is_array(kind):
        return "a number"
    return "{_target_: module.function, ...}"


def written(value: Any) -> str:
    """Returns a value as it is written on a command line or in a YAML file."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {written(one)}' for key, one in value.items())}}}"
    return str(value)


def _require_size(key: str, value: Any, kind: Any, default: Any) -> None:
    """Refuses sizes of networks below 1, unless the network's own default is below 1."""
    sizes = value if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in sizes)
    if not whole or isinstance(default, int) and default < 1:
        return
    if (kind is int or _is_list_of(kind, int)) and any(one < 1 for one in sizes):
        raise ValueError(f"`{key}` must be at least 1, got {written(value)}.")
    if key.endswith("num_layers") and max(sizes) > _MOST_LAYERS:  # Each layer is traced.
        raise ValueError(f"`{key}` must be at most {_MOST_LAYERS}, got {written(value)}.")

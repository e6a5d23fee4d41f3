"""The user's tools: Python functions that a model calls, run on the host in parallel, with a time limit."""

import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

from jaxagents.language.tool_format import Call

_MOST_THREADS = 64
_MOST_CHARACTERS = 240  # Largest length of an error message.


class Tool(NamedTuple):
    """A function that a model can call.

    Attributes:
        name: name by which the model calls it.
        schema: description for the model, `{"type": "function", "function": {"name": ..., "description": ...,
            "parameters": {...}}}`.
        call: takes the arguments as keywords and returns text, or a value that JSON can represent.
        owner: object whose calls run one after the other; None: calls run in parallel.
    """

    name: str
    schema: Mapping[str, Any]
    call: Callable[..., Any]
    owner: Any = None


class Result(NamedTuple):
    """The result of a call.

    Attributes:
        text: text for the model; a line that begins with "Error:" if the call failed.
        allowed: False if the model called an unknown tool, or with wrong arguments.
    """

    text: str
    allowed: bool


def make_tool(function: Callable[..., Any] | Tool) -> Tool:
    """Makes a tool of a Python function with type hints and a Google-style docstring.

    Arguments that are set by a `functools.partial` are hidden from the model. A tool whose schema comes from elsewhere,
    such as from an MCP server, is a `Tool`.

    Args:
        function: function; a `Tool` is returned unchanged.

    Returns:
        The tool.

    Raises:
        ValueError: there are no type hints, or arguments are not described.

    References:
        `transformers.utils.get_json_schema`, which writes the schemas.
    """
    if isinstance(function, Tool):
        return function
    plain, given = function, {}  # type: Any, Mapping[str, Any]
    if isinstance(function, partial):
        plain, given = function.func, function.keywords
    if not callable(plain):
        raise ValueError(
            f"`tools` must be functions, got {function!r}; try {{_target_: my_tools.search, _partial_: true}}."
        )
    from transformers.utils import get_json_schema  # An extra: only who reads checkpoints needs it.

    try:
        schema = get_json_schema(plain)
    except Exception as error:  # It can be of several types.
        name = getattr(plain, "__name__", type(plain).__name__)
        raise ValueError(
            f"`tools` must have type hints and describe every argument under `Args:`, got {name}: {_one_line(error)}"
        ) from error
    parameters = schema["function"]["parameters"]
    for name in given:
        parameters["properties"].pop(name, None)
    if "required" in parameters:
        parameters["required"] = [name for name in parameters["required"] if name not in given]
    return Tool(name=schema["function"]["name"], schema=schema, call=function)


def is_class(tool: Any) -> bool:
    """Returns whether a tool is a class, or a `functools.partial` of one; each conversation then has its own object."""
    return inspect.isclass(tool.func if isinstance(tool, partial) else tool)


def make_method_tools(factory: Callable[[], Any]) -> list[Tool]:
    """Makes tools of the public methods of a class, except `reset`.

    Args:
        factory: class, or a `functools.partial` of it.

    Returns:
        The tools; `bind_tools` binds them to an object.

    Raises:
        ValueError: there is no public method, or one lacks type hints or a description of its arguments.
    """
    owner = factory.func if isinstance(factory, partial) else factory
    methods = {
        name: method
        for name, method in inspect.getmembers_static(owner, inspect.isfunction)
        if not name.startswith("_") and name != "reset"
    }
    if not methods:
        raise ValueError(f"`tools` must have public methods where they are a class, got none of {owner.__name__}.")
    return [make_tool(MethodType(method, owner)) for method in methods.values()]


def bind_tools(tools: Sequence[Tool], owner: Any) -> dict[str, Tool]:
    """Returns tools of methods by name, bound to an object."""
    return {tool.name: tool._replace(call=getattr(owner, tool.name), owner=owner) for tool in tools}


def run_calls(
    tools: Mapping[str, Tool] | Sequence[Mapping[str, Tool]], calls: Sequence[Call], *, seconds: float
) -> list[Result]:
    """Runs calls in parallel, those of one object in their order; any error becomes a line of text for the model.

    A call that takes too long is abandoned in its thread. Tools are called from several threads at once.

    Args:
        tools: tools by name, the same for all calls or one mapping for each.
        calls: calls of all conversations.
        seconds: time limit of a call in seconds.

    Returns:
        One result for each call.

    Examples:
        >>> def double(x: int) -> int:
        ...     return 2 * x
        >>> tools = {"double": Tool("double", {}, double)}
        >>> [one.text for one in run_calls(tools, [Call("double", {"x": 4}), Call("half", {})], seconds=1.0)]
        ['8', "Error: there is no tool 'half'; there are double."]
    """
    of_each = [tools] * len(calls) if isinstance(tools, Mapping) else tools
    results: list[Result] = []
    for start in range(0, len(calls), _MOST_THREADS):
        part = slice(start, start + _MOST_THREADS)
        results += _run_together(of_each[part], calls[part], seconds)
    return results


def to_text(name: str, value: Any) -> str:
    """Returns the value returned by a tool as text; values other than text are written as JSON.

    Args:
        name: name of the tool.
        value: value that it returned.

    Returns:
        The text; a line that begins with "Error:" for bytes and other objects that JSON cannot represent.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"Error: {name} returned {type(value).__name__}, which is no text."


def _run_together(tools: Sequence[Mapping[str, Tool]], calls: Sequence[Call], seconds: float) -> list[Result]:
    results: list[Result | None] = [_refusal(of_call, call) for of_call, call in zip(tools, calls, strict=True)]
    queues: dict[int, list[int]] = {}  # Each queue has calls that run one after the other.
    for index, result in enumerate(results):
        if result is None:
            owner = tools[index][calls[index].name].owner
            queues.setdefault(-1 - index if owner is None else id(owner), []).append(index)

    def run(queue: Sequence[int]) -> None:
        for index in queue:
            name, arguments = calls[index].name, calls[index].arguments
            try:
                text = to_text(name, tools[index][name].call(**arguments))
            except BaseException as error:  # A tool may even call sys.exit.
                text = f"Error: {name} failed with {type(error).__name__}: {_one_line(error)}"
            results[index] = Result(text=text, allowed=True)

    threads = [
        threading.Thread(target=run, args=(queue,), name=f"tool {calls[queue[0]].name}", daemon=True)
        for queue in queues.values()
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.0))
    late = "Error: {} did not answer within {:g} seconds."
    return [
        Result(text=late.format(call.name, seconds), allowed=True) if result is None else result
        for call, result in zip(calls, list(results), strict=True)
    ]


def _refusal(tools: Mapping[str, Tool], call: Call) -> Result | None:
    """Returns the error for the model if a call cannot be made, else None."""
    if call.name not in tools:
        return Result(text=f"Error: there is no tool {call.name[:40]!r}; there are {', '.join(tools)}.", allowed=False)
    try:
        inspect.signature(tools[call.name].call).bind(**call.arguments)
    except TypeError as error:
        return Result(text=f"Error: {call.name}: {_one_line(error)}.", allowed=False)
    except ValueError:  # Functions in C have no signature.
        pass
    return None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."

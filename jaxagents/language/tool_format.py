"""Tool calls in the text of a model, in the format of its chat template."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxagents.language.chat_template import TemplateReader, render

_NAME, _KEY, _VALUE = "zqname", "zqkey", "zqvalue"  # Texts that no template contains.
_RESULT = "zqresult"
_ASK = {"role": "user", "content": "ask"}
_DECODER = json.JSONDecoder()


class Call(NamedTuple):
    """A tool call.

    Attributes:
        name: name of the tool.
        arguments: arguments by name.
        id: id given by the model; empty if its format has none.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


class UnreadableCall(ValueError):
    """Raised for text that begins a call but cannot be parsed as one; the message is for the model."""


class ToolFormat(NamedTuple):
    """The format of calls in a template: `opening {"<name>": ..., "<arguments>": {...}}`.

    Attributes:
        opening: text before a call, such as `<tool_call>`; empty if a call is the whole text.
        name: key of the tool's name.
        arguments: key of the arguments.
        closing_thought: tag that ends a thought, after which calls are searched for.
    """

    opening: str
    name: str
    arguments: str
    closing_thought: str


def read_tool_format(reader: TemplateReader, schemas: Sequence[Mapping[str, Any]]) -> ToolFormat:
    """Determines how a template writes calls, by letting it write one.

    Args:
        reader: reader of the template.
        schemas: JSON schemas of the tools.

    Returns:
        The format.

    Raises:
        ValueError: the template does not describe tools to the model, or does not write calls as JSON.
    """
    missing = [
        one["function"]["name"] for one in schemas if one["function"]["name"] not in render(reader, [_ASK], schemas)
    ]
    if missing:
        raise ValueError(
            f"`chat_template` of {reader.folder} must tell the model about tools, got one that leaves out "
            f"{missing[0]!r}; try a checkpoint that was taught to call tools."
        )
    opened = render(reader, [_ASK], schemas, generation=True)
    text = render(reader, [_ASK, _asking([Call(_NAME, {_KEY: _VALUE})])], schemas)
    begin = len(opened) if text.startswith(opened) else len(render(reader, [_ASK], schemas))
    place = text.rfind("{", begin, max(text.find(_NAME, begin), begin))
    try:
        written, _ = _DECODER.raw_decode(text, max(place, 0))
        name = next(key for key, value in written.items() if value == _NAME)
        arguments = next(key for key, value in written.items() if value == {_KEY: _VALUE})
    except (ValueError, AttributeError, StopIteration) as error:
        raise ValueError(
            f"`chat_template` of {reader.folder} must write calls as JSON with a name and arguments, got "
            f"{text[begin:]!r}; try a template of Qwen 2.5 or 3, Llama 3, or Mistral."
        ) from error
    opening = text[begin:place].rpartition(reader.think_tags[1])[2].strip().removesuffix("[").strip()
    return ToolFormat(opening=opening, name=name, arguments=arguments, closing_thought=reader.think_tags[1])


def parse_calls(form: ToolFormat, text: str) -> tuple[str, list[Call]]:
    """Parses the calls in a model's output.

    Args:
        form: format of the model's template.
        text: output of the model, without the token that ends it.

    Returns:
        The text before the first call, and the calls; an answer has none.

    Raises:
        UnreadableCall: a call begins but cannot be parsed.
    """
    thought, closed, body = text.rpartition(form.closing_thought)
    if not form.opening:
        stripped = body.strip()
        if not stripped.startswith(("{", "[")) or f'"{form.name}"' not in stripped:
            return text, []
        return f"{thought}{closed}", _read_calls(form, stripped)
    before, found, rest = body.partition(form.opening)
    if not found:
        return text, []
    calls = [call for part in rest.split(form.opening) for call in _read_calls(form, part.strip())]
    return f"{thought}{closed}{before}".strip(), calls


def render_results(
    reader: TemplateReader, results: Sequence[str], schemas: Sequence[Mapping[str, Any]], ids: Sequence[str] = ()
) -> str:
    """Writes the results of one turn's calls like the template, up to where the assistant speaks next.

    Args:
        reader: reader of the template.
        results: result of each call as text.
        schemas: JSON schemas of the tools.
        ids: ids of the calls, if the model gave any.

    Returns:
        The text that follows the token that ends the assistant's turn.

    Raises:
        ValueError: the template does not accept tool results.
    """
    ids = ids or [""] * len(results)
    calls = _asking([Call(schemas[0]["function"]["name"], {}, one) for one in ids])
    names = [call["id"] for call in calls["tool_calls"]]

    def write(texts: Sequence[str]) -> str:
        messages = [{"role": "tool", "tool_call_id": i, "name": schemas[0]["function"]["name"]} for i in names]
        messages = [message | {"content": text} for message, text in zip(messages, texts, strict=True)]
        return render(reader, [_ASK, calls, *messages], schemas, generation=True, thinks=reader.thinks)

    marked = write([_RESULT, *results[1:]])
    end = reader.tokenizer.convert_ids_to_tokens(reader.end)
    place = marked.rfind(end, 0, max(marked.find(_RESULT), 0))
    if place < 0:
        raise ValueError(
            f"`chat_template` of {reader.folder} must write the results of tools, got one that leaves them out; try a "
            "checkpoint that was taught to call tools."
        )
    return write(results)[place + len(end) :]


def shortest_call(reader: TemplateReader, schemas: Sequence[Mapping[str, Any]]) -> str:
    """Returns the shortest output that calls a tool without arguments, excluding the token that ends the turn."""
    names = [schema["function"]["name"] for schema in schemas]
    asked = _asking([Call(min(names, key=len), {})])
    written = render(reader, [_ASK, asked], schemas)
    opened = render(reader, [_ASK], schemas, generation=True)
    completion = (
        written.removeprefix(opened) if written.startswith(opened) else written[len(render(reader, [_ASK], schemas)) :]
    )
    return completion.partition(reader.tokenizer.convert_ids_to_tokens(reader.end))[0]


def call_messages(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Returns calls in the form of the field `tool_calls` of a message."""
    return [
        {
            "id": call.id or f"call{number:05}",
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for number, call in enumerate(calls)
    ]


def _asking(calls: Sequence[Call]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": call_messages(calls)}


def _read_calls(form: ToolFormat, text: str) -> list[Call]:
    hint = f'write {{"{form.name}": ..., "{form.arguments}": {{...}}}}'
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableCall(f"Error: the call is no JSON ({str(error).splitlines()[0]}); {hint}.") from error
    return [_read_call(form, one, hint) for one in (value if isinstance(value, list) else [value])]


def _read_call(form: ToolFormat, value: Any, hint: str) -> Call:
    value = value.get("function", value) if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping) or not isinstance(value.get(form.name), str):
        raise UnreadableCall(f"Error: the call has no {form.name}; {hint}.")
    arguments = value.get(form.arguments, {})
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, Mapping):
        raise UnreadableCall(f"Error: {form.arguments} is no object; {hint}.")
    given = value.get("id")
    return Call(name=value[form.name], arguments=arguments, id=given if isinstance(given, str) else "")

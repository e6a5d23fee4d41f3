"""Trajectories as chat messages, the format for training in other libraries, and back."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from jaxagents.data.schema import Json, ToolCall, Trajectory, from_json, to_json

Message = dict[str, Any]

_ROW_FIELDS = ("messages", "prompt", "completion", "label", "chosen", "rejected", "id", "success", "tools")
_THINK, _END_OF_THINK = "<think>", "</think>"


class _OpenCall(NamedTuple):
    """A tool call that has no result yet."""

    id: str | None
    fields: dict[str, Json]


def to_messages(trajectory: Trajectory, *, agent: int = 0) -> list[Message]:
    """Turns the observations and answers of one agent into chat messages in OpenAI's format.

    The prompt becomes a system message, an observation a user message, an action an assistant message with its thought
    in "reasoning_content", and the results of its tool calls become tool messages. Rewards, flags and tokens are left
    out. An empty observation after tool results gets no message.

    Args:
        trajectory: a trajectory.
        agent: index of the agent whose context is written.

    Returns:
        The messages; tool arguments, and results that are not text, are JSON.

    Raises:
        ValueError: the agent has no turn.
    """
    turns = [turn for turn in trajectory.turns if turn.agent == agent]
    if not turns:
        raise ValueError(f"`agent` must have a turn in the trajectory {trajectory.id!r}, got {agent}.")
    messages: list[Message] = [{"role": "system", "content": trajectory.prompt}] if trajectory.prompt else []
    for index, turn in enumerate(turns):
        if turn.observation or not messages or messages[-1]["role"] != "tool":
            messages.append({"role": "user", "content": turn.observation})
        message: Message = {"role": "assistant", "content": turn.action}
        if turn.weight is not None:
            message["weight"] = turn.weight
        if turn.thought is not None:
            message["reasoning_content"] = turn.thought
        ids = [f"call_{index}_{number}" for number in range(len(turn.tool_calls))]
        if ids:
            message["tool_calls"] = [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for name, call in zip(ids, turn.tool_calls)
            ]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": name, "content": text_of_result(call.result)}
            for name, call in zip(ids, turn.tool_calls)
            if call.result is not None
        ]
    return messages


def from_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    id: str,
    success: bool | None = None,
    metadata: Mapping[str, Json] | None = None,
    tools: Sequence[Mapping[str, Json]] | None = None,
) -> Trajectory:
    """Turns chat messages in OpenAI's format into the trajectory of one agent.

    A thought is "reasoning_content", or the text between `<think>` and `</think>` at the start of the content.
    Consecutive user messages become one observation, separated by line breaks. A tool result belongs to the call with
    its "tool_call_id"; without an id, to the first call without a result, of its "name" if it has one. Assistant
    messages of "weight" 0 are read but not learned.

    Args:
        messages: an optional system message, then messages of the user, the assistant and tools, ending with one of the
            assistant or a tool.
        id: id of the trajectory.
        success: whether the episode succeeded; None if unknown.
        metadata: metadata of the trajectory.
        tools: JSON schemas of functions that the assistant may call; only chat templates use them.

    Returns:
        The trajectory, with the original messages; its last turn is neither terminated nor truncated.

    Raises:
        ValueError: a message has an unknown role, a part that is not text, a result for a call that was not made, or is
            in the wrong place.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(f"`messages` must be a list of messages, got {messages!r}.")
    prompt = ""
    turns: list[dict[str, Any]] = []
    observations: list[str] = []
    calls: list[_OpenCall] = []
    for index, message in enumerate(messages):
        where, role = f"messages[{index}]", message.get("role") if isinstance(message, Mapping) else None
        if role in ("system", "developer") and index == 0:
            prompt = _content(message, where)
        elif role == "user":
            observations.append(_content(message, where))
        elif role == "assistant":
            made = _tool_calls(message, where)
            calls += [_OpenCall(name, fields) for name, fields in made]
            thought, action = _split(message, where)
            turn = {"turn": len(turns), "observation": "\n".join(observations), "action": action, "thought": thought}
            turns.append({**turn, "tool_calls": [fields for _, fields in made], "weight": message.get("weight")})
            observations = []
        elif role == "tool" and not observations:
            _answered(calls, message, where)["result"] = _content(message, where)
        elif role is None:
            fields = ", ".join(message) if isinstance(message, Mapping) else repr(message)
            raise ValueError(f"`{where}` must have a `role` and a `content`, got {fields}.")
        else:
            raise ValueError(f"`{where}` must be a message that can stand there, got role {role!r}.")
    if observations or not turns:
        raise ValueError(f"`messages` must end with what the assistant did, got {len(observations)} user messages.")
    frame = Trajectory(
        id=id,
        world="",
        turns=(),
        prompt=prompt,
        success=success,
        metadata=dict(metadata or {}),
        messages=tuple(messages),
        tools=tuple(tools) if tools else None,
    )
    return from_json(to_json(frame) | {"agents": ["agent"], "turns": turns})


def from_row(row: Mapping[str, Any], *, id: str) -> list[Trajectory]:
    """Turns a row of a Hugging Face data set into the conversations that it contains.

    `{"messages"}` is one conversation, and so is `{"prompt", "completion"}`; an optional "label" tells whether it
    succeeded (unpaired preferences). `{"prompt", "chosen", "rejected"}` is two conversations of the same `pair`, of
    which the chosen one succeeded. Prompts and answers are texts, or lists of messages; lists in "chosen" and
    "rejected" without "prompt" are whole conversations, whose prompt is their common beginning. Assistant messages in a
    prompt are read but not learned.

    Args:
        row: row with such fields, and optionally "id" and "success"; other fields are kept in `metadata`.
        id: id of the conversation or pair, if the row has none.

    Returns:
        One trajectory, or two with the preferred one first.

    Raises:
        ValueError: the row has other fields, or see `from_messages`.
    """
    id = str(row.get("id") or id)
    label = row.get("label", row.get("success"))
    _require_flag(row, "label")
    metadata = {name: value for name, value in row.items() if name not in _ROW_FIELDS}
    make = partial(from_messages, tools=_tools(row))
    if "messages" in row:
        return [make(row["messages"], id=id, success=label, metadata=metadata)]
    before = _as_messages(row.get("prompt", []), "user", "prompt")
    if "completion" in row and before:
        messages = [*_read_only(before), *_as_messages(row["completion"], "assistant", "completion")]
        return [make(messages, id=id, success=label, metadata=metadata)]
    if "chosen" in row and "rejected" in row and (before or not isinstance(row["chosen"], str)):
        _require_different(row)
        sides = {side: [*before, *_as_messages(row[side], "assistant", side)] for side in ("chosen", "rejected")}
        shared = len(before) or _num_shared(*sides.values())
        return [
            make(
                [*_read_only(messages[:shared]), *messages[shared:]],
                id=f"{id}-{side}",
                success=side == "chosen",
                metadata={"pair": id} | metadata,
            )
            for side, messages in sides.items()
        ]
    raise ValueError(
        'the line must be a trajectory with "version", or have the fields "messages", "prompt" and "completion", or '
        f'"prompt", "chosen" and "rejected", got {", ".join(row) or "none"}.'
    )


def _read_only(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Marks the assistant messages of a prompt as not learned."""
    return [
        {**one, "weight": 0.0} if isinstance(one, Mapping) and one.get("role") == "assistant" else one
        for one in messages
    ]


def _num_shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns the number of common first messages of two conversations, excluding the last message of either."""
    alike = (index for index, (a, b) in enumerate(zip(one, other)) if a != b)
    return min(next(alike, len(one)), len(one) - 1, len(other) - 1)


def _tools(row: Mapping[str, Any]) -> Sequence[Mapping[str, Json]] | None:
    """Returns the tools of a row, which may be given as JSON text."""
    tools = row.get("tools")
    return json.loads(tools) if isinstance(tools, str) and tools else tools or None


def _require_different(row: Mapping[str, Any]) -> None:
    """Refuses a pair without a preference: equal answers, or an empty one."""
    sides = [_as_messages(row[side], "assistant", side) for side in ("chosen", "rejected")]
    if sides[0] == sides[1]:
        raise ValueError("`chosen` and `rejected` must differ, got the same twice.")
    for name, side in zip(("chosen", "rejected"), sides, strict=True):
        last = side[-1] if side and isinstance(side[-1], Mapping) else {}
        if not any(last.get(part) for part in ("content", "tool_calls", "reasoning_content")):
            raise ValueError(f"`{name}` must say something, got an empty answer.")


def _require_flag(row: Mapping[str, Any], name: str) -> None:
    if not isinstance(row.get(name), bool | None):
        raise ValueError(f"`{name}` must be true or false, got {row[name]!r}.")


def text_of_call(call: ToolCall) -> str:
    """Returns a call as JSON text, as in `{"name": "search", "arguments": {"query": "tea"}}`."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def text_of_result(result: Json) -> str:
    """Returns a tool result as text: text unchanged, anything else as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _as_messages(value: Any, role: str, where: str) -> list[Mapping[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise ValueError(f"`{where}` must be a text or a list of messages, got {value!r}.")
    return value


def _content(message: Mapping[str, Any], where: str) -> str:
    """Returns the text of a message, which may consist of parts."""
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list | tuple):
        raise ValueError(f"`{where}.content` must be a text or a list of parts, got {content!r}.")
    for index, part in enumerate(parts):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"`{where}.content[{index}]` must be a text, got {part!r}.")
    return "".join(part["text"] for part in parts)


def _split(message: Mapping[str, Any], where: str) -> tuple[str | None, str]:
    """Returns the thought and the rest of a message."""
    content, thought = _content(message, where), message.get("reasoning_content")
    if thought is None and content.lstrip().startswith(_THINK) and _END_OF_THINK in content:
        thought, content = content.lstrip().removeprefix(_THINK).split(_END_OF_THINK, 1)
        return thought.strip("\n"), content.lstrip("\n")
    return thought, content


def _answered(calls: list["_OpenCall"], message: Mapping[str, Any], where: str) -> dict[str, Json]:
    """Returns the fields of the call that a tool message answers, and removes the call from the open ones."""
    id, name = message.get("tool_call_id"), message.get("name")
    fitting = [call for call in calls if call.id == id] if id else []
    if not fitting:
        free = [call for call in calls if not (id and call.id)]
        fitting = [call for call in free if call.fields["name"] == name] or ([] if name and id else free)
    if not fitting:
        raise ValueError(f"`{where}` must be a message that can stand there, got the result of no call.")
    calls.remove(fitting[0])
    return fitting[0].fields


def _tool_calls(message: Mapping[str, Any], where: str) -> list[tuple[str, dict[str, Json]]]:
    """Returns the id and the fields of every tool call of a message."""
    calls = []
    if not isinstance(message.get("tool_calls") or (), list | tuple):
        raise ValueError(f"`{where}.tool_calls` must be a list of calls, got {message['tool_calls']!r}.")
    for index, call in enumerate(message.get("tool_calls") or ()):
        try:
            arguments = call["function"]["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            calls.append((call.get("id"), {"name": call["function"]["name"], "arguments": arguments}))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"`{where}.tool_calls[{index}]` must be a call of a function, got {call!r}.") from error
    return calls

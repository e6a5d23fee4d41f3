"""Trajectories as chat messages, the format that other libraries train on, and back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxagents.data.schema import Json, ToolCall, Trajectory, from_json, to_json

Message = dict[str, Any]

_ROW_FIELDS = ("messages", "prompt", "completion", "label", "chosen", "rejected", "id", "success")
_THINK, _END_OF_THINK = "<think>", "</think>"


def to_messages(trajectory: Trajectory, *, agent: int = 0) -> list[Message]:
    """Turns what one agent saw and said into chat messages in the format of OpenAI.

    The prompt becomes a system message, an observation a user message, an action an assistant message with its thought
    in "reasoning_content", and the results of its tool calls become tool messages. Rewards, flags and tokens are left
    out. An empty observation that follows results of tools gets no message.

    Args:
        trajectory: a trajectory.
        agent: index of the agent whose context to write.

    Returns:
        The messages; arguments of tools, and results that are not text, are JSON.

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
    world: str = "",
    rewards: Sequence[float] | None = None,
    success: bool | None = None,
    metadata: Mapping[str, Json] | None = None,
) -> Trajectory:
    """Turns chat messages in the format of OpenAI into the trajectory of one agent.

    A thought is "reasoning_content", or what stands between `<think>` and `</think>` at the start of the content.
    Several user messages in a row become one observation, with a line end between them.

    Args:
        messages: an optional system message, then messages of the user, the assistant and tools, ending with one of the
            assistant or of a tool.
        id: of the trajectory.
        world: name of the environment.
        rewards: of each turn; None for zeros.
        success: whether the episode was one; None when unknown.
        metadata: of the trajectory.

    Returns:
        The trajectory; the last turn neither terminates nor truncates it.

    Raises:
        ValueError: a message has an unknown role, a part that is not text, a result for a call that was not made, or
            comes where it must not; or the number of rewards is not that of the turns.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(f"`messages` must be a list of messages, got {messages!r}.")
    prompt = ""
    turns: list[dict[str, Any]] = []
    observations: list[str] = []
    places: dict[str, tuple[int, int]] = {}
    for index, message in enumerate(messages):
        where, role = f"messages[{index}]", message.get("role") if isinstance(message, Mapping) else None
        if role in ("system", "developer") and index == 0:
            prompt = _content(message, where)
        elif role == "user":
            observations.append(_content(message, where))
        elif role == "assistant":
            calls = _tool_calls(message, where)
            places |= {name: (len(turns), number) for number, (name, _) in enumerate(calls)}
            thought, action = _split(message, where)
            seen = "\n".join(observations)
            turn = {"turn": len(turns), "observation": seen, "action": action, "thought": thought}
            turns.append({**turn, "tool_calls": [call for _, call in calls]})
            observations = []
        elif role == "tool" and message.get("tool_call_id") in places and not observations:
            index_of_turn, number = places.pop(message["tool_call_id"])
            turns[index_of_turn]["tool_calls"][number]["result"] = _content(message, where)
        elif role is None:
            fields = ", ".join(message) if isinstance(message, Mapping) else repr(message)
            raise ValueError(f"`{where}` must have a `role` and a `content`, got {fields}.")
        else:
            raise ValueError(f"`{where}` must be a message that can stand there, got role {role!r}.")
    if observations or not turns:
        raise ValueError(f"`messages` must end with what the assistant did, got {len(observations)} user messages.")
    if rewards is not None and len(rewards) != len(turns):
        raise ValueError(f"`rewards` must be one per turn, got {len(rewards)} for {len(turns)} turns.")
    for one, reward in zip(turns, rewards or ()):
        one["reward"] = float(reward)
    frame = Trajectory(id=id, world=world, turns=(), prompt=prompt, success=success, metadata=dict(metadata or {}))
    return from_json(to_json(frame) | {"agents": ["agent"], "turns": turns})


def from_row(row: Mapping[str, Any], *, id: str) -> list[Trajectory]:
    """Turns a row of a data set of Hugging Face into the conversations that it holds.

    `{"messages"}` is one, and `{"prompt", "completion"}`; their "label", where there is one, says whether it succeeded
    (unpaired preferences). `{"prompt", "chosen", "rejected"}` is two of the same `pair`, of which the chosen one
    succeeded. Prompts and answers are texts, or lists of messages; lists in "chosen" and "rejected" without
    "prompt" are whole conversations.

    Args:
        row: with such fields; "id" and "success" may stand beside them, other fields are kept in `metadata`.
        id: of the conversation where the row has none, and of the pair.

    Returns:
        One trajectory or two, the preferred one first.

    Raises:
        ValueError: the row has other fields, or see `from_messages`.
    """
    id = str(row.get("id") or id)
    label = row.get("label", row.get("success"))
    _require_flag(row, "label")
    rest = {name: told for name, told in row.items() if name not in _ROW_FIELDS}
    if "messages" in row:
        return [from_messages(row["messages"], id=id, success=label, metadata=rest)]
    before = _as_messages(row.get("prompt", []), "user", "prompt")
    if "completion" in row and before:
        said = [*before, *_as_messages(row["completion"], "assistant", "completion")]
        return [from_messages(said, id=id, success=label, metadata=rest)]
    if "chosen" in row and "rejected" in row and (before or not isinstance(row["chosen"], str)):
        _require_different(row)
        return [
            from_messages(
                [*before, *_as_messages(row[side], "assistant", side)],
                id=f"{id}-{side}",
                success=side == "chosen",
                metadata={"pair": id} | rest,
            )
            for side in ("chosen", "rejected")
        ]
    raise ValueError(
        'the line must be a trajectory with "version", or have the fields "messages", "prompt" and "completion", or '
        f'"prompt", "chosen" and "rejected", got {", ".join(row) or "none"}.'
    )


def _require_different(row: Mapping[str, Any]) -> None:
    """Refuses a pair that prefers nothing: equal answers, or one without a word."""
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
    """Returns a result of a tool as text: itself when it is text, else as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _as_messages(value: Any, role: str, where: str) -> list[Mapping[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise ValueError(f"`{where}` must be a text or a list of messages, got {value!r}.")
    return value


def _content(message: Mapping[str, Any], where: str) -> str:
    """Returns the text of a message, which may come in parts."""
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

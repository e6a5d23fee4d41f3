"""The trajectory of a text episode and the equivalent JSON object: version 1 of the format.

The object has the fields of the dataclasses below under the same names, except for `episode_return`, which is called
"return", and an additional "version". Fields with a default may be omitted; other fields are refused.
"""

import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import Any

VERSION = 1

Json = Any
_Check = Callable[[Any, str], Any]  # (value, path of the field) -> value of the dataclass; refuses with a ValueError.


@dataclass(frozen=True)
class ToolCall:
    """A tool call of an agent.

    Attributes:
        name: name of the tool.
        arguments: arguments by name.
        result: result, which the agent sees before its next observation; None if there was none.
    """

    name: str
    arguments: Mapping[str, Json]
    result: Json = None


@dataclass(frozen=True)
class Turn:
    """The observation and action of one agent in one turn.

    Attributes:
        turn: index of the turn, non-decreasing along a trajectory; agents that act at the same time share it.
        observation: text that the agent saw.
        action: text of the agent's answer, without thought and tool calls.
        agent: index of the agent in `Trajectory.agents`.
        thought: text of the thought before the answer; None without one.
        tool_calls: tool calls of the turn, written after `action`.
        reward: reward of the turn.
        valid: whether the action could be parsed and was legal.
        terminated: whether the turn ended the episode in a terminal state.
        truncated: whether the turn ended the episode by a limit.
        fingerprint: fingerprint of the state in which the turn acted; None if unknown.
        tokens: token ids of the turn, including marks, by the tokenizer that was in use; None if not stored.
        sampled: whether the policy sampled each of `tokens`.
        behavior_log_prob: log-probability of each of `tokens` under the policy that sampled it, in nats; 0 if not
            sampled.
        weight: weight of the loss of answer and thought; 0: only read; None: 1.
    """

    turn: int
    observation: str
    action: str
    agent: int = 0
    thought: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reward: float = 0.0
    valid: bool = True
    terminated: bool = False
    truncated: bool = False
    fingerprint: int | None = None
    tokens: tuple[int, ...] | None = None
    sampled: tuple[bool, ...] | None = None
    behavior_log_prob: tuple[float, ...] | None = None
    weight: float | None = None


@dataclass(frozen=True)
class Trajectory:
    """One text episode.

    Attributes:
        id: name of the episode, unique in a data set.
        world: name of the environment.
        turns: turns, at least one.
        prompt: text shown once before the first observation.
        level: difficulty; None if unknown.
        seed: seed from which the episode was drawn; None if unknown.
        task: the task itself, as JSON.
        agents: role of each agent.
        success: whether the episode succeeded; None if unknown.
        episode_return: undiscounted sum of rewards; None if unknown.
        metadata: further data about the episode, as JSON.
        messages: the original conversation, for chat templates; None if there are only the turns.
        tools: JSON schemas of tools that the agents may call, for chat templates; None: no tools.
    """

    id: str
    world: str
    turns: tuple[Turn, ...]
    prompt: str = ""
    level: int | None = None
    seed: int | None = None
    task: Json = None
    agents: tuple[str, ...] = ("agent",)
    success: bool | None = None
    episode_return: float | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    messages: tuple[Mapping[str, Json], ...] | None = None
    tools: tuple[Mapping[str, Json], ...] | None = None


def to_json(trajectory: Trajectory) -> dict[str, Json]:
    """Turns a trajectory into the JSON object of its line; fields that are None are omitted.

    Args:
        trajectory: a trajectory.

    Returns:
        Dicts, lists and scalars, from which `from_json` makes the trajectory again.
    """
    value = _fields_of(trajectory)
    turns = [
        _fields_of(turn) | {"tool_calls": [_fields_of(call) for call in turn.tool_calls]} for turn in trajectory.turns
    ]
    if "episode_return" in value:
        value["return"] = value.pop("episode_return")
    return {"version": VERSION} | value | {"turns": turns}


def from_json(value: Json) -> Trajectory:
    """Checks the JSON object of a line and turns it into a trajectory.

    Args:
        value: result of `json.loads`.

    Returns:
        The trajectory.

    Raises:
        ValueError: another version, a field that is unknown, missing or of the wrong type, or turns that contradict
            each other; the message names the field.
    """
    value = dict(_object(value, ""))
    version = value.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise ValueError(f"`version` must be {VERSION}, got {version!r}; other versions cannot be read.")
    trajectory = _TRAJECTORY(value, "")
    _check_turns(trajectory)
    return trajectory


def _fields_of(value: Any) -> dict[str, Any]:
    pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
    return {
        name: list(content) if isinstance(content, tuple) else content for name, content in pairs if content is not None
    }


def _check_turns(trajectory: Trajectory) -> None:
    """Checks conditions that involve several fields."""
    ended, last = set(), 0
    for index, turn in enumerate(trajectory.turns):
        where = f"turns[{index}]"
        if turn.agent not in range(len(trajectory.agents)):
            raise ValueError(f"`{where}.agent` must be an index into `agents`, got {turn.agent}.")
        if turn.turn < last:
            raise ValueError(f"`{where}.turn` must be at least {last}, got {turn.turn}.")
        if turn.agent in ended:
            raise ValueError(f"`{where}` must not come after the end of the episode of agent {turn.agent}.")
        lengths = [None if ids is None else len(ids) for ids in (turn.tokens, turn.sampled, turn.behavior_log_prob)]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"`{where}.tokens`, `sampled` and `behavior_log_prob` must have one length, got {lengths}."
            )
        last = turn.turn
        if turn.terminated or turn.truncated:
            ended.add(turn.agent)


def _wrong(where: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"`{where or 'the line'}` must be {expected}, got {reprlib.repr(value)}.")


def _object(value: Any, where: str) -> dict:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    return value


def _text(value: Any, where: str) -> str:
    try:
        value.encode()  # JSON can contain half of a surrogate pair, which cannot be tokenised.
    except (AttributeError, UnicodeEncodeError) as error:
        raise _wrong(where, "a string of Unicode characters", value) from error
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def _integer(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(where, "an integer", value)
    return value


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise _wrong(where, "a finite number", value)
    return float(value)


def _weight(value: Any, where: str) -> float:
    if _number(value, where) < 0.0:
        raise _wrong(where, "at least 0", value)
    return float(value)


def _json(value: Any, where: str) -> Json:
    del where
    return value


def _optional(check: _Check) -> _Check:
    return lambda value, where: None if value is None else check(value, where)


def _tuple_of(check: _Check, min_length: int = 0) -> _Check:
    def check_all(value: Any, where: str) -> tuple:
        if not isinstance(value, list) or len(value) < min_length:
            raise _wrong(where, f"a list of at least {min_length}" if min_length else "a list", value)
        try:
            return tuple([check(item, where) for item in value])
        except ValueError:  # Only now, because making the path of every item is slow.
            return tuple([check(item, f"{where}[{index}]") for index, item in enumerate(value)])

    return check_all


def _record(value: Any, where: str, *, kind: Any, checks: Mapping[str, _Check]) -> Any:
    """Checks an object and returns the dataclass `kind` with its fields."""
    unknown = sorted(_object(value, where).keys() - checks.keys())
    if unknown:
        found = f"`{where}.{unknown[0]}`" if where else f"`{unknown[0]}`"
        raise ValueError(f"{found} must not be there, got an unknown field; put your own into `metadata`.")
    missing = [item.name for item in _REQUIRED[kind] if item.name not in value]
    if missing:
        raise _wrong(f"{where}.{missing[0]}" if where else missing[0], "given", None)
    checked = {name: checks[name](item, f"{where}.{name}" if where else name) for name, item in value.items()}
    return kind(**{_FIELD_NAMES.get(name, name): item for name, item in checked.items()})


_FIELD_NAMES = {"return": "episode_return"}  # A Python field cannot be called "return".
_REQUIRED = {
    kind: [item for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]
    for kind in (ToolCall, Turn, Trajectory)
}
_TOOL_CALL = partial(_record, kind=ToolCall, checks={"name": _text, "arguments": _object, "result": _json})
_TURN = partial(
    _record,
    kind=Turn,
    checks={
        "turn": _integer,
        "observation": _text,
        "action": _text,
        "agent": _integer,
        "thought": _optional(_text),
        "tool_calls": _tuple_of(_TOOL_CALL),
        "reward": _number,
        "valid": _flag,
        "terminated": _flag,
        "truncated": _flag,
        "fingerprint": _optional(_integer),
        "tokens": _optional(_tuple_of(_integer)),
        "sampled": _optional(_tuple_of(_flag)),
        "behavior_log_prob": _optional(_tuple_of(_number)),
        "weight": _optional(_weight),
    },
)
_TRAJECTORY = partial(
    _record,
    kind=Trajectory,
    checks={
        "id": _text,
        "world": _text,
        "turns": _tuple_of(_TURN, min_length=1),
        "prompt": _text,
        "level": _optional(_integer),
        "seed": _optional(_integer),
        "task": _json,
        "agents": _tuple_of(_text, min_length=1),
        "success": _optional(_flag),
        "return": _optional(_number),
        "metadata": _object,
        "messages": _optional(_tuple_of(_object)),
        "tools": _optional(_tuple_of(_object)),
    },
)

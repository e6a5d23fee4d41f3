"""Chat messages in the format of OpenAI, by hand and there and back."""

import dataclasses

import pytest

from jaxagents.data.messages import from_messages, from_row, to_messages
from jaxagents.data.schema import ToolCall, Trajectory, Turn

CALL = ToolCall(name="search", arguments={"query": "tea"}, result="green")
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Which tea?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "look",
        "tool_calls": [
            {"id": "call_0_0", "type": "function", "function": {"name": "search", "arguments": '{"query": "tea"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_0_0", "content": "green"},
    {"role": "assistant", "content": "Green."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]
TRAJECTORY = Trajectory(
    id="a",
    world="",
    prompt="Be brief.",
    turns=(
        Turn(turn=0, observation="Which tea?", action="", thought="look", tool_calls=(CALL,)),
        Turn(turn=1, observation="", action="Green."),
        Turn(turn=2, observation="Sure?", action="Yes."),
    ),
)


def test_messages_by_hand():
    assert to_messages(TRAJECTORY) == MESSAGES
    assert from_messages(MESSAGES, id="a") == dataclasses.replace(TRAJECTORY, messages=tuple(MESSAGES))


def test_results_that_are_not_text_become_json():
    turns = (dataclasses.replace(TRAJECTORY.turns[0], tool_calls=(dataclasses.replace(CALL, result={"n": 1}),)),)
    messages = to_messages(dataclasses.replace(TRAJECTORY, turns=turns))
    assert messages[-1]["content"] == '{"n": 1}'


def test_agents_have_messages_of_their_own():
    turns = (Turn(turn=0, observation="a", action="b"), Turn(turn=0, observation="", action="d", agent=1))
    trajectory = Trajectory(id="a", world="w", turns=turns, agents=("x", "y"))
    expected = [{"role": "user", "content": ""}, {"role": "assistant", "content": "d"}]
    assert to_messages(trajectory, agent=1) == expected
    with pytest.raises(ValueError, match="`agent` must have a turn in the trajectory 'a', got 2"):
        to_messages(trajectory, agent=2)


def test_other_ways_to_write_messages():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\ngo"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    ]
    first, second = from_messages(messages, id="a", success=True, metadata={"k": 1}).turns
    assert (first.observation, first.thought, first.action) == ("ab\nc", "hm", "go")
    assert second.action == "" and second.tool_calls == (ToolCall(name="f", arguments={"x": 1}),)


USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "`messages` must end with what the assistant did, got 0 user messages"),
        ([USER], "must end with what the assistant did, got 1"),
        ([USER, ASSISTANT, USER], "must end with what the assistant did"),
        (
            [USER, {"role": "system", "content": "x"}],
            r"`messages\[1\]` must be a message that can stand there, got role",
        ),
        ([USER, {"role": "oracle", "content": "x"}], r"`messages\[1\]` must be a message that can stand there"),
        (["x"], r"`messages\[0\]` must have a `role` and a `content`, got 'x'"),
        ([ASSISTANT, {"role": "tool", "tool_call_id": "7", "content": "x"}], r"`messages\[1\]` must be a message"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"`messages\[0\].content\[0\]` must be a text"),
        ([ASSISTANT | {"tool_calls": [{"id": "1"}]}], r"`messages\[0\].tool_calls\[0\]` must be a call of a function"),
        (
            [ASSISTANT | {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            r"`messages\[0\].tool_calls\[0\]` must be a call",
        ),
        ([ASSISTANT | {"reasoning_content": 3}], r"`turns\[0\].thought` must be a string"),
    ],
)
def test_wrong_messages_are_refused(messages, message):
    with pytest.raises(ValueError, match=message):
        from_messages(messages, id="a")


def test_results_without_an_id_belong_to_the_first_open_call():
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in ("add", "find")]
    asked = [{"role": "user", "content": "both"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    for results in (
        [{"role": "tool", "content": "3"}, {"role": "tool", "content": "tea"}],
        [{"role": "tool", "name": "find", "content": "tea"}, {"role": "tool", "name": "add", "content": "3"}],
    ):
        (turn,) = from_messages([*asked, *results], id="a").turns
        assert [call.result for call in turn.tool_calls] == ["3", "tea"]
    with pytest.raises(ValueError, match="must be a message that can stand there, got the result of no call"):
        from_messages([*asked, *results, {"role": "tool", "content": "once more"}], id="a")


def test_prompts_and_messages_of_weight_0_are_read_only():
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    (one,) = from_row({"prompt": chat, "completion": [{"role": "assistant", "content": "d"}]}, id="a")
    assert [turn.weight for turn in one.turns] == [0.0, None]
    answers = ([*chat, {"role": "assistant", "content": word}] for word in "de")
    chosen, rejected = from_row(dict(zip(("chosen", "rejected"), answers)), id="a")
    assert [turn.weight for turn in (*chosen.turns, *rejected.turns)] == [0.0, None, 0.0, None]
    (other,) = from_row({"messages": [chat[0], {**chat[1], "weight": 0}], "tools": "[]"}, id="a")
    assert [turn.weight for turn in other.turns] == [0.0] and other.tools is None
    with pytest.raises(ValueError, match=r"`turns\[0\].weight` must be at least 0, got -1"):
        from_row({"messages": [chat[0], {**chat[1], "weight": -1}]}, id="a")

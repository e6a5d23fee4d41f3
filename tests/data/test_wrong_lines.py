"""Lines of chat files and pairs that say something wrong: each is refused with its field."""

import json

import pytest

from jaxagents.data.trajectories import parse_row

USER, ANSWER = {"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"messages": None}, "`messages` must be a list of messages, got None."),
        ({"messages": "hello"}, "`messages` must be a list of messages, got 'hello'."),
        (
            {"messages": [{**USER, "content": 3}, ANSWER]},
            "`messages[0].content` must be a text or a list of parts, got 3.",
        ),
        ({"messages": [USER, {**ANSWER, "tool_calls": 3}]}, "`messages[1].tool_calls` must be a list of calls, got 3."),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "`chosen` and `rejected` must differ, got the same twice."),
        ({"prompt": "a", "chosen": "", "rejected": "b"}, "`chosen` must say something, got an empty answer."),
    ],
)
def test_wrong_lines_are_refused_with_their_field(line, message):
    with pytest.raises(ValueError) as error:
        parse_row(json.dumps(line).encode())
    assert str(error.value) == message


def test_a_field_that_stands_twice_is_refused():
    messages = json.dumps([USER, ANSWER])
    with pytest.raises(ValueError, match="the line must have every field once, got 'messages' twice"):
        parse_row(f'{{"messages": {messages}, "messages": {messages}}}'.encode())

"""Tools that are methods of an object: every conversation has its own, made and reset before the first call."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from jaxagents.language.chat_template import read_template
from jaxagents.language.chat_world import make_environment
from jaxagents.language.tool_calls import Tool
from tests.language.test_chat_world import ROWS, Talk, make_host, search, write_call

pytest.importorskip("transformers", reason="needs the extra hf: chat templates are of transformers")


class Basket:
    """A basket of one conversation."""

    def __init__(self, size=3):
        self.size, self.things, self.owner = size, [], None

    def reset(self, answer):
        self.owner = answer

    def put(self, thing: str) -> str:
        """Puts a thing into the basket.

        Args:
            thing: what to put.
        """
        if len(self.things) == self.size:
            raise OverflowError("the basket is full")
        time.sleep(0.01 * (5 - len(self.things)))  # In whatever order threads would end, calls are made in theirs.
        self.things.append(thing)
        return f"{self.owner}: {', '.join(self.things)}"

    def _secret(self):
        raise AssertionError


def test_every_conversation_has_an_object_of_its_own(chat_folder):
    reader, seen = read_template(chat_folder("qwen_25")), []

    def score(completions, environments, **columns):
        seen.extend(environments)
        return [len(basket.things) / 2 for basket in environments]

    host = make_host(reader, tools=(search,), factory=partial(Basket, size=2), reward=score, result=400)
    assert [schema["function"]["name"] for schema in host.schemas] == ["search", "put"]
    assert host.schemas[1]["function"]["parameters"]["required"] == ["thing"]
    one, other = Talk(host), Talk(host, row=1)
    calls = [("put", {"thing": "a"}), ("search", {"query": "Bo"}), ("put", {"thing": "b"}), ("put", {"thing": "c"})]
    one.say(write_call(reader, *calls))
    parts = ("Bern: a", "Bo lives", "Bern: a, b", "Error: put failed with OverflowError: the basket is full")
    places = [one.read.index(f"<tool_response>\n{text}") for text in parts]
    assert places == sorted(places)
    other.say(write_call(reader, ("put", {"thing": "z"})))
    assert "<tool_response>\nRome: z\n" in other.read
    assert one.say("done").reward == 1.0 and other.say("done").reward == 0.5
    assert [basket.things for basket in seen] == [["a", "b"], ["z"]] and not host._open
    plain = make_host(reader, factory=Basket, reward=lambda prompts, completions, **columns: [len(columns)])
    assert Talk(plain).say("done").reward == 3.0  # Who takes all columns gets the objects, too.


def test_a_class_of_tools_that_cannot_work_is_refused(chat_folder):
    class Nothing:
        def reset(self, **columns): ...

    class Broken(Basket):
        def reset(self, question):
            raise AssertionError

    with pytest.raises(ValueError, match="`tools` must have public methods where they are a class, got none of Noth"):
        make_environment(rows=ROWS, tools=[Nothing])
    with pytest.raises(ValueError, match="`environment.tools` must have at most one class, got 2"):
        make_environment(rows=ROWS, tools=[Basket, partial(Basket, size=2)])
    with pytest.raises(ValueError, match="`environment.tools` must have different names, got 'put' twice"):
        make_environment(rows=ROWS, tools=[Basket, Tool("put", {}, print)])
    host = make_host(read_template(chat_folder("qwen_25")), factory=Broken)
    with pytest.raises(ValueError, match="must make an object for row 0.*, got TypeError: .*'answer'"):
        Talk(host).say("done")
    assert not host._open


def test_an_object_that_takes_too_long_to_reset_is_refused_within_the_time_of_a_call(chat_folder):
    class Slow(Basket):
        def reset(self, answer):
            time.sleep(60)

    host = make_host(read_template(chat_folder("qwen_25")), factory=Slow, seconds=0.2)
    begin = time.monotonic()
    with pytest.raises(ValueError, match="an object for row 0.*, got reset did not answer within 0.2 seconds.$"):
        Talk(host).say("done")
    assert time.monotonic() - begin < 5.0 and not host._open


def test_objects_are_reset_side_by_side(chat_folder):
    """All three wait for each other: one after the other, the first would wait in vain."""
    together = threading.Barrier(3)

    class Meeting(Basket):
        def reset(self, answer):
            together.wait(5.0)
            self.owner = answer

    paid = []

    def score(completions, environments, **columns):
        paid.extend(basket.owner for basket in environments)
        return [1.0] * len(completions)

    host = make_host(read_template(chat_folder("qwen_25")), factory=Meeting, reward=score, seconds=10.0)
    output = np.full((3, 4), -1, np.int32)
    output[:, 0] = host.reader.end
    steps = host.step(np.arange(3, dtype=np.int32), np.full(3, -1, np.int32), output, np.ones(3, bool))
    assert paid == ["Bern", "Rome", "Oslo"] and steps.over.all() and sorted(steps.conversation) == [0, 1, 2]

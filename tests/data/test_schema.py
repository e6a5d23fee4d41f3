"""The JSON object of a trajectory: what is accepted, what is refused, and that nothing changes on the way."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagents.data.schema import ToolCall, Trajectory, Turn, from_json, to_json

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
calls = st.builds(ToolCall, name=texts, arguments=st.dictionaries(texts, jsons, max_size=2), result=jsons)


@st.composite
def trajectories(draw):
    agents = tuple(draw(st.lists(texts, min_size=1, max_size=3)))
    turns = []
    for turn in range(draw(st.integers(1, 3))):
        size = draw(st.none() | st.integers(0, 3))
        turns.append(
            Turn(
                turn=turn,
                observation=draw(texts),
                action=draw(texts),
                agent=draw(st.integers(0, len(agents) - 1)),
                thought=draw(st.none() | texts),
                tool_calls=tuple(draw(st.lists(calls, max_size=2))),
                reward=draw(numbers),
                valid=draw(st.booleans()),
                fingerprint=draw(st.none() | st.integers(0, 2**32 - 1)),
                tokens=None if size is None else (7,) * size,
                sampled=None if size is None else (True,) * size,
                behavior_log_prob=None if size is None else (-0.5,) * size,
            )
        )
    return Trajectory(
        id=draw(texts),
        world=draw(texts),
        turns=tuple(turns),
        prompt=draw(texts),
        level=draw(st.none() | st.integers()),
        seed=draw(st.none() | st.integers()),
        task=draw(jsons),
        agents=agents,
        success=draw(st.none() | st.booleans()),
        episode_return=draw(st.none() | numbers),
        metadata=draw(st.dictionaries(texts, jsons, max_size=2)),
    )


@given(trajectories())
@settings(max_examples=50, deadline=None)
def test_objects_say_the_same_as_trajectories(trajectory):
    assert from_json(to_json(trajectory)) == trajectory
    assert from_json(json.loads(json.dumps(to_json(trajectory), allow_nan=False))) == trajectory


def smallest():
    return {"version": 1, "id": "a", "world": "w", "turns": [{"turn": 0, "observation": "o", "action": "b"}]}


def test_the_smallest_object():
    expected = Trajectory(id="a", world="w", turns=(Turn(turn=0, observation="o", action="b"),))
    assert from_json(smallest()) == expected
    assert expected.agents == ("agent",) and expected.turns[0].valid and expected.turns[0].reward == 0.0


def test_names_in_the_file():
    value = to_json(Trajectory(id="a", world="w", turns=(Turn(turn=0, observation="o", action="b"),), episode_return=2))
    assert value["return"] == 2 and value["version"] == 1
    assert "episode_return" not in value and "thought" not in value["turns"][0]
    assert from_json(smallest() | {"return": 2}).episode_return == 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"`version` must be 1, got 2"),
        ({"version": None}, r"`version` must be 1, got None"),
        ({"version": True}, r"`version` must be 1, got True"),
        ({"id": 3}, r"`id` must be a string of Unicode characters, got 3"),
        ({"id": "\ud800"}, r"`id` must be a string of Unicode"),
        ({"wrold": "w"}, r"`wrold` must not be there"),
        ({"episode_return": 1.0}, r"`episode_return` must not be there"),
        ({"return": "1"}, r"`return` must be a finite number, got '1'"),
        ({"level": 1.5}, r"`level` must be an integer, got 1.5"),
        ({"seed": True}, r"`seed` must be an integer, got True"),
        ({"success": 1}, r"`success` must be true or false, got 1"),
        ({"metadata": []}, r"`metadata` must be an object"),
        ({"turns": []}, r"`turns` must be a list of at least 1"),
        ({"turns": {}}, r"`turns` must be a list"),
        ({"turns": ["x"]}, r"`turns\[0\]` must be an object, got 'x'"),
        ({"agents": []}, r"`agents` must be a list of at least 1"),
        ({"agents": ["a", None]}, r"`agents\[1\]` must be a string"),
    ],
)
def test_wrong_fields_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        from_json(smallest() | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": "high"}, r"`turns\[0\].reward` must be a finite number, got 'high'"),
        ({"reward": True}, r"`turns\[0\].reward` must be a finite number, got True"),
        ({"reward": float("nan")}, r"`turns\[0\].reward` must be a finite number, got nan"),
        ({"reward": 10**400}, r"`turns\[0\].reward` must be a finite number"),
        ({"action": None}, r"`turns\[0\].action` must be a string"),
        ({"actoin": "b"}, r"`turns\[0\].actoin` must not be there"),
        ({"agent": 1}, r"`turns\[0\].agent` must be an index into `agents`, got 1"),
        ({"agent": -1}, r"`turns\[0\].agent` must be an index into `agents`, got -1"),
        ({"turn": -1}, r"`turns\[0\].turn` must be at least 0, got -1"),
        (
            {"tool_calls": [{"name": "f", "arguments": "x"}]},
            r"`turns\[0\].tool_calls\[0\].arguments` must be an object",
        ),
        ({"tool_calls": [{"name": "f"}]}, r"`turns\[0\].tool_calls\[0\].arguments` must be given"),
        ({"tokens": [1]}, r"`turns\[0\].tokens`, .* must have one length, got \[1, None, None\]"),
        ({"tokens": [1, "2"], "sampled": [True, True]}, r"`turns\[0\].tokens\[1\]` must be an integer, got '2'"),
    ],
)
def test_wrong_fields_of_turns_are_refused(change, message):
    value = smallest()
    with pytest.raises(ValueError, match=message):
        from_json(value | {"turns": [value["turns"][0] | change]})


def test_missing_fields_are_refused():
    for name in ("id", "world", "turns"):
        with pytest.raises(ValueError, match=f"`{name}` must be given"):
            from_json({key: item for key, item in smallest().items() if key != name})
    for value in (None, [], "x", 1):
        with pytest.raises(ValueError, match="`the line` must be an object"):
            from_json(value)


def test_turns_that_contradict_each_other_are_refused():
    value = smallest() | {"agents": ["a", "b"]}
    first = value["turns"][0] | {"turn": 1, "terminated": True}
    with pytest.raises(ValueError, match=r"`turns\[1\].turn` must be at least 1, got 0"):
        from_json(value | {"turns": [first, first | {"turn": 0}]})
    with pytest.raises(ValueError, match=r"`turns\[1\]` must not come after the end of the episode of agent 0"):
        from_json(value | {"turns": [first, first | {"turn": 2}]})
    # Another agent may go on, also in the same turn.
    assert len(from_json(value | {"turns": [first, first | {"agent": 1}]}).turns) == 2

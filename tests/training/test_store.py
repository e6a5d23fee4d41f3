"""The store: records know what was asked for, are whole or not there, and are made once."""

import json

import pytest

from jaxagents.data.files import write_whole
from jaxagents.training.store import holds, kept, read_fields, read_record, set_aside, write_record


def test_a_record_says_what_was_asked_and_made_it(tmp_path):
    path = tmp_path / "a" / "b.json"
    assert write_record(path, "0123", {"returns": [1.5, 2], "name": "b"})
    record = read_record(path)
    assert record["asked"] == "0123" and record["versions"]["jax"]
    assert read_fields(path) == {"returns": [1.5, 2], "name": "b"}
    assert [file.name for file in path.parent.iterdir()] == ["b.json"]


def test_a_result_is_made_once_for_its_settings_and_again_where_that_is_asked_for(tmp_path):
    path, made = tmp_path / "b.json", []

    def make():
        made.append(len(made))
        return {"value": made[-1]}

    assert [kept(path, "x", make)["value"] for _ in range(2)] == [0, 0] and holds(path, "x") and not holds(path, "y")
    assert kept(path, "x", make, again=True)["value"] == 1
    assert kept(path, "y", make)["value"] == 2 and not holds(path, "x") and len(made) == 3


def test_what_is_kept_once_is_not_replaced(tmp_path):
    path = tmp_path / "b.json"
    assert write_record(path, "x", {"value": 1}, once=True) and not write_record(path, "x", {"value": 2}, once=True)
    assert read_fields(path) == {"value": 1} and [file.name for file in tmp_path.iterdir()] == ["b.json"]
    assert write_record(path, "x", {"value": 2}) and read_fields(path) == {"value": 2}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:40],
        lambda text: text.replace('"value":1', '"value":2'),
        lambda text: text.replace('"asked": "x"', '"asked": "y"'),
        lambda text: text.replace('"value"', '"other"'),
        lambda text: json.dumps({"value": 1}),
        lambda text: "[]",
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path, damage):
    path = tmp_path / "b.json"
    write_record(path, "x", {"values": {"value": 1}})
    damaged = damage(path.read_text())
    path.write_text(damaged)
    with pytest.raises(ValueError, match="must hold a result, got a damaged file"):
        kept(path, "x", dict)
    assert path.read_text() == damaged and set_aside(path).read_text() == damaged and not path.exists()


@pytest.mark.parametrize("once", [True, False])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, once):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    (tmp_path / "c").write_text("before")
    monkeypatch.setattr("os.fsync", full)
    for name in ("b", "c"):
        with pytest.raises(OSError, match="No space left on device"):
            write_whole(tmp_path / name, b"content", once=once)
    assert [path.name for path in tmp_path.iterdir()] == ["c"] and (tmp_path / "c").read_text() == "before"

"""Files of trajectories: whole or not at all, and honest about damage; trajectories of episodes."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from jaxagents.data.schema import Trajectory, Turn, to_json
from jaxagents.data.streams import encode
from jaxagents.data.trajectories import from_episodes, read_lines, read_trajectories, write_trajectories
from jaxagents.types import Episode

NAMES = ["data.jsonl", "data.jsonl.gz"]


def make(name, **changes):
    turn = Turn(turn=0, observation="a \u2028 line", action="go √", reward=0.1)
    return Trajectory(id=name, world="w", turns=(turn,), **changes)


def line(name):
    return json.dumps(to_json(make(name))).encode() + b"\n"


def ids(path, **options):
    return [trajectory.id for trajectory in read_trajectories(path, **options)]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read(tmp_path, name):
    path, written = tmp_path / name, [make("a", task={"goal": [1, 2]}), make("b", success=True)]
    assert write_trajectories(path, written) == 2
    assert list(read_trajectories(path)) == written
    assert write_trajectories(path, [make("d")]) == 1
    assert ids(path) == ["d"]
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_files_are_lines_of_utf8(tmp_path):
    path = tmp_path / "a.jsonl"
    write_trajectories(path, [make("a"), make("b")])
    first, second, rest = path.read_bytes().split(b"\n")
    assert json.loads(first) == to_json(make("a")) and "√".encode() in second and rest == b""
    write_trajectories(tmp_path / "a.jsonl.gz", [make("a"), make("b")])
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == path.read_bytes()


@pytest.mark.parametrize("wrong", [make("b", level="high"), make("b", metadata={"x": object()}), make("\ud800")])
def test_all_or_nothing_is_written(tmp_path, wrong):
    path = tmp_path / "a.jsonl"
    write_trajectories(path, [make("a")])
    with pytest.raises(ValueError, match="`trajectories` must be valid, got "):
        write_trajectories(path, [make("c"), wrong])
    assert ids(path) == ["a"] and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="must hold at least one"):
        write_trajectories(tmp_path / "new.jsonl", [])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_crash_in_the_middle_of_writing_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "a.jsonl"
    write_trajectories(path, [make("a")])

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"os.{call}", crash)
    with pytest.raises(KeyboardInterrupt):
        write_trajectories(path, [make("b")])
    assert ids(path) == ["a"] and len(list(tmp_path.iterdir())) == 1


DAMAGED = [
    (b'{"version": 1, "id": "x"\n', "line 2: the line must be JSON, got Expecting ',' delimiter"),
    (b"[" * 100_000 + b"\n", "line 2: the line must be JSON"),
    (b'{"message": []}\n', 'line 2: the line must be a trajectory with "version", or have .*, got message'),
    (b'{"version": NaN}\n', "line 2: numbers must be finite, got NaN"),
    (b"\xff\xfe\n", "line 2: the line must be UTF-8, got other bytes at 0"),
    (b"[]\n", "line 2: `the line` must be an object"),
    (line("x").replace(b'"version": 1', b'"version": 7'), "line 2: `version` must be 1, got 7"),
    (line("x").replace(b"0.1", b'"0.1"'), r"line 2: `turns\[0\].reward` must be a finite number, got '0.1'"),
    (line("x").replace(b"reward", b"rewrad"), r"line 2: `turns\[0\].rewrad` must not be there"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED)
@pytest.mark.parametrize("name", NAMES)
def test_damaged_lines_are_reported_by_name_and_number(tmp_path, name, damage, message):
    path, content = tmp_path / name, line("a") + damage + b"\n" + line("b")
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    good = read_trajectories(path)
    assert next(good).id == "a"
    with pytest.raises(ValueError, match=f"{name}, {message}"):
        next(good)
    messages = []
    assert ids(path, on_error="skip", report=messages.append) == ["a", "b"]
    assert len(messages) == 2 and messages[0].endswith("Skipped.")
    assert messages[1] == f"{path}: 2 trajectories read, 1 lines skipped."


def test_reports_are_warnings_by_default(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x\n" + line("a"))
    with pytest.warns(UserWarning) as caught:
        assert ids(path, on_error="skip") == ["a"]
    assert len(caught) == 2 and "line 1: the line must be JSON" in str(caught[0].message)


def test_a_last_line_that_was_cut_off_is_named_as_such(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a") + line("b")[:-9])
    with pytest.raises(ValueError, match="line 2: .*it has no line end, so its writer may have been killed"):
        ids(path)
    path.write_bytes(line("a") + line("b")[:-1])
    assert ids(path) == ["a", "b"]


def test_compressed_data_that_end_early_are_damage(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(line("a")) + gzip.compress(line("b"))[:-12])
    with pytest.raises(ValueError, match="a.jsonl.gz, line 2: the rest of the file must be gzip data"):
        ids(path)
    messages = []
    assert ids(path, on_error="skip", report=messages.append) == ["a"]
    assert messages[1] == f"{path}: 1 trajectories read, 1 lines skipped."


def test_files_without_trajectories_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    for content, found in ((b"", "an empty file"), (b"\n \n", "an empty file"), (b"x\ny\n", "2 damaged lines")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"`path` must hold at least one trajectory, got {found}"):
            ids(path, on_error="skip", report=lambda message: None)
    with pytest.raises(FileNotFoundError):
        read_trajectories(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match='`on_error` must be "raise" or "skip", got "?\'?ignore'):
        read_trajectories(path, on_error="ignore")


def test_lines_are_numbered(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a") + b"\nx\n" + line("b"))
    found = list(read_lines(path, lambda trajectory: trajectory.id, on_error="skip", report=lambda message: None))
    assert [(item.number, item.value) for item in found] == [(1, "a"), (4, "b")]


def episodes(tokenizer):
    """Two episodes: one of two turns with thoughts, one of one turn without, at fixed places of padding."""
    marks, letters = tokenizer.marks, lambda text: [ord(letter) for letter in text]
    o, t, a, e = (marks[name] for name in ("observation", "think", "act", "end"))
    # (tokens, sampled, thought) of the prompt, and of each turn.
    turn_0 = ([o, *letters("see"), t, *letters("hm"), a, *letters("go"), e], "00000111111", "00000111000")
    turn_1 = ([o, *letters("door"), t, a, *letters("up"), e], "0000001111", "0000001000")
    short = ([o, *letters("see"), a, *letters("no"), e], "00000111", "00000000")
    prompt = (letters("win"), "000", "000")
    rows = [[prompt, turn_0, turn_1], [prompt, short]]
    names = ("tokens", "token_mask", "action_mask", "thought_mask")
    arrays = {name: np.zeros((2, 4 + 2 * 12), np.int32) for name in names}
    for row, parts in enumerate(rows):
        for index, (tokens, sampled, thought) in enumerate(parts):
            place = slice((0, 4, 16)[index], (0, 4, 16)[index] + len(tokens))
            arrays["tokens"][row, place] = tokens
            arrays["token_mask"][row, place] = 1
            arrays["action_mask"][row, place] = [int(bit) for bit in sampled]
            arrays["thought_mask"][row, place] = [int(bit) for bit in thought]
    prompts = {f"prompt_{name.removeprefix('token_')}": arrays[name][:, :4] for name in names[:2]}
    arrays = {name: array[:, 4:].reshape(2, 2, 12) for name, array in arrays.items()}
    masks = {name: arrays[name].astype(bool) for name in names[1:]}
    log_prob = np.where(masks["action_mask"], np.float32(-0.1), np.float32(0))
    took_place = np.asarray([[True, True], [True, False]])
    return Episode(
        prompt_tokens=prompts["prompt_tokens"],
        prompt_mask=prompts["prompt_mask"].astype(bool),
        tokens=arrays["tokens"],
        **masks,
        position=np.zeros((2, 2, 12), np.int32),
        agent=np.zeros((2, 2, 12), np.int32),
        behavior_log_prob=log_prob,
        sampling_log_prob=log_prob,
        reward=np.asarray([[0.5, 1.0], [-1.0, 0.0]], np.float32),
        valid=took_place,
        action_valid=np.asarray([[True, True], [False, False]]),
        terminated=np.asarray([[False, True], [False, False]]),
        truncated=np.asarray([[False, False], [True, False]]),
        fingerprint=np.asarray([[2**32 - 1, 5], [6, 0]], np.uint32),
        success=np.asarray([True, False]),
        group=np.asarray([3, 4], np.int32),
        task={"goal": np.asarray([7, 8]), "map": np.asarray([[1, 0], [0, 1]])},
    )


def test_episodes_become_text(tokenizer):
    first, second = from_episodes(episodes(tokenizer), tokenizer, world="maze", level=2, metadata={"source": "test"})
    texts = [(turn.turn, turn.observation, turn.thought, turn.action, turn.reward) for turn in first.turns]
    assert texts == [(0, "see", "hm", "go", 0.5), (1, "door", "", "up", 1.0)]
    assert (first.id, first.world, first.level, first.prompt) == ("episode-0", "maze", 2, "win")
    assert (first.success, first.episode_return, first.task) == (True, 1.5, {"goal": 7, "map": [1, 0]})
    assert first.metadata == {"source": "test", "group": 3}
    assert [turn.terminated for turn in first.turns] == [False, True] and first.turns[0].fingerprint == 2**32 - 1
    assert first.turns[0].sampled == (False,) * 5 + (True,) * 6
    assert np.allclose(first.turns[0].behavior_log_prob, [0.0] * 5 + [-0.1] * 6)
    (turn,) = second.turns
    assert (turn.observation, turn.thought, turn.action, turn.reward) == ("see", None, "no", -1.0)
    assert (turn.valid, turn.terminated, turn.truncated) == (False, False, True)


def test_episodes_survive_the_file_and_the_tokenizer(tmp_path, tokenizer):
    episode, path = episodes(tokenizer), tmp_path / "a.jsonl.gz"
    made = from_episodes(episode, tokenizer)
    write_trajectories(path, made)
    assert list(read_trajectories(path)) == made
    for row, trajectory in enumerate(read_trajectories(path)):
        (sequence,) = encode(trajectory, tokenizer)
        mask, prompt = episode.token_mask[row], episode.prompt_tokens[row][episode.prompt_mask[row]]
        np.testing.assert_array_equal(sequence[0], [*prompt, *episode.tokens[row][mask]])
        # The loss is on what the policy sampled.
        np.testing.assert_array_equal(sequence[1], [*(0 * prompt), *episode.action_mask[row][mask]])


def test_agents_of_an_episode_have_turns_of_their_own(tokenizer):
    episode = episodes(tokenizer)
    agent = episode.agent + np.arange(2)[None, :, None]
    first, _ = from_episodes(dataclasses.replace(episode, agent=agent), tokenizer, agents=("a", "b"))
    assert [(turn.agent, turn.action) for turn in first.turns] == [(0, "go"), (1, "up")]
    # Turns that did not take place are left out, and episodes without any.
    never = dataclasses.replace(episode, valid=np.asarray([[False, True], [False, False]]))
    (only,) = from_episodes(never, tokenizer)
    assert only.id == "episode-0" and [turn.turn for turn in only.turns] == [1]


def test_conversations_of_hugging_face_are_read_as_they_are(tmp_path):
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2"}]
    chat += [{"role": "assistant", "content": "4"}]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": chat, "source": "me"}) + "\n" + json.dumps({"messages": chat[:2]}) + "\n")
    (trajectory,) = read_trajectories(path, on_error="skip", report=lambda message: None)
    assert (trajectory.prompt, trajectory.metadata) == ("be brief", {"source": "me"})
    assert [(turn.observation, turn.action) for turn in trajectory.turns] == [("2 + 2", "4")]
    with pytest.raises(ValueError, match="chat.jsonl, line 2: `messages` must end with what the assistant did"):
        list(read_trajectories(path))


def test_rows_with_prompts_are_read_as_they_are(tmp_path):
    """Of texts and of messages, with a label, and with a chosen and a rejected answer."""
    user, good = {"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}
    rows = [
        {"prompt": "2 + 2", "completion": "4", "label": True, "source": "me"},
        {"prompt": [user], "completion": [good]},
        {"prompt": "2 + 2", "chosen": "4", "rejected": "5", "id": "sum"},
        {"chosen": [user, good], "rejected": [user, good | {"content": "5"}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(read_trajectories(path))
    turns = [(one.turns[0].observation, one.turns[0].action) for one in found]
    assert turns == [("2 + 2", "4")] * 2 + [("2 + 2", "4"), ("2 + 2", "5")] * 2
    assert [one.success for one in found] == [True, None, True, False, True, False]
    assert found[0].metadata == {"source": "me"} and [one.id for one in found[2:4]] == ["sum-chosen", "sum-rejected"]
    pairs = [one.metadata["pair"] for one in found[2:]]
    assert pairs[:2] == ["sum"] * 2 and pairs[2] == pairs[3] != "sum"
    with pytest.raises(ValueError, match="line 3: the line must be one conversation, .* try collector=preferences"):
        list(read_lines(path, lambda trajectory: trajectory))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "completion": 4}, "`completion` must be a text or a list of messages, got 4"),
        ({"prompt": "a", "chosen": "b"}, "got prompt, chosen"),
        ({"completion": "b"}, "got completion"),
        ({"question": "a", "chosen": "b", "rejected": "c"}, "got question, chosen, rejected"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "`label` must be true or false, got 'good'"),
        ({"prompt": "a", "completion": "b", "success": 1}, "`success` must be true or false, got 1"),
        ({"messages": [{"from": "human", "value": "a"}]}, "must have a `role` and a `content`, got from, value"),
    ],
)
def test_rows_of_other_fields_are_refused(tmp_path, row, message):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=message):
        list(read_trajectories(tmp_path / "rows.jsonl"))

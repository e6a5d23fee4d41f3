"""Pairs of transcripts from files."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.preferences import make_label_collector, make_preference_collector
from jaxagents.data.trajectories import from_episodes, write_trajectories
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.tokenizers import byte_level
from jaxagents.learners.preference import make_preference
from jaxagents.losses.preference import kto, simpo
from jaxagents.ops.pairs import success_against_failure
from jaxagents.types import ChatTemplate, ChatTokens

KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def written(lake, speak, params_of):
    """Returns a policy, parameters, and six trajectories in three pairs: by success, by return, and by both."""
    policy = speak(lake, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.3))(KEY, jnp.arange(6))
    rows = from_episodes(jax.device_get(episode), policy.tokenizer, world="lake")
    success = [False, True, None, None, True, False]
    returns = [5.0, 0.0, 1.0, 2.0, 1.0, 2.0]
    rows = [
        replace(row, success=good, episode_return=value, metadata={"pair": index // 2})
        for index, (row, good, value) in enumerate(zip(rows, success, returns))
    ]
    return policy, params_of(policy), rows


def make(lake, policy, rows, path, **options):
    write_trajectories(path, rows)
    return make_preference_collector(lake, policy, **{"paths": str(path), "num_pairs": 16, "row_length": 512} | options)


@pytest.mark.exhaustive
def test_the_preferred_transcript_comes_first(written, lake, tmp_path):
    policy, params, rows = written
    collector = make(lake, policy, rows, tmp_path / "pairs.jsonl")
    _, episode, _ = collector.collect(collector.init(KEY, params), params, KEY)
    np.testing.assert_array_equal(episode.success, [True, False] * 16)
    np.testing.assert_array_equal(episode.group, np.repeat(np.arange(16), 2))
    np.testing.assert_array_equal(success_against_failure(episode).pair[1::2], np.arange(0, 32, 2))
    acted = [tuple(tokens[mask].tolist()) for tokens, mask in zip(np.asarray(episode.tokens), episode.token_mask)]
    alone = make(lake, policy, rows[:2], tmp_path / "first.jsonl")
    _, first, _ = alone.collect(alone.init(KEY, params), params, KEY)
    preferred, other = (tuple(first.tokens[row][first.token_mask[row]].tolist()) for row in (0, 1))
    assert preferred != other and (preferred, other) in set(zip(acted[::2], acted[1::2]))
    assert (other, preferred) not in set(zip(acted[::2], acted[1::2]))
    assert len(set(zip(acted[::2], acted[1::2]))) == 3


@pytest.mark.exhaustive
def test_pairs_of_files_are_learned(written, lake, tmp_path):
    policy, params, rows = written
    collector = make(lake, policy, rows, tmp_path / "pairs.jsonl", num_pairs=3, row_length=192)
    _, episode, _ = collector.collect(collector.init(KEY, params), params, KEY)
    learner = make_preference(
        policy.model,
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.01)),
        loss=simpo,
        pairs=success_against_failure,
        reference=False,
    )
    state, update = learner.init(KEY, params), jax.jit(learner.update)
    losses = []
    for _ in range(3):
        state, metrics = update(state, KEY, episode)
        losses.append(float(metrics["loss"]))
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:3], "`pair` '1' must be of two trajectories, got 1"),
        (lambda rows: [replace(rows[0], metadata={})], "`pair` must be given"),
        (
            lambda rows: [replace(row, success=None, episode_return=1.0) for row in rows],
            "`pair` '0' must say which of the two is preferred",
        ),
    ],
)
def test_what_is_no_pair_is_refused(written, lake, tmp_path, change, message):
    policy, _, rows = written
    with pytest.raises(ValueError, match=message):
        make(lake, policy, change(rows), tmp_path / "pairs.jsonl")


@pytest.fixture
def actor(lake, speak):
    return speak(lake, tokenizer=byte_level, prompt=False)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_chosen_and_rejected_answers_are_pairs(lake, actor, tmp_path):
    row = {"prompt": "2 + 2", "chosen": "4", "rejected": "five"}
    paths = write(tmp_path / "rows.jsonl", [row, row, {"prompt": "1", "chosen": "a", "rejected": "b"}])
    collector = make_preference_collector(lake, actor, paths=paths, num_pairs=8, row_length=24)
    _, episode, _ = collector.collect(collector.init(KEY, {}), {}, KEY)
    answers = [actor.tokenizer.decode(row[mask]) for row, mask in zip(*map(np.asarray, acted(episode)))]
    assert set(zip(answers[::2], answers[1::2])) == {("4", "five"), ("a", "b")}


def test_pairs_and_labels_are_written_in_the_chat_format_of_the_policy(actor, tmp_path):
    read, shown = actor.tokenizer.encode, {"user": "U:{}", "assistant": "A:{}$"}

    def write_chat(messages, tools=()):
        parts = [read(shown[one["role"]].format(one["content"])) for one in messages]
        owner = [index if one["role"] == "assistant" else -1 for index, one in enumerate(messages)]
        message = [index for index, part in zip(owner, parts) for _ in part]
        return ChatTokens(sum(parts, []), message, [False] * len(message), 0)

    chat = ChatTemplate(write_chat, None, read("$")[0], (read("$")[0],))
    player = SimpleNamespace(tokenizer=actor.tokenizer, lexicon=SimpleNamespace(chat=chat))
    pair = {"prompt": "2 + 2", "chosen": "4", "rejected": "five"}
    labels = [{"prompt": "2 + 2", "completion": acted, "label": good} for acted, good in (("4", True), ("five", False))]
    for make_collector, rows, number in (
        (make_preference_collector, [pair], {"num_pairs": 4}),
        (make_label_collector, labels, {"num_rows": 16}),
    ):
        path = write(tmp_path / "rows.jsonl", rows)
        collector = make_collector(None, player, paths=path, row_length=24, **number)
        _, episode, _ = collector.collect(collector.init(KEY, {}), {}, KEY)
        tokens, masks = (
            np.asarray(leaf).reshape(len(episode.success), -1) for leaf in (episode.tokens, episode.token_mask)
        )
        texts = {actor.tokenizer.decode(row[mask]) for row, mask in zip(tokens, masks)}
        assert texts == {"U:2 + 2A:4$", "U:2 + 2A:five$"}


@pytest.mark.parametrize("make", [make_preference_collector, make_label_collector])
def test_a_row_that_is_too_long_is_named_with_the_setting_that_holds_it(lake, actor, tmp_path, make):
    pairs = make is make_preference_collector
    rows = [{"prompt": "2 + 2", "chosen": "4", "rejected": text} for text in ("5", 60 * "six")]
    if not pairs:
        rows = [{"prompt": "2 + 2", "completion": row["rejected"], "label": row["rejected"] == "5"} for row in rows]
    path = write(tmp_path / "rows.jsonl", rows)
    message = (
        r"`collector.row_length` must hold every transcript, got 24 for the 188 tokens of .*rows.jsonl, line 2; "
        "try collector.row_length=188, or leave that line out"
    )
    with pytest.raises(ValueError, match=message):
        make(lake, actor, paths=path, row_length=24, **{"num_pairs" if pairs else "num_rows": 2})
    make(lake, actor, paths=path, row_length=188, **{"num_pairs" if pairs else "num_rows": 2})


def acted(episode):
    """Tokens and masks of what is said, without its end."""
    return episode.tokens[:, 0, :-1], episode.action_mask[:, 0, :-1] & episode.action_mask[:, 0, 1:]


def test_labelled_rows_need_no_pair(lake, actor, tmp_path):
    rows = [{"prompt": "2 + 2", "completion": text, "label": text == "4"} for text in ("4", "5", "6")]
    paths = write(tmp_path / "rows.jsonl", rows)
    collector = make_label_collector(lake, actor, paths=paths, num_rows=48, row_length=24)
    _, episode, _ = collector.collect(collector.init(KEY, {}), {}, KEY)
    answers = [actor.tokenizer.decode(row[mask]) for row, mask in zip(*map(np.asarray, acted(episode)))]
    assert set(answers) == {"4", "5", "6"}
    np.testing.assert_array_equal(episode.success, [text == "4" for text in answers])
    found = success_against_failure(episode)
    np.testing.assert_array_equal(found.pair, [-1] * 48)
    zeros = jnp.zeros(48)
    loss, counted = kto(zeros, zeros, jnp.ones(48), found.pair, found.desirable)
    assert bool(counted.all()) and np.allclose(loss, 0.5)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([True, None], "`label` must be true or false in every line, got none"),
        ([True, True], "got True in all of them"),
    ],
)
def test_labels_that_say_nothing_are_refused(lake, actor, tmp_path, labels, message):
    rows = [{"prompt": "2 + 2", "completion": str(i), "label": label} for i, label in enumerate(labels)]
    with pytest.raises(ValueError, match=message):
        make_label_collector(lake, actor, paths=write(tmp_path / "a.jsonl", rows), num_rows=2, row_length=24)


def test_pairs_that_are_too_long_are_left_out_where_asked(lake, actor, tmp_path):
    rows = [{"prompt": "2 + 2", "chosen": "4", "rejected": "five" * 9}, {"prompt": "1", "chosen": "a", "rejected": "b"}]
    paths, reports = write(tmp_path / "rows.jsonl", rows), []
    make = partial(make_preference_collector, lake, actor, paths=paths, num_pairs=4)
    collector = make(row_length=24, on_error="skip", report=reports.append)
    _, episode, _ = collector.collect(collector.init(KEY, {}), {}, KEY)
    answers = {actor.tokenizer.decode(row[mask]) for row, mask in zip(*map(np.asarray, acted(episode)))}
    assert answers == {"a", "b"}
    assert reports == ["1 of 2 are longer than collector.row_length=24: skipped."]
    with pytest.raises(ValueError, match="`collector.row_length` must hold every transcript, got 2 for the"):
        make(row_length=2, on_error="skip", report=reports.append)
    labels = [
        {"prompt": "1", "completion": text, "label": good}
        for text, good in (("a", True), ("b" * 30, True), ("c", False))
    ]
    label_paths = write(tmp_path / "labels.jsonl", labels)
    collector = make_label_collector(
        *(lake, actor), paths=label_paths, num_rows=16, row_length=24, on_error="skip", report=reports.append
    )
    _, episode, _ = collector.collect(collector.init(KEY, {}), {}, KEY)
    result = {actor.tokenizer.decode(row[mask]) for row, mask in zip(*map(np.asarray, acted(episode)))}
    assert result == {"a", "c"}

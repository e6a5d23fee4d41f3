"""Packed transcripts as batches of a compiled supervised learner."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.packing import TokenSequence, pack
from jaxagents.data.preferences import make_preference_collector
from jaxagents.data.trajectories import from_episodes, read_trajectories, write_trajectories
from jaxagents.data.transcripts import make_transcript_collector, packed_episodes
from jaxagents.environments.text import arithmetic
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.supervised import make_supervised

KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def shown(lake, speak, params_of, tmp_path_factory):
    """Returns a policy that sees its whole past, parameters, demonstrations, and the file that they are written to."""
    policy = speak(lake, prompt=False)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.3))(KEY, jnp.arange(6))
    path = tmp_path_factory.mktemp("data") / "lake.jsonl"
    write_trajectories(path, from_episodes(jax.device_get(episode), policy.tokenizer, world="lake"))
    return policy, params_of(policy), episode, path


def losses(policy, params, episode, **options):
    learner = make_supervised(policy.model, optax.sgd(0.0), **options)
    return jax.jit(learner.update)(learner.init(KEY, params), KEY, episode)[1]


@pytest.mark.slow
def test_files_teach_what_the_demonstrations_teach(shown, lake):
    policy, params, episode, path = shown
    longest = int((episode.token_mask.sum(axis=(1, 2)) + episode.prompt_mask.sum(axis=1)).max())
    collector = make_transcript_collector(lake, policy, paths=str(path), num_rows=64, row_length=4 * longest)
    _, packed, _ = collector.collect(collector.init(KEY, params), params, KEY)
    # Every row that there is, once.
    rows = np.unique(np.asarray(packed.tokens), axis=0, return_index=True)[1]
    assert len(rows) < 6 and int(packed.agent.max()) > 0
    taken = jax.tree.map(lambda leaf: leaf[rows], packed.replace(layout=None)).replace(layout=packed.layout)
    assert int(taken.action_mask.sum()) == int(episode.action_mask.sum())
    ours, theirs = losses(policy, params, taken), losses(policy, params, episode)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
    np.testing.assert_allclose(ours["entropy"].value, theirs["entropy"].value, rtol=1e-4)


@pytest.mark.exhaustive
def test_weights_of_the_file_count(shown, lake):
    policy, params, _, path = shown
    collector = make_transcript_collector(lake, policy, paths=str(path), num_rows=4, row_length=512)
    _, packed, _ = collector.collect(collector.init(KEY, params), params, KEY)
    halved = packed.replace(loss_weight=0.5 * packed.loss_weight)
    np.testing.assert_allclose(
        losses(policy, params, halved)["loss"], 0.5 * losses(policy, params, packed)["loss"], rtol=1e-5
    )


@pytest.fixture(scope="module")
def thinking(speak, params_of, tmp_path_factory):
    """Returns sums that are thought about, half of them said to have failed, and the file that they are written to."""
    world = arithmetic.make_environment((1,), (2,))
    policy = speak(world, prompt=False, thought_tokens=8)
    episode = jax.jit(make_demonstrations(world, policy))(KEY, jnp.arange(6))
    episode = episode.replace(success=jnp.arange(6) % 2 == 0)
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    write_trajectories(path, from_episodes(jax.device_get(episode), policy.tokenizer))
    collector = make_transcript_collector(world, policy, paths=str(path), num_rows=64, row_length=64)
    _, packed, _ = collector.collect(collector.init(KEY, None), None, KEY)
    rows = np.unique(np.asarray(packed.tokens), axis=0, return_index=True)[1]
    taken = jax.tree.map(lambda leaf: leaf[rows], packed.replace(layout=None)).replace(layout=packed.layout)
    return policy, params_of(policy), episode, taken


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{"only_success": True}, {"thought_weight": 0.0}, {"action_weight": 0.25}])
def test_options_of_the_learner_count_for_files_as_for_demonstrations(thinking, options):
    policy, params, episode, taken = thinking
    ours, theirs = (losses(policy, params, batch, **options)["loss"] for batch in (taken, episode))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert abs(ours - losses(policy, params, taken)["loss"]) > 1e-3


@pytest.mark.parametrize(
    ("success", "message"),
    [
        ([True, None, False], "1 of 3 sequences do not say whether they succeeded"),
        ([None, None], None),
        ([True, False], None),
    ],
)
def test_transcripts_that_do_not_say_whether_they_succeeded_are_reported(shown, lake, tmp_path, success, message):
    policy, _, _, path = shown
    written = list(read_trajectories(path))[: len(success)]
    write_trajectories(tmp_path / "a.jsonl", [replace(t, success=s) for t, s in zip(written, success, strict=True)])
    messages = []
    options = {"paths": str(tmp_path / "a.jsonl"), "num_rows": 4, "row_length": 512, "report": messages.append}
    make_transcript_collector(lake, policy, **options)
    if True not in success:
        with pytest.raises(ValueError, match='`paths` must hold transcripts with "success": true for learner.only'):
            make_transcript_collector(lake, policy, **options, only_success=True)
        messages = messages[:1] if message else []
    assert [text.startswith(message) for text in messages] == [True] * (message is not None)


def test_words_that_the_policy_does_not_know_are_damage_of_a_line(shown, lake, tmp_path):
    policy, _, _, path = shown
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"action":"', '"action":"swim ', 1)
    other = tmp_path / "lake.jsonl"
    other.write_text("".join(lines))
    options, messages = {"paths": str(other), "num_rows": 4, "row_length": 512}, []
    with pytest.raises(ValueError, match="lake.jsonl, line 2: .*swim"):
        make_transcript_collector(lake, policy, **options)
    make_transcript_collector(lake, policy, on_error="skip", report=messages.append, **options)
    assert "lake.jsonl, line 2:" in messages[0] and "5 trajectories read, 1 lines skipped" in messages[1]


def test_rows_that_are_too_short_are_refused(shown, lake):
    policy, _, _, path = shown
    with pytest.raises(ValueError, match="row_length"):
        make_transcript_collector(lake, policy, paths=str(path), num_rows=4, row_length=8)
    with pytest.raises(ValueError, match="`num_rows` must be at least 1, got 0"):
        make_transcript_collector(lake, policy, paths=str(path), num_rows=0, row_length=512)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (make_transcript_collector, {"num_rows": 1, "row_length": 8}),
        (make_preference_collector, {"num_pairs": 1, "row_length": 8}),
    ],
)
def test_a_file_that_is_not_there_is_named_with_its_setting(tmp_path, make, sizes):
    path = tmp_path / "nothere.jsonl"
    with pytest.raises(
        ValueError, match="`collector.paths` must be files of JSON lines, got .*nothere.jsonl: there is"
    ):
        make(None, None, paths=[str(path)], **sizes)


@pytest.mark.exhaustive
def test_a_transcript_teaches_the_same_behind_any_other_one(lake, speak, params_of):
    """With weights for what is read, too: the first token of a document is not learned from the document before."""
    policy = speak(lake, prompt=False)

    def gradient(before):
        packed = pack([TokenSequence(before, [0.0] * 4), TokenSequence([5, 6, 7], [1.0] * 3)], 8, pad=0)
        episode = packed_episodes(jax.tree.map(jnp.asarray, packed))
        learner = make_supervised(policy.model, optax.sgd(1.0))
        return jax.jit(learner.update)(learner.init(KEY, params_of(policy)), KEY, episode)[0].params

    for ours, theirs in zip(*map(jax.tree.leaves, (gradient([5, 6, 7, 8]), gradient([9, 8, 7, 6]))), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)

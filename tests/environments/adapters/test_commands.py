"""Games of text with commands: what an agent reads, and one smoke run in every simulator that is there."""

import shutil
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters.commands import CommandGame, Scene, Sizes, encode_words, make_command_environment
from jaxagents.networks.command_scorer import CommandScorer
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from tests import ROOT

pytest.importorskip("gymnasium", reason="gymnasium comes with the extra `host`")
SIZES = Sizes(vocab_size=100, text_words=4, num_commands=3, command_words=2)


def make_doors():
    """A game with two doors: the red one is right."""
    moves = []

    def start(seed):
        return Scene(f"room {seed % 1}", ["open red door", "open blue door"])

    def send(command):
        moves.append(command)
        return Scene("done", [], 1.0 if "red" in command else 0.0, over=True, success="red" in command)

    return CommandGame(start=start, send=send, close=lambda: None)


def test_words_are_checksums():
    ids = encode_words("Open the  door, now!", vocab_size=100, length=3)
    assert ids.tolist() == [zlib.crc32(word) % 99 + 1 for word in (b"open", b"the", b"door")]
    assert encode_words("", vocab_size=100, length=2).tolist() == [0, 0]


def test_a_game_by_hand():
    environment = make_command_environment("doors", make_doors, sizes=SIZES, max_steps=5, processes=False)
    assert environment.action_space.num_values == environment.num_actions == 3
    batch = environment.make_batch(2)
    first = batch.reset(np.array([1, 2]))
    assert first.action_mask.tolist() == [[True, True, False]] * 2
    blue = encode_words("open blue", vocab_size=100, length=2)
    np.testing.assert_array_equal(first.observation["commands"][0, 0], blue)  # In the order of the alphabet.
    steps = batch.step(np.array([1, 0]))
    assert steps.reward.tolist() == [1.0, 0.0] and steps.terminated.tolist() == [True, True]
    assert steps.success.tolist() == [True, False]
    assert steps.next_action_mask.tolist() == [[True, False, False]] * 2  # Nothing is offered any more but to wait.
    np.testing.assert_array_equal(steps.observation["text"], first.observation["text"])  # The next episode.
    done = encode_words("done", vocab_size=100, length=4)
    np.testing.assert_array_equal(steps.next_observation["text"], np.stack([done, done]))
    batch.close()


def test_scores_follow_their_commands():
    scorer, text = CommandScorer(vocab_size=10, features=4), jnp.array([1, 2, 0])
    commands = jnp.array([[3, 4], [5, 0], [0, 0]])
    params = scorer.init(jax.random.key(0), {"text": text, "commands": commands})
    scores = scorer.apply(params, {"text": text, "commands": commands})
    turned = scorer.apply(params, {"text": text[::-1], "commands": commands[::-1, ::-1]})  # Bags have no order.
    np.testing.assert_allclose(turned, scores[::-1], rtol=1e-5, atol=1e-6)
    assert scores.shape == (3,) and len(set(scores.tolist())) == 3


def smoke(world, tmp_path):
    overrides = (f"world={world}", "algorithm=ppo", "quick=true", "environment.max_steps=5")
    result = run(compose(ROOT / "configs", *overrides), tmp_path / "run")
    assert result["steps"] == 8 and np.isfinite(result["evaluation"]["episode_return"])
    assert 1.0 <= result["evaluation"]["episode_length"] <= 5.0


@pytest.mark.slow
def test_textworld(tmp_path):
    pytest.importorskip("textworld", reason="TextWorld comes with the extra `host`")
    smoke("textworld", tmp_path)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("java") is None, reason="ScienceWorld needs Java")
def test_scienceworld(tmp_path):
    pytest.importorskip("scienceworld", reason="ScienceWorld comes with the extra `host`")
    smoke("scienceworld", tmp_path)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("chromedriver") is None, reason="MiniWoB++ needs Chromium and its driver")
def test_miniwob(tmp_path):
    pytest.importorskip("miniwob", reason="MiniWoB++ comes with the extra `host`")
    smoke("miniwob", tmp_path)


def test_missing_programs_are_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.delenv("MINIWOB_CHROMEDRIVER", raising=False)
    monkeypatch.delenv("MINIWOB_CHROME_BINARY", raising=False)
    pytest.importorskip("scienceworld", reason="ScienceWorld comes with the extra `host`")
    from jaxagents.environments.adapters import miniwob, scienceworld

    with pytest.raises(FileNotFoundError, match="`java` must be installed"):
        scienceworld.make_environment("find-living-thing")
    pytest.importorskip("miniwob", reason="MiniWoB++ comes with the extra `host`")
    with pytest.raises(FileNotFoundError, match="apt-get install chromium chromium-driver"):
        miniwob.make_environment("click-test-2")

"""Debate: who wins and who moves by hand, and a small debate from end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.studies import debate

SMALL = {"num_shown": 2, "num_candidates": 5, "num_images": 8, "num_train": 40, "num_steps": 30}


def stripes():
    """Returns images of ten labels, which a pixel of the row of the label gives away."""
    labels = np.arange(60, dtype=np.int32) % 10
    images = np.zeros((60, 8, 8), np.float32)
    rng = np.random.default_rng(0)
    for image, label in zip(images, labels):
        image[label % 8, :] = 0.5 + 0.5 * (label >= 8)
        image[rng.integers(8), :4] = 0.25
    return images.reshape(60, 64), labels


def test_pixels_are_drawn_among_those_that_are_not_zero():
    image = jnp.zeros((3, 64)).at[:, jnp.array([5, 9, 60])].set(0.5)
    pixels = debate.draw_pixels(jax.random.key(0), image, 3)
    np.testing.assert_array_equal(jnp.sort(pixels), [[5, 9, 60]] * 3)


def test_outcomes_by_hand():
    logits = jnp.array([[2.0, 1.0, 3.0], [2.0, 2.0, 0.0]])
    padded = jnp.pad(logits, ((0, 0), (0, 7)), constant_values=-9.0)
    wins = debate.outcomes(padded, jnp.int32(0), precommit=True)
    np.testing.assert_allclose(wins[:, :4], [[0.5, 1.0, 0.0, 1.0], [0.5, 0.5, 1.0, 1.0]])
    # Without labels announced, the liar takes 2 of the first and 1 of the second.
    np.testing.assert_allclose(debate.outcomes(padded, jnp.int32(0), precommit=False), [[0.0] * 10, [0.5] * 10])


@pytest.mark.parametrize(
    ("players", "expected"),
    [
        (("optimal", "optimal", 0), ("max", "min", "max")),
        (("optimal", "optimal", 1), ("min", "max", "min")),
        (("random", "optimal", 0), ("mean", "min", "mean")),
        (("absent", "optimal", 0), ("min", "min", "min")),
        (("optimal", "absent", 1), ("max", "max", "max")),
    ],
)
def test_turns(players, expected):
    assert debate.turns(*players, 3) == expected


@pytest.mark.exhaustive
def test_better_players_win_more_often(monkeypatch):
    monkeypatch.setattr(debate, "load_digits", stripes)
    honest, both, last, liar = (
        debate.run(0, **settings, **SMALL)
        for settings in ({"liar": "absent"}, {}, {"order": "honest_last"}, {"honest": "absent"})
    )
    assert honest["accuracy"] > both["accuracy"] > liar["accuracy"]
    assert last["accuracy"] >= both["accuracy"] and both["margin"] == pytest.approx(2 * both["accuracy"] - 1)
    assert both["accuracy_best_lie"] <= both["accuracy"]
    # The same judge sees the same random pixels, whoever plays; it is what random players and ten labels come to.
    assert honest["judge_accuracy"] == liar["judge_accuracy"]
    judged = debate.run(0, honest="random", liar="random", precommit=False, **SMALL)
    assert judged["accuracy"] == pytest.approx(judged["judge_accuracy"], abs=1e-3)


def test_the_digits_of_scikit_learn():
    pytest.importorskip("sklearn")
    images, labels = debate.load_digits()
    assert images.shape == (1797, 64) and images.max() == 1.0 and set(labels) == set(range(10))
    assert (images > 0).sum(axis=1).min() == 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "liar"}, "`order` must be one of both, honest_first, honest_last, got 'liar'."),
        ({"honest": "absent", "liar": "absent"}, "`honest` and `liar` must be of optimal, random, absent, and one"),
        ({"liar": "clever"}, "got 'optimal' and 'clever'"),
        ({"num_train": 60}, "together at most 60, got 60 and 8"),
    ],
)
def test_refused(settings, message, monkeypatch):
    monkeypatch.setattr(debate, "load_digits", stripes)
    with pytest.raises(ValueError, match=message):
        debate.run(0, **SMALL | settings)

"""Scores and archives of levels, against JaxUED and against numbers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.levels import (
    LevelView,
    add_levels,
    draw_levels,
    init_archive,
    learnability,
    level_weights,
    max_monte_carlo,
    positive_value_loss,
    update_levels,
    worth_training,
)

NUMBERS = {"temperature": 0.5, "staleness": 0.25}
GENERATOR = np.random.default_rng(0)
ENDED = GENERATOR.random((12, 5)) < 0.3
ENDED[:, 4] = False  # No episode of the last level ends.
VIEW = LevelView(
    ended=jnp.asarray(ENDED),
    advantage=jnp.asarray(GENERATOR.normal(size=(12, 5)), jnp.float32),
    value=jnp.asarray(GENERATOR.normal(size=(12, 5)), jnp.float32),
    success=jnp.asarray(GENERATOR.random((12, 5)) < 0.5, jnp.float32),
    max_return=jnp.arange(5.0),
)


@pytest.fixture
def old_jax(monkeypatch):
    """Gives jax the name back that the released JaxUED calls."""
    monkeypatch.setattr(jax, "tree_map", jax.tree.map, raising=False)


@pytest.mark.usefixtures("old_jax")
def test_scores_are_those_of_jaxued():
    utils = pytest.importorskip("jaxued.utils", reason="needs jaxued (extra `test`)")
    np.testing.assert_allclose(
        positive_value_loss(VIEW), utils.positive_value_loss(VIEW.ended, VIEW.advantage), rtol=1e-5
    )
    expected = utils.max_mc(VIEW.ended, VIEW.value, VIEW.max_return)
    np.testing.assert_allclose(max_monte_carlo(VIEW), expected, rtol=1e-5)


def test_scores_are_means_over_whole_episodes():
    """Two episodes of two and one steps, and a cut one that does not count."""

    def column(*values):
        return jnp.array(values)[:, None]

    view = LevelView(
        ended=column(False, True, True, False),
        advantage=column(1.0, -3.0, 2.0, 100.0),
        value=column(0.5, 0.0, 1.0, 7.0),
        success=column(0.0, 1.0, 0.0, 1.0),
        max_return=jnp.array([1.0]),
    )
    np.testing.assert_allclose(positive_value_loss(view), [(0.5 + 2.0) / 2])
    np.testing.assert_allclose(max_monte_carlo(view), [(0.75 + 0.0) / 2])
    np.testing.assert_allclose(learnability(view), [0.25])
    nothing = view.replace(ended=jnp.zeros((4, 1), bool))
    assert all(float(score(nothing)[0]) == -np.inf for score in (positive_value_loss, max_monte_carlo, learnability))


def filled(scores, played, count):
    archive = init_archive({"seed": jnp.int32(0)}, len(scores))
    scores, played = jnp.asarray(scores, jnp.float32), jnp.asarray(played, jnp.int32)
    return archive.replace(score=scores, played=played, count=jnp.int32(count))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("old_jax")
def test_weights_are_those_of_jaxued():
    sampler = pytest.importorskip("jaxued.level_sampler", reason="needs jaxued (extra `test`)").LevelSampler(
        5, staleness_coeff=0.25, prioritization_params={"temperature": 0.5}
    )
    for scores, played, count in (
        ([0.3, -1.0, 2.0, -np.inf, -np.inf], [4, 1, 2, 0, 0], 6),
        ([0.3, -1.0, 2.0, 0.0, 9.0], [7, 7, 7, 7, 7], 7),
    ):
        theirs = sampler.initialize(jnp.int32(0)) | {
            "scores": jnp.array(scores),
            "timestamps": jnp.array(played),
            "size": int(np.isfinite(scores).sum()),
            "episode_count": count,
        }
        weights = level_weights(filled(scores, played, count), **NUMBERS)
        np.testing.assert_allclose(weights, sampler.level_weights(theirs), rtol=1e-5)
        assert float(weights.sum()) == pytest.approx(1.0)


def test_levels_take_free_places_then_those_of_least_weight():
    archive = init_archive({"seed": jnp.int32(0)}, 3)
    add = jax.jit(lambda archive, *new: add_levels(archive, *new, **NUMBERS))
    levels, scores = {"seed": jnp.array([7, 8, 9])}, jnp.array([2.0, -jnp.inf, 1.0])
    archive = add(archive, levels, scores, jnp.array([5.0, 0.0, 6.0]))
    np.testing.assert_array_equal(archive.levels["seed"], [7, 9, 0])
    np.testing.assert_array_equal(archive.score, [2.0, 1.0, -np.inf])
    assert int(archive.count) == 3  # One was rejected.
    archive = add(archive, {"seed": jnp.array([10, 11, 12])}, jnp.array([3.0, 0.5, 4.0]), jnp.zeros(3))
    # 10 fills the archive; 11 is no better than 9, whose weight is least, and 12 is.
    np.testing.assert_array_equal(archive.levels["seed"], [7, 12, 10])
    np.testing.assert_array_equal(archive.score, [2.0, 4.0, 3.0])


@pytest.mark.slow
@pytest.mark.usefixtures("old_jax")
@pytest.mark.parametrize("duplicate_check", [False, True])
def test_levels_are_added_rejected_and_found_again_as_in_jaxued(duplicate_check):
    """Of 40 levels of 8 kinds, most are worse than what is there: with each of them, all grow older."""
    sampler = pytest.importorskip("jaxued.level_sampler", reason="needs jaxued (extra `test`)").LevelSampler(
        5, staleness_coeff=0.25, prioritization_params={"temperature": 0.5}, duplicate_check=duplicate_check
    )
    generator = np.random.default_rng(1)
    kinds = jnp.asarray(generator.integers(8, size=40), jnp.int32)
    levels = {"walls": kinds[:, None] * jnp.ones((1, 3), jnp.int32), "goal": kinds}
    scores = jnp.asarray(generator.random(40) / (1 + np.arange(40)), jnp.float32)
    example = jax.tree.map(lambda leaf: leaf[0], levels)
    with jax.numpy_rank_promotion("allow"):
        theirs, _ = jax.jit(sampler.insert_batch)(sampler.initialize(example), levels, scores)
    add = jax.jit(
        lambda archive: add_levels(archive, levels, scores, scores, **NUMBERS, duplicate_check=duplicate_check)
    )
    archive = add(init_archive(example, 5))
    assert int(archive.count) == int(theirs["episode_count"]) == 40
    np.testing.assert_array_equal(archive.played, theirs["timestamps"])
    np.testing.assert_array_equal(archive.score, theirs["scores"])
    np.testing.assert_array_equal(archive.levels["walls"], theirs["levels"]["walls"])
    np.testing.assert_allclose(level_weights(archive, **NUMBERS), sampler.level_weights(theirs), rtol=1e-5)


def test_rejected_levels_make_the_others_older():
    """Sixteen levels of no worth: ages of 0 and 1 become 16 and 17, whose shares are all but equal."""
    archive = filled([2.0, 1.0], [1, 0], 1)
    archive = add_levels(archive, {"seed": jnp.arange(16)}, jnp.zeros(16), jnp.zeros(16), **NUMBERS)
    assert int(archive.count) == 17
    weights = level_weights(archive, temperature=1.0, staleness=1.0)
    np.testing.assert_allclose(weights, [16 / 33, 17 / 33], rtol=1e-6)


def test_a_level_that_comes_again_is_scored_in_its_place():
    archive = filled([3.0, 1.0, -jnp.inf], [1, 2, 0], 2).replace(
        levels={"seed": jnp.array([7, 8, 0])}, max_return=jnp.array([5.0, 1.0, -jnp.inf])
    )
    again = {"seed": jnp.array([7, 7, 0])}  # 0 is where no level is yet.
    found = add_levels(
        archive, again, jnp.array([2.0, -jnp.inf, 0.5]), jnp.array([4.0, 9.0, 6.0]), **NUMBERS, duplicate_check=True
    )
    np.testing.assert_array_equal(found.levels["seed"], [7, 8, 0])
    np.testing.assert_array_equal(found.score, [2.0, 1.0, 0.5])
    np.testing.assert_array_equal(found.played, [3, 2, 5])
    np.testing.assert_array_equal(found.max_return, [5.0, 1.0, 6.0])


def test_draws_follow_the_weights_and_levels_that_are_drawn_are_fresh():
    archive = filled([0.0, 5.0, -np.inf], [0, 0, 0], 10)
    drawn, place = jax.jit(lambda key: draw_levels(archive, key, 400, temperature=1.0, staleness=0.0))(
        jax.random.key(0)
    )
    assert set(np.asarray(place)) == {0, 1} and np.mean(np.asarray(place) == 1) == pytest.approx(2 / 3, abs=0.08)
    assert int(drawn.count) == 410 and int(drawn.played.max()) == 410
    _, stale = draw_levels(
        archive.replace(played=jnp.array([10, 0, 0])), jax.random.key(1), 1, temperature=1.0, staleness=1.0
    )
    assert int(stale[0]) == 1


def test_new_scores_replace_old_ones_and_returns_only_rise():
    archive = filled([1.0, 2.0], [0, 0], 4).replace(max_return=jnp.array([3.0, 3.0]))
    seen = update_levels(archive, jnp.array([0, 1]), jnp.array([0.5, -jnp.inf]), jnp.array([2.0, 4.0]))
    np.testing.assert_array_equal(seen.score, [0.5, 2.0])
    np.testing.assert_array_equal(seen.max_return, [3.0, 4.0])


def test_levels_worth_training_are_neither_solved_nor_hopeless_nor_won_without_skill():
    agent = jnp.asarray([0.9, 0.89, 0.1, 0.11, 0.5, 0.5, 0.2, jnp.nan, 0.5])
    control = jnp.asarray([0.0, 0.0, 0.0, 0.0, 0.5, 0.49, 0.5, 0.0, jnp.nan])
    found = worth_training(agent, control, solved=0.9, gain=0.1, control_solved=0.5)
    np.testing.assert_array_equal(found, [False, True, False, True, False, True, False, False, False])

"""Mixtures of transcripts: shares of sources, ratings, and transcripts of which everything is learned."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text import lists
from jaxagents.language.corpus import learn_everything, make_corpus_collector
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.interventions import Replay
from jaxagents.language.sources import make_source_collector, probabilities, rating
from jaxagents.learners.supervised import make_supervised
from jaxagents.policies.contexts import to_rows
from tests.fakes import score_tokens

KEY = jax.random.key(8)


@pytest.mark.parametrize(
    ("weights", "good", "expected"),
    [
        # Three of the first source, one of the second, two of the third; shares of 1/2, 1/3 and 1/6.
        ([3, 2, 1], [1, 1, 1, 1, 1, 1], [1 / 6, 1 / 6, 1 / 6, 1 / 3, 1 / 12, 1 / 12]),
        ([1, 1, 1], [1, 1, 1, 1, 1, 1], [1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 6, 1 / 6]),
        ([3, 1, 2], [1, 1, 1, 1, 1, 1], [1 / 6] * 6),  # Sizes: the set as it is.
        ([1, 1, 1], [0, 1, 0, 1, 1, 0], [0, 1 / 3, 0, 1 / 3, 1 / 3, 0]),
        ([1, 1, 1], [0, 0, 0, 1, 1, 0], [1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3, 0]),  # A source without a good one.
        ([1, 0, 1], [1, 1, 1, 1, 1, 1], [1 / 6, 1 / 6, 1 / 6, 0, 1 / 4, 1 / 4]),
    ],
)
def test_how_likely_transcripts_come(weights, good, expected):
    source = jnp.array([0, 0, 0, 1, 2, 2])
    got = probabilities(source, jnp.asarray(weights, jnp.float32), jnp.asarray(good, bool))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_sources_without_transcripts_leave_their_share_to_the_others():
    got = probabilities(jnp.array([0, 0, 2]), jnp.ones(3), jnp.ones(3, bool))
    np.testing.assert_allclose(got, [1 / 4, 1 / 4, 1 / 2], rtol=1e-6)


def test_ratings_by_hand():
    """No mistake, one of four, one in a last turn that succeeds all the same, one of two, a failure, and padding."""
    live = jnp.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]], bool)
    mistaken = jnp.array([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
    success = jnp.array([1, 1, 1, 1, 0], bool)
    played = Replay(actions=jnp.zeros((5, 4, 1), jnp.int32), live=live, mistaken=mistaken, success=success)
    np.testing.assert_allclose(rating(played), [5.0, 3.75, 5.0, 2.5, 0.0])


@pytest.fixture(scope="module")
def two():
    return lists.make_environment((4, 6), operations=("reverse",))


def collected(collector, times=8):
    state = collector.init(KEY, None)
    collect = jax.jit(lambda key: collector.collect(state, None, key)[1])
    return [collect(jax.random.fold_in(KEY, number)) for number in range(times)]


@pytest.mark.parametrize("weights, share", [pytest.param(None, 0.5, marks=pytest.mark.exhaustive), ([3.0, 1.0], 0.25)])
def test_sources_have_their_share_and_their_size(two, speak, weights, share):
    policy = speak(two)
    batches = collected(make_source_collector(two, policy, num_episodes=64, sizes=[12, 3], weights=weights))
    level = np.concatenate([batch.task["level"] for batch in batches])
    letters = np.concatenate([batch.task["letters"] for batch in batches])
    assert abs(level.mean() - share) < 4.0 * np.sqrt(0.25 / len(level))
    assert [len(np.unique(letters[level == one], axis=0)) for one in (0, 1)] == [12, 3]


def test_rated_transcripts_are_successes(two, speak):
    policy = speak(two)
    rated = make_source_collector(two, policy, num_episodes=64, sizes=24, noise=0.5, rate=rating)
    assert all(batch.success.all() for batch in collected(rated, times=2))  # Half of all succeed.


@pytest.mark.parametrize("options", [{"sizes": [1]}, {"weights": [1.0, 1.0, 1.0]}, {"sizes": [0, 0]}])
def test_one_number_per_source(two, speak, options):
    with pytest.raises(ValueError, match="must be 2 numbers, one per source, got"):
        make_source_collector(two, speak(two), num_episodes=4, **options)


@pytest.mark.parametrize("thought_tokens", [0, pytest.param(13, marks=pytest.mark.exhaustive)])
def test_everything_is_learned_as_it_is_read(two, speak, params_of, thought_tokens):
    """The loss is that of all tokens but marks that open a turn, under the model that reads them in order."""
    policy = speak(two, context_turns=1, prompt=False, thought_tokens=thought_tokens)
    params, layout = params_of(policy), policy.layout
    shown = jax.jit(make_demonstrations(two, policy))(KEY, jnp.arange(6))
    episode = learn_everything(shown)
    learned, there = np.asarray(episode.action_mask), np.asarray(shown.token_mask)
    np.testing.assert_array_equal(learned[..., 1:], there[..., 1:])
    assert not learned[..., 0].any()
    assert (np.asarray(episode.thought_mask) <= learned).all()
    np.testing.assert_array_equal(np.asarray(episode.thought_mask)[..., layout.observation :], False)
    scored = np.asarray(
        score_tokens(policy.model, params, to_rows(episode), episode.layout, fields=("log_prob",)).log_prob
    )

    @jax.jit
    def read(tokens):
        size = tokens.shape[1]
        hidden = policy.model.apply(
            params, tokens, positions=jnp.arange(size)[None], mask=jnp.tril(jnp.ones((1, size, size), bool))
        )
        return jax.nn.log_softmax(policy.model.logits(params, hidden))[0]

    expected = 0.0
    for row in range(6):
        places = np.flatnonzero(there[row, 0])
        tokens = np.asarray(shown.tokens)[row, 0][places][None]
        size = tokens.shape[1]
        by_hand = np.asarray(read(tokens))[np.arange(size - 1), tokens[0, 1:]]
        np.testing.assert_allclose(scored[row, 0][places[1:]], by_hand, atol=2e-5)
        expected += by_hand.sum()
    learner = make_supervised(policy.model, optax.sgd(0.0))
    _, metrics = jax.jit(learner.update)(learner.init(KEY, params), KEY, episode)
    np.testing.assert_allclose(metrics["loss"], -expected / learned.sum(), rtol=1e-4)


def test_a_corpus_is_what_the_expert_says_and_hears(two, speak):
    policy = speak(two)
    batch = collected(make_corpus_collector(two, policy, num_episodes=4, level=1), times=1)[0]
    assert (batch.task["level"] == 1).all() and batch.thought_mask.any()

"""Credit of turns against numbers made by hand: a table of cases for `turn_scores` and `userrl`, and what they refuse.

The formulas are those of the authors: WebGen-Agent (mnluzimu/WebGen-Agent@ba86ef1 core_algos.py:152-280), IPA
(alibaba/ROLL@8eb27cc2 agentic/utils.py:391-454), iStar (Tongyi-ConvAI/Tongyi-Character@dfee104 core_istar.py:174-277),
IGPO (GuoqingWang1/IGPO@bff163b core_algos.py:193-254), UserRL (SalesforceAIResearch/UserRL@cf55a30
core_algos.py:682-848), with the standard deviation of the population.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import credit
from jaxagents.ops.turn_scores import turn_scores
from jaxagents.ops.userrl import userrl
from jaxagents.types import EpisodeView

REWARD = [[1.0, 3.0], [0.0, 0.0], [2.0, 9.0], [4.0, 0.0]]
TOKENS = [[1, 2], [2, 1], [3, 0], [1, 1]]
"""A group of three episodes, the third of one turn (its 9 counts nowhere), and an episode alone in its group."""
SCORES = [[0.5, 0.1], [0.1, 0.3], [0.3, 7.0], [0.2, 0.2]]

EM = (0.5 + 0.5 * (1 - np.exp(-2)) / (1 - np.exp(-2)), 0.5 + 0.5 * (1 - np.exp(-6)) / (1 - np.exp(-2)), 0.5)
# Rewards 1, 3, 0, 0, 2: mean 6/5, variance (1 + 9 + 4) / 5 - 36/25 = 34/25.
D = np.sqrt(34) / 5
# Returns 4, 0, 2: mean 2, variance 8/3. Means of turns 2, 0, 2: mean 4/3, variance 8/9.
R, M = np.sqrt(8 / 3), np.sqrt(8 / 9)
# Scores 0.5, 0.1, 0.1, 0.3, 0.3: mean 0.26, variance 0.09 - 0.0676.
E = np.sqrt(0.45 / 5 - 0.26**2)

CASES = [
    # WebGen-Agent: every score by itself.
    (turn_scores, {}, [[-0.2 / D, 1.8 / D], [-1.2 / D, -1.2 / D], [0.8 / D, 0], [1, -1]]),
    # Its cumulative ablation: standardised scores add up backwards.
    (turn_scores, {"accumulate": 1.0}, [[1.6 / D, 1.8 / D], [-2.4 / D, -1.2 / D], [0.8 / D, 0], [0, -1]]),
    # IPA: returns to go 2.5, 3, 0, 0, 2 with a half, mean 1.5, variance (6.25 + 9 + 4) / 5 - 2.25 = 1.6; clipped.
    (
        turn_scores,
        {"discount": 0.5, "clip_low": -1.0, "clip_high": 1.1},
        [[1 / np.sqrt(1.6), 1.1], [-1, -1], [0.5 / np.sqrt(1.6), 0], [1, -1]],
    ),
    # No deviations: means only.
    (turn_scores, {"standardize": False}, [[-0.2, 1.8], [-1.2, -1.2], [0.8, 0], [2, -2]]),
    # Beside the same turn: 1, 0, 2 and 3, 0.
    (turn_scores, {"standardize": False, "same_turn": True}, [[0, 1.5], [-1, -1.5], [1, 0], [0, 0]]),
    # iStar: scores of another model beside the outcome.
    (
        turn_scores,
        {"scores": "given", "episode_weight": 1.0},
        [[2 / R + 0.24 / E, 2 / R - 0.16 / E], [-2 / R - 0.16 / E, -2 / R + 0.04 / E], [0.04 / E, 0], [0, 0]],
    ),
    # IGPO: gains 0.5, 0.1 of all turns but the last add up to the outcome; their mean is 0.3, their deviation 0.2.
    (
        turn_scores,
        {"scores": "given", "skip_last": True, "accumulate": 1.0, "episode_weight": 1.0},
        [[1 + 2 / R, 2 / R], [-1 - 2 / R, -2 / R], [0, 0], [0, 0]],
    ),
    # IGPO as one pool: 1.5, 3.1, 0.1, 0.3, 2.3.
    (
        turn_scores,
        {"scores": "given", "joint": True, "standardize": False},
        [[0.04, 1.64], [-1.36, -1.16], [0.84, 0], [2, -2]],
    ),
    # IGPO as released: returns to go 4.6, 3.1; 0.4, 0.3; 2.3 minus the mean of the same turn, no deviation.
    (
        turn_scores,
        {"scores": "given", "joint": True, "standardize": False, "same_turn": True, "discount": 1.0},
        [[4.6 - 7.3 / 3, 1.4], [0.4 - 7.3 / 3, -1.4], [2.3 - 7.3 / 3, 0], [0, 0]],
    ),
    # UserRL as released: the mean of the rewards of turns, all turns alike.
    (userrl, {}, [[2 / 3 / M] * 2, [-4 / 3 / M] * 2, [2 / 3 / M, 0], [0, 0]]),
    # Discounted scores 1 + 3/2, 0, 2: mean 3/2, variance (6.25 + 4) / 3 - 2.25 = 7/6.
    (
        userrl,
        {"score": "discounted", "discount": 0.5},
        [[np.sqrt(6 / 7)] * 2, [-1.5 / np.sqrt(7 / 6)] * 2, [0.5 / np.sqrt(7 / 6), 0], [0, 0]],
    ),
    # Rewards as credit: one token of 1 and two of 3, mean 7/3; the second has none.
    (userrl, {"credit": "reward"}, [[2 / 3 / M * 3 / 7, 2 / 3 / M * 9 / 7], [0, 0], [2 / 3 / M, 0], [0, 0]]),
    # Returns to go 5/2 and 3 over one and two tokens: mean 17/6.
    (
        userrl,
        {"credit": "return_to_go", "discount": 0.5},
        [[2 / 3 / M * 15 / 17, 2 / 3 / M * 18 / 17], [0, 0], [2 / 3 / M, 0], [0, 0]],
    ),
    # Exponential credit of 1 and 3; that of two rewards of 0 is alike.
    (
        userrl,
        {"credit": "exponential"},
        [
            [2 / M * EM[0] / (EM[0] + 2 * EM[1]), 2 / M * EM[1] / (EM[0] + 2 * EM[1])],
            [-4 / 3 / M] * 2,
            [2 / 3 / M, 0],
            [0, 0],
        ],
    ),
]


@pytest.fixture(scope="module")
def episode(make_episode):
    return make_episode(REWARD, TOKENS, group=[0, 0, 0, 1], extras={"given": jnp.asarray(SCORES)})


def by_turn(estimator, episode, **options):
    """Returns `[B][T]`, after checking that all sampled tokens of a turn have the same credit, and others none."""
    advantage = np.asarray(estimator(EpisodeView(episode=episode), **options).advantage)
    np.testing.assert_array_equal(advantage, np.where(episode.action_mask, advantage[..., 1:2], 0.0))
    return advantage[..., 1]


@pytest.mark.parametrize("estimator, options, expected", CASES)
def test_credit_by_hand(episode, estimator, options, expected):
    np.testing.assert_allclose(by_turn(estimator, episode, **options), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator, options", [case[:2] for case in CASES])
def test_groups_of_equal_turns_have_no_credit(make_episode, estimator, options):
    options = options | {"skip_last": False} if estimator is turn_scores else options
    # One turn each: with returns to go, equal rewards of several turns are not equal scores.
    equal = make_episode([[0.3]] * 3, [[1], [2], [3]], extras={"given": jnp.full((3, 1), 0.1)})
    np.testing.assert_array_equal(by_turn(estimator, equal, **options), 0.0)


@pytest.mark.parametrize("estimator, options", [case[:2] for case in CASES])
def test_dropped_rows_count_nowhere(make_episode, estimator, options):
    keep = jnp.array([True, False, True, True])
    some = {"group": [0, 0, 0, 1], "extras": {"given": jnp.asarray(SCORES)}}
    dropped = make_episode(REWARD, TOKENS, keep=keep, **some)
    rest = {"group": [0, 0, 1], "extras": {"given": jnp.asarray([SCORES[i] for i in (0, 2, 3)])}}
    alone = make_episode([REWARD[i] for i in (0, 2, 3)], [TOKENS[i] for i in (0, 2, 3)], **rest)
    found = by_turn(estimator, dropped, **options)
    np.testing.assert_allclose(found[[0, 2, 3]], by_turn(estimator, alone, **options), atol=1e-6)
    np.testing.assert_array_equal(found[1], 0.0)


def test_outcome_alone_is_grpo(make_episode):
    episode = make_episode(REWARD, TOKENS, group=[0, 0, 0, 1], extras={"given": jnp.zeros((4, 2))})
    expected = credit.grpo(EpisodeView(episode=episode)).advantage
    actual = turn_scores(EpisodeView(episode=episode), scores="given", episode_weight=1.0).advantage
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_equal_credit_of_one_turn_is_grpo(make_episode):
    episode = make_episode([[1.0], [0.0], [3.0]], [[2], [1], [3]])
    expected = credit.grpo(EpisodeView(episode=episode)).advantage
    np.testing.assert_allclose(userrl(EpisodeView(episode=episode)).advantage, expected, atol=1e-6)


@pytest.mark.parametrize("estimator", [turn_scores, userrl])
def test_no_gradient_and_the_same_compiled_over_discounts(episode, estimator):
    def total(reward):
        return jnp.sum(jnp.square(estimator(EpisodeView(episode=episode.replace(reward=reward))).advantage))

    np.testing.assert_array_equal(jax.grad(total)(episode.reward), 0.0)
    options = {"credit": "return_to_go"} if estimator is userrl else {}
    compiled = jax.jit(lambda d: estimator(EpisodeView(episode=episode), discount=d, **options).advantage)
    several = jax.vmap(compiled)(jnp.array([0.0, 0.5]))
    for row, discount in enumerate((0.0, 0.5)):
        expected = estimator(EpisodeView(episode=episode), discount=discount, **options).advantage
        np.testing.assert_allclose(several[row], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "estimator, options, message",
    [
        (turn_scores, {"scores": "gain"}, "`scores` must be an entry of `episode.extras`, got 'gain'; there is given"),
        (userrl, {"score": "sum"}, "`score` must be 'mean' or 'discounted', got 'sum'"),
        (userrl, {"credit": "best"}, "`credit` must be 'equal' or 'reward' or 'return_to_go' or 'exponential', got"),
    ],
)
def test_what_there_is_not_is_refused(episode, estimator, options, message):
    with pytest.raises(ValueError, match=message):
        estimator(EpisodeView(episode=episode), **options)

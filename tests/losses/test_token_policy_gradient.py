"""Losses of sampled tokens against numbers made by hand, each other, and their gradients."""

from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.losses import token_policy_gradient as losses
from jaxagents.losses.aggregation import sequence_mean
from jaxagents.losses.entropy_balanced import entropy_balanced_clip as entropy_balanced
from jaxagents.losses.policy_gradient import clipped_surrogate
from jaxagents.ops.episodes import mean_log_ratio
from jaxagents.types import TokenView


def view_of(log_prob, behavior, advantage, mask):
    """Returns the view of rows `[B, L]`, episodes of one turn; answers are right where the advantage is positive.

    Shares of right answers are those that `dr_grpo` makes these advantages of: `1 - r` of right and `-r` of wrong ones.
    """
    log_prob, behavior, advantage, mask = (leaf[:, None] for leaf in (log_prob, behavior, advantage, mask))
    right = advantage > 0.0
    view = TokenView(
        mask=mask,
        turn=jnp.zeros(mask.shape, jnp.int32),
        sequence=jnp.zeros(mask.shape, jnp.int32),
        behavior_log_prob=behavior,
        advantage=advantage,
        success=right,
        group_success=jnp.where(right, 1.0 - advantage, -advantage),
        log_prob=log_prob,
    )
    return view.replace(sequence_log_ratio=mean_log_ratio(view, log_prob))


def of_arrays(loss):
    """Returns the loss as a function of arrays `[B, L]`."""
    return wraps(loss)(lambda *arrays, **options: loss(view_of(*arrays), **options)[:, 0])


plain, ppo_clip, decoupled_clip, dual_clip, gspo, gspo_turn, cispo, nft = ALL = [
    of_arrays(getattr(losses, name))
    for name in ("plain", "ppo_clip", "decoupled_clip", "dual_clip", "gspo", "gspo_turn", "cispo", "nft")
]

entropy_balanced_clip = of_arrays(entropy_balanced)

# One row: ratios far below, below, at, above, a bit more above, far and very far above one.
RATIO = np.array([[0.5, 0.9, 1.0, 1.1, 1.25, 1.5, 4.0]])
BEHAVIOR = jnp.array([[-1.0, -2.0, -0.5, -3.0, -0.3, -0.1, -2.0]])
LOG_PROB = BEHAVIOR + jnp.log(jnp.asarray(RATIO, jnp.float32))
MASK = jnp.ones((1, 7), bool)
GOOD, BAD = jnp.full((1, 7), 2.0), jnp.full((1, 7), -2.0)


def gradient(loss, log_prob, *rest):
    return jax.grad(lambda log_prob: jnp.sum(loss(log_prob, *rest)))(log_prob)


def random_batch(seed=0, shape=(4, 5), spread=0.3):
    """Returns log-probabilities, behaviour's, advantages, and a mask with a full, an empty and two ragged rows."""
    generator = np.random.default_rng(seed)
    behavior = -generator.exponential(size=shape)
    log_prob = behavior + spread * generator.normal(size=shape)
    mask = np.arange(shape[1])[None] < np.array([shape[1], 0, 2, 3])[:, None]
    advantage = generator.uniform(-0.9, 0.9, size=shape)
    arrays = (jnp.asarray(array, jnp.float32) for array in (log_prob, behavior, advantage))
    return (*arrays, jnp.asarray(mask))


@pytest.mark.parametrize(
    ("loss", "advantage", "value", "slope"),
    [
        # Values are -counted ratio * A, slopes d/d(log_prob): the same where the clip does not bind, else zero.
        (ppo_clip, GOOD, [0.5, 0.9, 1.0, 1.1, 1.2, 1.2, 1.2], [0.5, 0.9, 1.0, 1.1, 0, 0, 0]),
        (ppo_clip, BAD, [0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 4.0], [0, 0.9, 1.0, 1.1, 1.25, 1.5, 4.0]),
        (decoupled_clip, GOOD, [0.5, 0.9, 1.0, 1.1, 1.25, 1.28, 1.28], [0.5, 0.9, 1.0, 1.1, 1.25, 0, 0]),
        (decoupled_clip, BAD, [0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 4.0], [0, 0.9, 1.0, 1.1, 1.25, 1.5, 4.0]),
        (dual_clip, GOOD, [0.5, 0.9, 1.0, 1.1, 1.2, 1.2, 1.2], [0.5, 0.9, 1.0, 1.1, 0, 0, 0]),
        (dual_clip, BAD, [0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 3.0], [0, 0.9, 1.0, 1.1, 1.25, 1.5, 0]),
    ],
)
def test_clipped_losses_by_hand(loss, advantage, value, slope):
    arguments = LOG_PROB, BEHAVIOR, advantage, MASK
    np.testing.assert_allclose(loss(*arguments), -np.array([value]) * advantage, rtol=1e-5)
    np.testing.assert_allclose(gradient(loss, *arguments), -np.array([slope]) * advantage, rtol=1e-5)


@pytest.mark.parametrize("advantage", [GOOD, BAD])
def test_plain_by_hand(advantage):
    arguments = LOG_PROB, BEHAVIOR, advantage, MASK
    np.testing.assert_allclose(plain(*arguments), -advantage * LOG_PROB, rtol=1e-6)
    np.testing.assert_allclose(gradient(plain, *arguments), -advantage)


def test_cispo_by_hand():
    weight = np.array([[0.6, 0.9, 1.0, 1.1, 1.25, 1.3, 1.3]])
    narrow = partial(cispo, clip_epsilon_low=0.4, clip_epsilon_high=0.3)
    np.testing.assert_allclose(narrow(LOG_PROB, BEHAVIOR, GOOD, MASK), -2.0 * weight * LOG_PROB, rtol=1e-5)
    # Clipped tokens keep a gradient, whatever the sign of the advantage.
    for advantage in (GOOD, BAD):
        actual = gradient(narrow, LOG_PROB, BEHAVIOR, advantage, MASK)
        np.testing.assert_allclose(actual, -weight * advantage, rtol=1e-5)
    # By default weights are not bounded from below.
    unbounded = gradient(cispo, LOG_PROB, BEHAVIOR, GOOD, MASK)
    np.testing.assert_allclose(unbounded, -2.0 * RATIO, rtol=1e-5)


def test_gspo_by_hand():
    # Three tokens with ratios 4, 1/2 and 1/2 count: their geometric mean is 1; the fourth does not.
    log_ratio = jnp.log(jnp.array([[4.0, 0.5, 0.5, 100.0], [1.0, 1.44, 1.0, 100.0]]))
    behavior = jnp.full((2, 4), -2.0)
    mask = jnp.array([[True, True, True, False], [True, True, False, False]])
    arguments = behavior + log_ratio, behavior, jnp.full((2, 4), 3.0), mask
    tight = partial(gspo, clip_epsilon_low=0.1, clip_epsilon_high=0.1)
    # Row 1: the square root of 1.44 is 1.2, clipped to 1.1.
    np.testing.assert_allclose(tight(*arguments), [[-3, -3, -3, 0], [-3.3, -3.3, 0, 0]], rtol=1e-5)
    np.testing.assert_allclose(gradient(tight, *arguments), [[-3, -3, -3, 0], [0, 0, 0, 0]], rtol=1e-5)
    # Against bad tokens a ratio of 1.2 counts in full.
    arguments = (*arguments[:2], jnp.full((2, 4), -1.0), mask)
    np.testing.assert_allclose(tight(*arguments)[1], [1.2, 1.2, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(gradient(tight, *arguments)[1], [1.2, 1.2, 0, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "loss", "slope"),
    [(3.0, -3.15, [[-0.5, -0.5, -0.5, 0], [0, 0, 0, 0]]), (-1.0, 1.1, [[1 / 6, 1 / 6, 1 / 6, 0], [0.3, 0.3, 0, 0]])],
)
def test_gspo_is_what_verl_computes(advantage, loss, slope):
    """Printed by volcengine/verl at commit b178a3c, verl/trainer/ppo/core_algos.py:1254: means of tokens, then rows."""
    log_ratio = jnp.log(jnp.array([[4.0, 0.5, 0.5, 100.0], [1.0, 1.44, 1.0, 100.0]]))
    behavior, mask = jnp.full((2, 4), -2.0), jnp.array([[True, True, True, False], [True, True, False, False]])
    tight = partial(gspo, clip_epsilon_low=0.1, clip_epsilon_high=0.1)
    arguments = behavior + log_ratio, behavior, jnp.full((2, 4), advantage), mask
    length = 2.0 * np.array([[3.0], [2.0]])
    np.testing.assert_allclose(np.sum(tight(*arguments) / length), loss, rtol=1e-5)
    np.testing.assert_allclose(gradient(tight, *arguments) / length, slope, rtol=1e-5)


@pytest.mark.slow
def test_gspo_has_the_gradient_of_the_sequence_ratio():
    log_prob, behavior, advantage, mask = random_batch()
    advantage = jnp.broadcast_to(advantage[:, :1], advantage.shape)

    def of_sequences(log_prob):
        length = jnp.maximum(jnp.sum(mask, axis=1), 1)
        ratio = jnp.exp(jnp.sum(jnp.where(mask, log_prob - behavior, 0.0), axis=1) / length)
        clipped = jnp.clip(ratio, 0.9, 1.1)
        return -jnp.sum(jnp.minimum(ratio * advantage[:, 0], clipped * advantage[:, 0])[jnp.array([0, 2, 3])]) / 3

    def of_tokens(log_prob):
        per_token = gspo(log_prob, behavior, advantage, mask, clip_epsilon_low=0.1, clip_epsilon_high=0.1)
        return jnp.sum(sequence_mean(view_of(log_prob, behavior, advantage, mask))[:, 0] * per_token)

    expected, actual = jax.value_and_grad(of_sequences)(log_prob), jax.value_and_grad(of_tokens)(log_prob)
    assert np.abs(expected[1]).max() > 0.0
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5, atol=1e-7)


def test_gspo_of_single_tokens_is_ppo():
    log_prob, behavior, advantage, _ = random_batch(shape=(4, 1))
    mask = jnp.ones((4, 1), bool)
    arguments = log_prob, behavior, advantage, mask
    tight = partial(gspo, clip_epsilon_low=0.2, clip_epsilon_high=0.2)
    np.testing.assert_allclose(tight(*arguments), ppo_clip(*arguments), rtol=1e-5)
    np.testing.assert_allclose(gradient(tight, *arguments), gradient(ppo_clip, *arguments), rtol=1e-5)


def test_nft_by_hand():
    # Half of the answers are right: the weight is 1/2, and what is left to wrong ones is 2 - ratio.
    right, wrong = jnp.full((1, 7), 0.5), jnp.full((1, 7), -0.5)
    arguments = LOG_PROB, BEHAVIOR
    np.testing.assert_allclose(nft(*arguments, right, MASK), -np.log(RATIO) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient(nft, *arguments, right, MASK), [[-0.5] * 7], rtol=1e-5)
    # At ratios above 1 the floor of 1 holds, and gradients pass it.
    value = -np.log([[1.5, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0]]) / 2
    slope = RATIO / np.maximum(2.0 - RATIO, 1.0) / 2
    np.testing.assert_allclose(nft(*arguments, wrong, MASK), value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient(nft, *arguments, wrong, MASK), slope, rtol=1e-5)
    # A lower floor lets wrong answers push harder.
    low = partial(nft, floor=0.1, negative_weight=3.0)
    slope = 3.0 * RATIO / np.maximum(2.0 - RATIO, 0.1) / 2
    np.testing.assert_allclose(gradient(low, *arguments, wrong, MASK), slope, rtol=1e-4)
    # Three of four are wrong: (1 - ratio / 4) / (3 / 4); the weight is (3 / 4)^2 * 4^(1 / 2).
    powers = partial(nft, floor=0.1, failure_power=2.0, success_power=0.5)
    value = -1.125 * np.log(np.maximum((1 - RATIO / 4) / 0.75, 0.1))
    np.testing.assert_allclose(powers(*arguments, -0.25 * jnp.ones((1, 7)), MASK), value, rtol=1e-4, atol=1e-6)


def test_nft_without_weight_on_wrong_answers_is_rejection_finetuning():
    arguments = LOG_PROB, BEHAVIOR, jnp.array([[0.5, -0.5, 0.25, -0.75, 0.0, -0.1, 0.9]]), MASK
    rft = partial(nft, negative_weight=0.0)
    np.testing.assert_allclose(gradient(rft, *arguments), [[-0.5, 0, -0.25, 0, 0, 0, -0.9]], rtol=1e-5)


def test_nft_counts_shares_between_bounds_and_no_question_that_is_all_right_or_wrong():
    arguments = BEHAVIOR[:, :4], BEHAVIOR[:, :4], jnp.array([[0.999, -0.001, 0.0, -0.999]]), MASK[:, :4]
    slope = gradient(nft, *arguments)
    np.testing.assert_allclose(slope, [[-0.98, 0.02, 0.0, 0.98]], rtol=1e-4)


@pytest.mark.parametrize(("powers", "standardize"), [((1.0, 0.0), False), ((0.5, 0.5), True)])
def test_nft_has_the_gradient_of_grpo_on_data_of_the_policy_itself(powers, standardize):
    generator = np.random.default_rng(4)
    logits = jnp.asarray(generator.normal(size=(8, 3, 6)), jnp.float32)
    chosen = jnp.asarray(generator.integers(0, 6, size=(8, 3)))
    reward = np.array([1, 0, 0, 0, 1, 1, 0, 1.0])  # Two questions: one of four, three of four.
    share = np.repeat(reward.reshape(2, 4).mean(1), 4)
    advantage = jnp.asarray((reward - share)[:, None] * np.ones((8, 3)), jnp.float32)
    scale = np.sqrt(share * (1 - share))[:, None] if standardize else 1.0

    def loss_of(logits):
        return jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[..., None], axis=2)[..., 0]

    def slope(loss, advantage):
        return jax.grad(lambda x: jnp.sum(loss(loss_of(x), loss_of(logits), advantage, jnp.ones((8, 3), bool))))(logits)

    weighted = partial(nft, failure_power=powers[0], success_power=powers[1])
    expected = slope(ppo_clip, advantage / scale)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(slope(weighted, advantage), expected, rtol=1e-5, atol=1e-6)


def test_ppo_agrees_with_the_loss_of_single_actions():
    log_prob, behavior, advantage, mask = random_batch()
    expected = clipped_surrogate(log_prob, behavior, advantage, clip_epsilon=0.1)
    actual = ppo_clip(log_prob, behavior, advantage, mask, clip_epsilon=0.1)
    np.testing.assert_allclose(actual, jnp.where(mask, expected, 0.0), rtol=1e-5)


@pytest.mark.parametrize("loss", ALL)
def test_on_data_of_the_policy_itself_all_have_the_policy_gradient(loss):
    _, behavior, advantage, mask = random_batch()
    actual = gradient(loss, behavior, behavior, advantage, mask)
    np.testing.assert_allclose(actual, jnp.where(mask, -advantage, 0.0), rtol=1e-5)


@pytest.mark.parametrize("loss", ALL)
def test_zero_off_the_mask_whatever_lies_there(loss):
    log_prob, behavior, advantage, mask = random_batch()
    expected = loss(log_prob, behavior, advantage, mask)
    expected_gradient = gradient(loss, log_prob, behavior, advantage, mask)
    for junk in (jnp.nan, -jnp.inf):
        arguments = [jnp.where(mask, array, junk) for array in (log_prob, behavior, advantage)]
        np.testing.assert_array_equal(loss(*arguments, mask), expected)
        np.testing.assert_array_equal(gradient(loss, *arguments, mask), expected_gradient)
    np.testing.assert_array_equal(expected[~np.asarray(mask)], 0.0)
    np.testing.assert_array_equal(expected_gradient[~np.asarray(mask)], 0.0)


@pytest.mark.parametrize("loss", ALL)
def test_gradient_flows_to_the_policy_only(loss):
    log_prob, behavior, advantage, mask = random_batch()

    def total(log_prob, behavior, advantage):
        return jnp.sum(loss(log_prob, behavior, advantage, mask))

    to_policy, to_behavior, to_advantage = jax.grad(total, (0, 1, 2))(log_prob, behavior, advantage)
    assert np.abs(to_policy).max() > 0.0
    np.testing.assert_array_equal(to_behavior, 0.0)
    np.testing.assert_array_equal(to_advantage, 0.0)


@pytest.mark.parametrize("loss", ALL)
def test_ratios_of_policies_that_parted_are_finite(loss):
    far = jnp.array([[-200.0, 0.0]])
    arguments = far, far[:, ::-1], jnp.array([[-1.0, -1.0]]), jnp.ones((1, 2), bool)
    assert np.isfinite(loss(*arguments)).all()
    assert np.isfinite(gradient(loss, *arguments)).all()


@pytest.mark.parametrize("loss", ALL)
def test_jit_changes_nothing(loss):
    arguments = random_batch()
    np.testing.assert_allclose(jax.jit(loss)(*arguments), loss(*arguments), rtol=1e-5)


def test_epsilons_may_be_traced():
    arguments = random_batch()
    compiled = jax.jit(lambda epsilon: ppo_clip(*arguments, clip_epsilon=epsilon))
    for epsilon in (0.1, 0.3):
        expected = ppo_clip(*arguments, clip_epsilon=epsilon)
        np.testing.assert_allclose(compiled(epsilon), expected, rtol=1e-5)
    assert compiled._cache_size() == 1


def test_truncated_importance_weight_by_hand():
    mask = jnp.array([[True] * 6 + [False]])
    weight = losses.truncated_importance_weight(LOG_PROB, BEHAVIOR, mask, cap=1.3)
    np.testing.assert_allclose(weight, [[0.5, 0.9, 1.0, 1.1, 1.25, 1.3, 0.0]], rtol=1e-5)
    slope = jax.grad(lambda x: jnp.sum(losses.truncated_importance_weight(x, BEHAVIOR, mask, cap=1.3)))(LOG_PROB)
    np.testing.assert_array_equal(slope, 0.0)


@pytest.mark.exhaustive
def test_truncated_importance_weight_leaves_no_trace_of_what_is_masked():
    junk = jnp.array([[jnp.nan, -jnp.inf, 0.0]])
    mask = jnp.array([[False, False, True]])
    weight = losses.truncated_importance_weight(junk, jnp.zeros((1, 3)), mask, cap=2.0)
    np.testing.assert_array_equal(weight, [[0.0, 0.0, 1.0]])


def test_entropy_balanced_clip_by_hand():
    # Ratios 0.5, 0.9, 1, 1.1, 1.25, 1.5, 4 between 0.8 and 1.28: values are those of the dual clip with two widths.
    arrays = LOG_PROB, BEHAVIOR, GOOD, MASK
    value = -2.0 * np.minimum(RATIO, 1.28)
    np.testing.assert_allclose(entropy_balanced_clip(*arrays), value, rtol=1e-5)
    # Above the bound the gradient is that of 1.28 log pi in place of none.
    np.testing.assert_allclose(gradient(entropy_balanced_clip, *arrays), value, rtol=1e-5)
    assert (np.asarray(gradient(decoupled_clip, *arrays))[0, 5:] == 0.0).all()
    arrays = LOG_PROB, BEHAVIOR, BAD, MASK
    value = 2.0 * np.minimum(np.maximum(RATIO, 0.8), 3.0)
    np.testing.assert_allclose(entropy_balanced_clip(*arrays), value, rtol=1e-5)
    slope = np.where((RATIO > 0.8) & (RATIO < 3.0), value, 0.0)
    np.testing.assert_allclose(gradient(entropy_balanced_clip, *arrays), slope, rtol=1e-5)


def test_entropy_balanced_clip_says_nothing_of_tokens_off_the_mask():
    off = LOG_PROB.at[0, 3:].set(jnp.nan), BEHAVIOR, GOOD, MASK.at[0, 3:].set(False)
    assert (np.asarray(entropy_balanced_clip(*off))[0, 3:] == 0.0).all()
    assert (np.asarray(gradient(entropy_balanced_clip, *off))[0, 3:] == 0.0).all()

"""A judge of screens: what it pays, what it is fitted to, and that actions change nothing of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text import shop
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.exevrm import make_screen_judge
from jaxagents.learners.turn_values import TurnValues, TurnValueState, make_turn_values
from jaxagents.ops.exevrm import prune_unchanged, screens_of
from jaxagents.types import Layout

KEY = jax.random.key(4)
LAYOUT = Layout(prompt=1, observation=1, thought=0, action=3, num_turns=2, context_turns=1)


# Stands for a model: its logits are the tokens of the observations where it is asked, and it notes its slopes.
def fake_judge(params, episode):
    return jnp.where(jnp.any(episode.action_mask, axis=2), episode.tokens[:, :, 0].astype(jnp.float32), 0.0), None


def fake_step(state, episode, before, after):
    return state.replace(params=state.params + 1.0, opt_state=state.opt_state + before)


def make(episode, alter, **options):
    values = TurnValues(
        init=lambda params, start=None: start or TurnValueState(params, jnp.zeros((8, 2))),
        judge=fake_judge,
        step=fake_step,
    )
    estimator = make_screen_judge(values, alter, **options)
    state = estimator.init(KEY, jnp.float32(0.0))
    judged, found = estimator.judge(state, episode)
    metrics = {name: float(mean.value) for name, mean in estimator.describe(episode, found).items()}
    return judged, metrics, estimator.fit(state, jax.random.key(5), episode, found).values


@pytest.fixture
def episode(make_episode):
    """Two successes and two failures, of which one of each is judged right; of the third row, a turn is missing."""
    logit = np.log(3.0) * np.array([[-1, 1], [1, -1], [1, 9], [1, -1]])
    tokens = jnp.zeros((4, 2, 4)).at[:, :, 0].set(logit)
    made = make_episode([[0, 1], [0, 1], [0, 0], [0, 0]], [[3, 3], [3, 3], [3, 0], [3, 3]], tokens=tokens)
    return made.replace(success=jnp.array([True, True, False, False]), layout=LAYOUT)


def near(key, episode):
    """Alters the instruction of the first success, whose screens the judge takes for a success again."""
    return episode.replace(valid=episode.valid & jnp.array([[True], [False], [False], [False]]))


def none(key, episode):
    return episode.replace(valid=jnp.zeros_like(episode.valid))


def test_an_episode_earns_a_verdict_at_its_end(episode):
    judged, metrics, _ = make(episode, near)
    np.testing.assert_array_equal(judged.reward, [[0, 1], [0, 0], [1, 0], [0, 0]])
    assert metrics["judge_accuracy"] == 0.5 and metrics["judge_false_positives"] == 0.5
    assert metrics["judge_near_misses"] == 1.0 and metrics["judge_tokens"] == 7 / 4


def test_the_fit_raises_successes_and_lowers_failures_and_altered_instructions(episode):
    """Probabilities 3/4 and 1/4, less the outcome, of five rows; padded turns and rows without turns have no slope."""
    _, _, fitted = make(episode, near, num_steps=2)
    slope = np.array([[0, -0.25], [0, -0.75], [0.75, 0], [0, 0.25], [0, 0.75], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_allclose(fitted.opt_state, 2 * slope / 5, rtol=1e-5)
    assert float(fitted.params) == 2.0
    _, metrics, fitted = make(episode, near, altered=False)
    slope[4] = 0.0
    np.testing.assert_allclose(fitted.opt_state, slope / 4, rtol=1e-5)
    assert metrics["judge_near_misses"] == 1.0  # Judged, and not learned.


@pytest.mark.parametrize(("success", "sign"), [(True, -1.0), (False, 1.0)])
def test_batches_of_one_outcome(episode, success, sign):
    _, metrics, fitted = make(episode.replace(success=jnp.full(4, success)), none)
    slope = np.asarray(fitted.opt_state)
    assert set(np.sign(slope[:4]).ravel()) == {0.0, sign} and not slope[4:].any()
    assert metrics["judge_accuracy"] == 0.5 and np.isnan(metrics["judge_near_misses"])
    assert np.isnan(metrics["judge_false_positives"]) if success else metrics["judge_false_positives"] == 0.5


def test_rows_that_a_filter_dropped_are_neither_paid_nor_learned(episode):
    kept = episode.replace(keep=jnp.array([False, True, False, True]))
    judged, metrics, fitted = make(kept, none)
    assert not np.asarray(judged.reward).any() and metrics["judge_accuracy"] == 0.5
    assert not np.asarray(fitted.opt_state)[[0, 2]].any()
    with pytest.raises(ValueError, match="`num_steps`"):
        make(episode, none, num_steps=0)


@pytest.mark.slow
def test_a_model_of_screens_reads_all_of_them_and_no_action(speak):
    world = shop.make_environment((1,), max_steps=4)
    policy = speak(world, value_head=True, context_turns=1, prompt=False)
    params, begin = policy.init(jax.random.key(7)), policy.layout.observation
    episode = jax.jit(make_demonstrations(world, policy, noise=0.3))(KEY, jnp.arange(8))
    layout = policy.layout._replace(context_turns=policy.layout.num_turns)
    values = make_turn_values(policy.model, layout, optax.sgd(0.1))
    judge = jax.jit(lambda episode: values.judge(params, prune_unchanged(screens_of(episode)))[0])
    logit = np.asarray(judge(episode))
    length = np.asarray(episode.valid).sum(axis=1)
    np.testing.assert_array_equal(logit != 0.0, np.arange(4)[None] == length[:, None] - 1)
    other = episode.replace(
        tokens=episode.tokens.at[..., begin:].set(3),
        action_mask=episode.action_mask.at[..., begin + 2 :].set(False),
        token_mask=episode.token_mask.at[..., begin + 2 :].set(False),
    )
    np.testing.assert_array_equal(judge(other), logit)
    first = episode.replace(tokens=episode.tokens.at[:, 0, 2].set(9))  # The kind that is asked for, long ago.
    changed = np.abs(np.asarray(judge(first)) - logit).sum(axis=1) > 1e-3
    assert (length > 1).all() and changed.all()

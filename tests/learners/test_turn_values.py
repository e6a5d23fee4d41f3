"""Values of turns, their losses by hand and their step, and the learners that are made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.archer import make_archer, turn_targets
from jaxagents.learners.digirl import make_digirl, step_advantage, surprising
from jaxagents.learners.turn_values import TurnValues, TurnValueState, cross_entropy, make_turn_values, squared_error
from jaxagents.learners.vem import make_action_values
from jaxagents.policies.contexts import to_rows
from jaxagents.types import Learner
from tests.fakes import score_tokens

KEY, RATE = jax.random.key(4), 0.1


def test_losses_and_their_slopes_by_hand():
    value, counted = jnp.array([[0.0, np.log(3.0)], [2.0, 7.0]]), jnp.array([[True, True], [True, False]])
    loss, slope = cross_entropy(value, jnp.array([[True, False], [True, True]]), counted)
    np.testing.assert_allclose(loss, (np.log(2.0) + np.log(4.0) + np.log1p(np.exp(-2.0))) / 3, rtol=1e-6)
    third = 1 / (1 + np.exp(-2.0)) - 1
    np.testing.assert_allclose(slope, np.array([[-0.5, 0.75], [third, 0.0]]) / 3, rtol=1e-5)
    loss, slope = squared_error(value, jnp.array([[1.0, np.log(3.0)], [0.0, 0.0]]), counted)
    np.testing.assert_allclose(loss, (1.0 + 0.0 + 4.0) / 3, rtol=1e-6)
    np.testing.assert_allclose(slope, np.array([[-2.0, 0.0], [4.0, 0.0]]) / 3, rtol=1e-6)
    nothing = jnp.zeros_like(counted)
    assert float(squared_error(value, value + 1.0, nothing)[0]) == 0.0


@pytest.mark.slow
def test_values_are_read_before_and_after_actions_and_step_along_the_gradient(lake, speak, params_of):
    policy = speak(lake, value_head=True, context_turns=1, prompt=False)
    params = params_of(policy)
    episode = jax.jit(make_demonstrations(lake, policy, noise=0.5))(KEY, jnp.arange(4))
    values = make_turn_values(policy.model, policy.layout, optax.sgd(RATE))
    mask = np.asarray(episode.action_mask)
    some = mask.any(axis=2)
    first, last = mask.argmax(axis=2), mask.shape[2] - 1 - mask[:, :, ::-1].argmax(axis=2)
    assert (first < last)[some].all() and not some.all()

    def at(params, column):
        value = score_tokens(policy.model, params, to_rows(episode), policy.layout, fields=("value",)).value
        value = jnp.take_along_axis(value.reshape(mask.shape), jnp.asarray(column)[..., None], axis=2)[..., 0]
        return jnp.where(some, value, 0.0)

    for actual, column in zip(jax.jit(values.judge)(params, episode), (first, last), strict=True):
        np.testing.assert_allclose(actual, at(params, column), atol=1e-4)

    def loss(params):
        return jnp.sum(at(params, first) * 0.3) - jnp.sum(at(params, last) * 0.2)

    slopes = [jnp.where(some, slope, 0.0) for slope in (0.3, -0.2)]
    moved = jax.jit(values.step)(values.init(params), episode, *slopes).params
    wanted = jax.tree.map(lambda leaf, slope: leaf - RATE * slope, params, jax.jit(jax.grad(loss))(params))
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4), moved, wanted)
    with pytest.raises(ValueError, match="`model` must have a value head to judge turns"):
        make_turn_values(speak(lake, context_turns=1, prompt=False).model, policy.layout, optax.sgd(RATE))


# Stand-ins: a model whose values are its parameter times what the first and the last token of a turn say, which notes
# the slopes that it is given, and learners that note what they learn from.
def fake_judge(params, episode):
    tokens, acting = episode.tokens.astype(jnp.float32), jnp.any(episode.action_mask, axis=2)
    return params * jnp.where(acting, tokens[:, :, 0], 0.0), params * jnp.where(acting, tokens[:, :, 1], 0.0)


def fake_step(state, episode, before, after):
    zeros = jnp.zeros(episode.valid.shape)
    note = jnp.stack([jnp.broadcast_to(one, zeros.shape) for one in (before, after)])
    return state.replace(params=state.params + 1.0, opt_state=state.opt_state + note.sum(axis=(1, 2)))


FAKE = TurnValues(
    init=lambda params, start=None: TurnValueState(jnp.asarray(params), jnp.zeros(2)) if start is None else start,
    judge=fake_judge,
    step=fake_step,
)


@struct.dataclass
class Seen:
    """Stands for what is learned: parameters, and the last batch."""

    params: jax.Array
    batch: object


def noting(example, *names):
    """Makes a learner that notes these fields of its batches, `[B, T]` or like the tokens, and counts them."""

    def update(state, key, batch):
        return Seen(state.params + 1.0, {name: jnp.asarray(getattr(batch, name), jnp.float32) for name in names}), {}

    shapes = {name: example.reward.shape if name == "reward" else example.tokens.shape for name in names}
    batch = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    return Learner(init=lambda key, start=None: Seen(jnp.float32(1.0), batch), update=update)


def test_turns_that_raise_the_value_of_surprising_episodes_are_imitated(make_episode):
    """Probabilities 0.5, 0.25, 0.75 and 0.5 in turn."""
    value = jnp.log(jnp.array([[1.0, 1 / 3, 3.0], [3.0, 1 / 3, 9.0]]))
    episode = make_episode([[0, 0, 1.0], [0, 0, 0]], [[1, 1, 1], [1, 1, 0]])
    actual = np.asarray(step_advantage(episode, value, threshold=0.05, discount=0.5))
    # The successor less the state, less 0.05, and reward and discounted return: 1/4, 1/2 and 1 for the success.
    np.testing.assert_allclose(actual[0], [-0.25 - 0.05 + 0.25, 0.5 - 0.05 + 0.5, 0.25 - 0.05 + 1.0 + 1.0], atol=1e-6)
    np.testing.assert_allclose(actual[1, :2], [-0.5 - 0.05, -0.25 - 0.05], atol=1e-6)
    assert actual[1, 2] == -np.inf
    # Return less probability: 0.5, -0.75, 0.25, and one place that is empty.
    rows = make_episode([[1.0], [0.0], [1.0], [1.0]], np.ones((4, 1)))
    logits = jnp.log(jnp.array([1.0, 3.0, 3.0, 0.1]))
    filled = jnp.array([True, True, True, False])
    for share, expected in {0.1: [1, 0, 0, 0], 1 / 3: [1, 0, 0, 0], 0.5: [1, 0, 1, 0], 1.0: [1, 1, 1, 0]}.items():
        np.testing.assert_array_equal(surprising(rows, logits, filled, share=share), expected)


def test_an_update_of_digirl_stores_fits_and_imitates(make_episode):
    episode = make_episode([[0, 1.0], [0, 0]], [[1, 1], [1, 1]], tokens=jnp.zeros((2, 2, 4), jnp.int32))
    learner = make_digirl(
        noting(episode, "reward", "loss_weight"),
        FAKE,
        episode,
        capacity=4,
        batch_size=2,
        num_steps=2,
        num_value_steps=3,
        share=0.5,
    )
    update = jax.jit(learner.update)
    state, metrics = update(learner.init(KEY), KEY, episode)
    assert float(metrics["stored"]) == 2.0 and float(state.params) == 3.0
    # Values of zero are log 2 off; three steps whose slopes of two successes and two failures cancel, and none of Q.
    np.testing.assert_allclose(metrics["value_loss"], np.log(2.0), rtol=1e-6)
    assert float(state.values.params) == 4.0 and not np.asarray(state.values.opt_state).any()
    # The half of the largest return is the success, drawn twice, whose turns both count.
    np.testing.assert_array_equal(state.inner.batch["reward"], [[0, 1], [0, 1]])
    np.testing.assert_array_equal(state.inner.batch["loss_weight"], np.ones((2, 2, 4)))
    assert float(metrics["imitated_turns"]) == 1.0
    state, metrics = update(state, KEY, episode)
    assert float(metrics["stored"]) == 4.0 and update._cache_size() == 1
    counts = {"capacity": 4, "batch_size": 2, "num_steps": 1, "num_value_steps": 1}
    for share in (0.0, 2.0):  # No episode would be the newest one, drawn again and again.
        with pytest.raises(ValueError, match=rf"`share` must be in \(0, 1\], got {share}"):
            make_digirl(noting(episode), FAKE, episode, share=share, **counts)


def test_targets_of_turns_by_hand():
    acting = jnp.array([[True, True, True], [True, True, False]])
    reward, value = jnp.array([[0.0, 0.5, 1.0], [0.0, 2.0, 0.0]]), jnp.array([[9.0, 4.0, 6.0], [9.0, 2.0, 7.0]])
    actual = turn_targets(reward, value, acting, discount=0.5)
    np.testing.assert_array_equal(actual, [[2.0, 3.5, 1.0], [1.0, 2.0, 0.0]])


def test_fresh_actions_earn_what_critics_of_stored_turns_say(make_episode):
    """Stored tokens say V 1 and Q 3; fresh ones Q 5."""
    tokens = jnp.broadcast_to(jnp.array([[[1, 3, 0, 0]]]), (2, 2, 4))
    episode = make_episode([[0, 1.0], [0, 1.0]], [[1, 1], [1, 1]], tokens=tokens)

    def utter(params, key, episode):
        return episode.replace(tokens=episode.tokens.at[:, :, 1].set(5))

    options = {"capacity": 4, "value_batch_size": 2, "batch_size": 2, "num_value_steps": 1, "num_steps": 2}
    learner = make_archer(
        noting(episode, "reward", "tokens"), FAKE, utter, episode, num_exploring=1, discount=0.5, **options
    )
    update, before = jax.jit(learner.update), learner.init(KEY)
    state, metrics = update(before, KEY, episode)
    # Critics begin as the actor: Q 3 -> 0 + 0.5 * 1 and 1, V 1 -> 5; halves of the rows are all, one or none of them.
    assert float(metrics["q_loss"]) in (0.0, (2.5**2 + 2.0**2) / 2) and float(metrics["v_loss"]) in (0.0, 16.0)
    assert [float(critic.params) for critic in state.critics] == [2.0, 2.0]
    np.testing.assert_allclose(state.targets, [1.1, 1.1], rtol=1e-6)
    for critic in state.critics:
        assert np.round(np.asarray(critic.opt_state), 5).tolist() in ([0.0, 0.0], [-8.0, 4.5])
    assert float(state.params) == 1.0  # Only critics learn yet.
    np.testing.assert_array_equal(learner.init(KEY, state).targets, state.targets)  # Another stage goes on from it.
    state, metrics = update(state, KEY, episode)
    assert float(state.params) == 3.0 and float(metrics["stored"]) == 4.0 and update._cache_size() == 1
    # Critics of 3: Q 15, V 3.
    np.testing.assert_array_equal(state.inner.batch["reward"], np.full((2, 2), 12.0))
    assert (np.asarray(state.inner.batch["tokens"])[:, :, 1] == 5).all()


@pytest.mark.parametrize(("hard", "earned"), [(True, [1.0, 0.5]), (False, [7 / 8, 5 / 8])])
def test_a_frozen_value_of_actions_pays_in_two_levels(make_episode, hard, earned):
    values = FAKE._replace(judge=lambda params, episode: (None, jnp.log(jnp.array([[3.0, 1 / 3], [9.0, 0.0]]))))
    episode = make_episode([[1.0, 1.0], [0.0, 0.0]], [[1, 1], [0, 0]])
    estimator = make_action_values(values, hard=hard)
    state = estimator.init(KEY, jnp.float32(0.0))
    judged, value = estimator.judge(state, episode)
    np.testing.assert_allclose(judged.reward, [earned, [0.0, 0.0]], rtol=1e-6)
    metrics = estimator.describe(episode, value)
    assert float(metrics["action_value_accuracy"].value) == 0.5
    np.testing.assert_allclose(metrics["action_value_loss"], (np.log(4 / 3) + np.log(4.0)) / 2, rtol=1e-5)
    # Slopes of V none, of Q the mean of 3/4 - 1 and 1/4 - 1.
    np.testing.assert_allclose(estimator.fit(state, KEY, episode, value).opt_state, [0.0, -0.5], rtol=1e-6)

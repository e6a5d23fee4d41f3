"""Judged steps: which are good, which is to blame, how alike actions are, and what the learner is shown."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.learners.seagent import judge_steps, likeness, with_judged_steps
from jaxagents.types import Layout, Learner

KEY = jax.random.key(4)
LAYOUT = Layout(prompt=1, observation=1, thought=0, action=3, num_turns=3, context_turns=1)


@pytest.fixture
def episode(make_episode):
    """A success, a failure whose second step is wrong, one without a wrong step, and one that a filter dropped."""
    reward = [[0, 0, 1.0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    right = jnp.array([[1.0, 1.0, 2.0], [1.0, 1.0, 2.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    made = make_episode(reward, [[3, 3, 3], [3, 3, 3], [3, 3, 0], [3, 3, 3]], keep=jnp.array([True, True, True, False]))
    tokens = jnp.broadcast_to(jnp.array([[[0, 7, 8, 9]]]), (4, 3, 4))
    return made.replace(extras={"right": right}, tokens=tokens, layout=LAYOUT, group=jnp.arange(4))


def test_steps_before_the_first_wrong_one_are_good_and_it_is_to_blame(episode):
    good, blamed = jax.jit(judge_steps, static_argnums=1)(episode, "right")
    np.testing.assert_array_equal(good, [[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(blamed, [[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]])
    with pytest.raises(ValueError, match="`part` must be an entry of `episode.extras`, got 'step'; there is right"):
        judge_steps(episode, "step")


@pytest.mark.parametrize(
    ("words", "length", "expected"),
    [
        ([7, 8, 9], 3, 2.0),
        ([7, 8, 1], 3, 1.5),
        ([7, 8, 9], 2, 1.5),  # The end is missing.
        ([7, 1, 8], 3, 1.0),
        ([1, 8, 9], 3, 0.0),  # Another kind.
        ([7, 8, 9], 0, 0.0),
    ],
)
def test_likeness_is_that_of_the_kind_and_then_of_the_rest(episode, words, length, expected):
    tokens = episode.tokens.at[:, :, 1:].set(jnp.array(words)[None, None])
    mask = episode.action_mask & (jnp.arange(4)[None, None] <= length)
    actual = likeness(episode.replace(tokens=tokens, action_mask=mask), episode)
    np.testing.assert_allclose(actual[0], [expected] * 3)


@struct.dataclass
class Seen:
    """Stands for what is learned: parameters, and fields of the last batch."""

    params: jax.Array
    batch: dict


NAMES = ("reward", "action_mask", "control", "group", "keep", "tokens")


def test_the_learner_is_shown_fresh_actions_in_groups_and_the_steps_to_blame(episode):
    def utter(params, key, rows):
        """Says the third word otherwise in every second row."""
        odd = jnp.arange(rows.tokens.shape[0]) % 2 == 1
        return rows.replace(tokens=jnp.where(odd[:, None, None] & (jnp.arange(4)[None, None] == 3), 1, rows.tokens))

    def update(state, key, batch):
        return Seen(state.params, {name: jnp.asarray(getattr(batch, name), jnp.float32) for name in NAMES}), {}

    shapes = {"reward": (6, 3), "action_mask": (6, 3, 4), "tokens": (6, 3, 4)}
    nothing = {name: jnp.zeros(shapes.get(name, (6,))) for name in NAMES}
    inside = Learner(init=lambda key, start=None: Seen(jnp.float32(1.0), nothing), update=update)
    options = {"part": "right", "num_positives": 2, "num_negatives": 2, "num_samples": 2}
    learner = with_judged_steps(inside, utter, **options)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, episode)
    batch = {name: np.asarray(leaf) for name, leaf in state.inner.batch.items()}
    np.testing.assert_array_equal(batch["group"], [0, 0, 1, 1, 2, 3])
    np.testing.assert_array_equal(batch["control"], [0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(batch["keep"], np.ones(6))
    # Good steps alone count, and every second row was less like them.
    steps = batch["action_mask"][:, :, 1]
    for row in range(4):
        assert steps[row].tolist() in ([1, 1, 1], [1, 0, 0], [1, 1, 0])
        np.testing.assert_allclose(batch["reward"][row], steps[row] * (1.5 if row % 2 else 2.0))
    # The only step to blame comes twice, as it was said.
    np.testing.assert_array_equal(steps[4:], [[0, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(batch["tokens"][4:, 1], [[0, 7, 8, 9]] * 2)
    np.testing.assert_allclose([metrics["good_steps"], metrics["blamed_steps"]], [6 / 11, 1 / 11], rtol=1e-6)
    # Where nobody failed there is nothing to blame.
    fine = episode.replace(reward=episode.reward.at[:, 0].set(1.0))
    state, _ = learner.update(learner.init(KEY), KEY, fine)
    assert not np.asarray(state.inner.batch["action_mask"])[4:].any()
    np.testing.assert_array_equal(state.inner.batch["keep"][4:], 0.0)


def test_what_the_learner_draws_is_other_than_what_the_steps_are_drawn_by(episode):
    """A learner that splits its key, as those with minibatches do, gets none of the keys that are used already."""
    uttered = []

    def utter(params, key, rows):
        uttered.append(jax.random.key_data(key).tolist())
        return rows

    def update(state, key, batch):
        return Seen(state.params, {"key": jax.random.key_data(key)}), {}

    inside = Learner(init=lambda key, start=None: Seen(jnp.float32(1.0), {}), update=update)
    learner = with_judged_steps(inside, utter, part="right", num_positives=1, num_negatives=1, num_samples=1)
    state, _ = learner.update(learner.init(KEY), KEY, episode)
    own = jax.random.wrap_key_data(state.inner.batch["key"])
    used = [jax.random.key_data(KEY).tolist(), *uttered]
    for count in (2, 3, 4):
        assert not any(key in used for key in jax.random.key_data(jax.random.split(own, count)).tolist())
    assert jax.random.key_data(own).tolist() not in used

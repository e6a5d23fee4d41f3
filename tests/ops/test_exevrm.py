"""Screens: what is left of episodes, which tokens are read again, and as many by whole observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.exevrm import prune_unchanged, screens_of, subsample
from jaxagents.types import Layout

LAYOUT = Layout(prompt=1, observation=6, thought=0, action=2, num_turns=4, context_turns=1)
# Marks 1 and 2 around up to four words, 0 for none; then an action.
WORDS = [
    [[5, 6, 7, 0], [5, 8, 7, 4], [5, 8, 0, 0], [5, 6, 7, 0]],
    [[5, 6, 7, 0], [5, 6, 7, 0], [9, 9, 9, 9], [9, 9, 9, 9]],  # Of which the last two turns did not take place.
    [[5, 6, 7, 0], [9, 9, 9, 9], [9, 9, 9, 9], [9, 9, 9, 9]],
    [[5, 6, 7, 0], [5, 8, 7, 4], [5, 8, 0, 0], [5, 6, 7, 0]],  # A filter dropped it.
]


@pytest.fixture
def episode(make_episode):
    turns = np.array([4, 2, 1, 4])
    valid = np.arange(4)[None] < turns[:, None]
    words = np.array(WORDS)
    marks = np.ones_like(words[..., :1])
    tokens = np.concatenate([marks, words, 2 * marks, 7 * marks, 3 * marks], axis=2)
    made = make_episode(valid * 0.5, valid * 2, slot=8, keep=jnp.array([True, True, True, False]))
    there = jnp.asarray((tokens > 0) & valid[..., None])
    acted = there & (jnp.arange(8) >= 6)[None, None]
    return made.replace(
        tokens=jnp.asarray(tokens), token_mask=there, action_mask=acted, layout=LAYOUT, extras={"score": made.reward}
    )


def test_prompt_and_observations_are_left_and_the_end_of_the_last_one_is_asked(episode):
    screens = jax.jit(screens_of)(episode)
    lengths = np.asarray(screens.token_mask).sum(axis=2)
    np.testing.assert_array_equal(lengths, [[5, 6, 4, 5], [5, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]])
    assert not np.asarray(screens.token_mask)[..., 6:].any() and not np.asarray(screens.tokens)[..., 6:].any()
    # After one token of the prompt; actions are not counted.
    np.testing.assert_array_equal(screens.position[0, :2, :6], [[1, 2, 3, 4, 5, 5], [6, 7, 8, 9, 10, 11]])
    asked = np.argwhere(np.asarray(screens.action_mask)).tolist()
    assert asked == [[0, 3, 6], [1, 1, 6], [2, 0, 6]]
    np.testing.assert_array_equal(screens.valid, np.asarray(episode.valid) & np.array([[1], [1], [1], [0]], bool))
    assert screens.layout.context_turns == 4 and screens.keep is None and not screens.extras


def test_nothing_of_what_was_done_is_left(episode):
    other = episode.replace(
        tokens=episode.tokens.at[..., 6:].set(11),
        behavior_log_prob=episode.behavior_log_prob - 1.0,
        reward=episode.reward + 1.0,
        action_mask=episode.action_mask.at[..., 7].set(False),
        token_mask=episode.token_mask.at[..., 7].set(False),
    )
    one, two = screens_of(episode), screens_of(other)
    names = ("tokens", "token_mask", "action_mask", "position", "behavior_log_prob", "reward")
    for name in names:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    for keep in (prune_unchanged, subsample):
        np.testing.assert_array_equal(keep(one).token_mask, keep(two).token_mask)


def test_tokens_that_did_not_change_at_their_place_are_dropped(episode):
    screens = screens_of(episode)
    pruned = jax.jit(prune_unchanged)(screens)
    expected = [
        [[1, 1, 1, 1, 0, 1], [1, 0, 1, 0, 1, 1], [1, 0, 0, 0, 0, 1], [1, 0, 1, 1, 0, 1]],  # 7 was away, and is back.
        [[1, 1, 1, 1, 0, 1], [1, 0, 0, 0, 0, 1], [0] * 6, [0] * 6],
        [[1, 1, 1, 1, 0, 1], [0] * 6, [0] * 6, [0] * 6],
        [[0] * 6] * 4,
    ]
    np.testing.assert_array_equal(pruned.token_mask[..., :6], np.array(expected, bool))
    np.testing.assert_array_equal(pruned.position, screens.position)
    again = prune_unchanged(screens.replace(tokens=screens.tokens.at[0, 1, 1].set(6)))  # A change, and one back.
    np.testing.assert_array_equal(np.asarray(again.token_mask)[0, :3, 1], [True, True, True])


def test_whole_observations_up_to_the_last_need_no_more_than_what_changed(episode):
    """What changed is 15, 7, 5 and 0 tokens; all are 20, 10, 5 and 0, every second one 11 and 5."""
    screens = screens_of(episode)
    few = jax.jit(subsample)(screens)
    lengths = np.asarray(few.token_mask).sum(axis=2)
    np.testing.assert_array_equal(lengths, [[0, 6, 0, 5], [0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]])
    assert (lengths.sum(axis=1) <= np.asarray(prune_unchanged(screens).token_mask).sum(axis=(1, 2))).all()

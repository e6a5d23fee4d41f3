"""Pairs of an expert's episodes and own failures, against choices made by hand."""

import jax.numpy as jnp
import numpy as np

from jaxagents.ops.expert_pairs import agreeing_steps, expert_against_failures
from jaxagents.types import Demonstrated


def test_demonstrations_are_preferred_to_own_failures_alone(make_episode):
    """Two tasks of three own episodes; the expert failed at the second one."""
    shown = make_episode(np.ones((2, 1)), np.ones((2, 1)), group=[0, 1], success=jnp.array([True, False]))
    won = jnp.array([True, False, False, False, True, False])
    own = make_episode(np.arange(6.0)[:, None], np.ones((6, 1)), group=[0, 0, 0, 1, 1, 1], success=won)
    pairs = expert_against_failures(Demonstrated(own=own, demonstration=shown))
    np.testing.assert_array_equal(pairs.pair, [-1, -1, -1, 0, 0, -1, -1, -1])
    np.testing.assert_array_equal(pairs.desirable, [True, False, *won])


def test_steps_have_to_agree_with_outcomes(make_episode):
    """Groups of an expert's row and own ones, in turns of one token; the second turn alone counts but in group 0."""
    cases = [  # group, success, score of the step, counts from the first turn on, row that is preferred to it
        (0, True, 0.0, True, -1),
        (0, False, 0.0, True, 0),  # Whole episodes: the outcome alone.
        (1, True, 0.8, False, -1),
        (1, False, 0.5, False, 2),
        (1, False, 0.795, False, -1),  # As good a step: that it failed came later.
        (2, False, 0.2, False, 6),  # The expert's own row, which failed.
        (2, True, 0.6, False, -1),
        (2, True, 0.3, False, -1),
        (3, False, 0.0, False, -1),  # Nobody succeeded.
        (3, False, 0.9, False, -1),
        (4, True, 0.1, False, -1),
        (4, False, 0.4, False, -1),  # The better step failed.
        (5, True, 1.0, False, -1),
        (5, False, 0.0, False, -1),  # Not kept.
    ]
    group, success, score, whole, preferred = (np.array(column) for column in zip(*cases))
    keep = jnp.arange(14) < 13
    rows = make_episode(
        np.stack([0.0 * score, score], axis=1),
        np.stack([whole, np.ones(14)], axis=1),
        group=group,
        keep=keep,
        valid=np.ones((14, 2)),
        success=jnp.asarray(success),
    )
    pairs = agreeing_steps(rows)
    np.testing.assert_array_equal(pairs.pair, preferred)
    np.testing.assert_array_equal(pairs.desirable, success)
    np.testing.assert_array_equal(agreeing_steps(rows, threshold=0.5).pair, [-1, 0, *[-1] * 12])

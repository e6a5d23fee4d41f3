"""Choices among episodes by outcomes and steps: of features that tell everything."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import guess_number
from jaxagents.studies.process_labels import Judged, compare, run

NAMES = ("one", "any", "outcome", "steps", "both", "both_binary")


def _judged(tells_outcome):
    """Two tasks of two episodes of two steps: the second, and none, succeed; features tell labels, or also outcomes."""
    label = jnp.array([[1, -1], [1, 1], [0, -1], [-1, 0]])
    success = jnp.array([False, True, False, False])
    outcome = jnp.broadcast_to(success[:, None], label.shape) * float(tells_outcome)
    features = jnp.stack([label == 1, label == -1, outcome], axis=-1).astype(jnp.float32)
    return Judged(features, label, jnp.ones(label.shape, bool), success)


@pytest.mark.exhaustive
def test_what_is_told_is_chosen():
    judged = _judged(tells_outcome=True)
    results = compare(judged, judged, 1.0, group_size=2)
    assert [float(results[f"success_{name}"]) for name in NAMES] == [0.0, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert float(results["step_accuracy"]) == float(results["first_error_accuracy"]) == 1.0
    shares = [float(results[f"share_{name}"]) for name in ("good", "neutral", "bad")]
    np.testing.assert_allclose(shares, [3 / 8, 2 / 8, 3 / 8])
    assert float(results["step_accuracy_constant"]) == pytest.approx(3 / 8)


@pytest.mark.slow
def test_steps_decide_where_outcomes_are_not_told():
    """Of episodes that the outcome model cannot tell apart, the first one is taken, and steps choose the other."""
    judged = _judged(tells_outcome=False)
    silent = judged._replace(features=judged.features.at[:, 1].set(0.0))  # Of last steps, which outcomes are read from.
    results = compare(silent, silent, 1.0, group_size=2)
    assert float(results["success_outcome"]) == 0.0
    swapped = compare(judged, judged._replace(success=~judged.success), 1.0, group_size=2)
    assert float(swapped["success_steps"]) == 0.5


def test_the_distance_must_be_known():
    world = guess_number.make_environment()
    with pytest.raises(ValueError, match="must know the distance"):
        run(0, environment=world, policy=None, params=None)

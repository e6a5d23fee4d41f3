"""What groups have to compare, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.group_metrics import group_metrics


@pytest.fixture(scope="module")
def metrics_of():
    return jax.jit(lambda episode: {name: mean.value for name, mean in group_metrics(episode).items()})


def test_by_hand(make_episode, metrics_of):
    # Standard deviations 1 and 0 of two and one episodes; states 4 and 5 are met by both of the first group.
    fingerprint = jnp.asarray([[4, 5, 6], [5, 4, 0], [4, 7, 0]], jnp.uint32)
    episode = make_episode(
        [[0, 0, 2], [0, 0, 0], [1, 1, 0]], [[1, 1, 1], [2, 1, 0], [1, 1, 0]], group=[0, 0, 1], fingerprint=fingerprint
    )
    actual = metrics_of(episode)
    np.testing.assert_allclose(actual["group_return_deviation"], 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(actual["repeated_state_rate"], 4 / 7, rtol=1e-6)
    alone = metrics_of(episode.replace(keep=jnp.asarray([True, False, True])))
    np.testing.assert_allclose(alone["group_return_deviation"], 0.0)
    np.testing.assert_allclose(alone["repeated_state_rate"], 0.0)

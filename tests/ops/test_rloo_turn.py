"""Credit of turns against numbers made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import credit
from jaxagents.ops import rloo_turn as rloo_turn_module
from jaxagents.types import EpisodeView


def rloo_turn(episode, **options):
    return rloo_turn_module.rloo_turn(EpisodeView(episode=episode), **options)


REWARD = [[1.0, 4.0], [0.0, 2.0], [1.0, 0.0], [5.0, 0.0]]


@pytest.fixture(scope="module")
def episode(make_episode):
    """Three episodes of a group, the last of them of one turn, and one alone in its group."""
    return make_episode(REWARD, [[1, 2], [1, 2], [1, 0], [1, 1]], group=[0, 0, 0, 1])


def by_turn(credit, episode):
    """Returns the advantage of the first sampled token of both turns, `[B][2]`."""
    return np.asarray(credit.advantage)[:, [0, 1], 1]


def test_turns_stand_beside_the_same_turn_by_hand(episode):
    actual = by_turn(rloo_turn(episode), episode)
    # Turn 0: 1 - (0 + 1) / 2 and so on; turn 1 took place in two of the group.
    np.testing.assert_allclose(actual, [[0.5, 2.0], [-1.0, -2.0], [0.5, 0.0], [0.0, 0.0]])
    # Returns to go of turn 0 with half of what follows: 3, 1, 1.
    actual = by_turn(rloo_turn(episode, discount=0.5), episode)
    np.testing.assert_allclose(actual, [[2.0, 2.0], [-1.0, -2.0], [-1.0, 0.0], [0.0, 0.0]])


def test_one_turn_is_rloo(make_episode):
    single = make_episode([[1.0], [0.0], [3.0], [2.0]], [[2], [1], [3], [1]], group=[0, 0, 0, 1])
    np.testing.assert_allclose(
        rloo_turn(single).advantage, credit.rloo(EpisodeView(episode=single)).advantage, atol=1e-6
    )


def test_dropped_rows_count_nowhere(make_episode):
    dropped = make_episode(REWARD, [[1, 1]] * 4, keep=jnp.array([True, True, False, True]))
    actual = by_turn(rloo_turn(dropped), dropped)
    np.testing.assert_allclose(actual, [[-1.5, 3.0], [-3.0, 0.0], [0.0, 0.0], [4.5, -3.0]])


def test_compiled_and_over_discounts(episode):
    compiled = jax.jit(lambda discount: rloo_turn(episode, discount=discount).advantage)
    several = jax.vmap(compiled)(jnp.array([0.0, 0.5]))
    for row, discount in enumerate((0.0, 0.5)):
        expected = rloo_turn(episode, discount=discount).advantage
        np.testing.assert_allclose(compiled(discount), expected, rtol=1e-6)
        np.testing.assert_allclose(several[row], expected, rtol=1e-6)

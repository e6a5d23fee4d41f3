"""Experience from parameters of some updates ago."""

import jax
import pytest

from jaxagents.learners.lagged import with_lagged_actor
from tests.fakes import COUNTING

KEY = jax.random.key(0)


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [0, 2, 2, 4, 4]), (3, [0, 0, 3, 3, 3])])
def test_the_actor_is_renewed_every_so_many_updates(every, expected):
    learner = with_lagged_actor(COUNTING, every=every)
    state, acting = learner.init(KEY), []
    assert float(learner.acting(state)) == 0.0
    for _ in expected:
        state, _ = learner.update(state, KEY, None)
        acting.append(int(learner.acting(state)))
    assert acting == expected and int(state.params) == len(expected)


def test_whom_the_inner_learner_acts_with_lags():
    learner = with_lagged_actor(COUNTING._replace(acting=lambda state: -state.params), every=2)
    state = learner.init(KEY)
    for _ in range(3):
        state, _ = learner.update(state, KEY, None)
    assert float(learner.acting(state)) == -2.0


def test_the_period_is_positive():
    with pytest.raises(ValueError, match="`every` must be a positive number, got 0"):
        with_lagged_actor(COUNTING, every=0)

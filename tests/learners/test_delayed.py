"""Rollouts that were played a fixed number of updates ago."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.learners.delayed import unaware_of_delay, with_delayed_actor
from jaxagents.types import Learner, Policy
from tests.fakes import make_rollout

KEY = jax.random.key(0)


@struct.dataclass
class Counting:
    """Counts its updates, and keeps the probabilities that it was told."""

    params: jax.Array
    prob: jax.Array


def count(state, key, rollout):
    prob = state.prob if rollout is None else rollout.transition.behavior_log_prob
    return state.replace(params=state.params + 1.0, prob=prob), {}


COUNTING = Learner(init=lambda key, start=None: Counting(params=jnp.zeros(()), prob=jnp.zeros((2, 1))), update=count)


@pytest.mark.parametrize(
    ("delay", "longest", "expected"),
    [(0, None, [1, 2, 3, 4, 5]), (0, 3, [1, 2, 3, 4, 5]), (2, None, [0, 0, 1, 2, 3]), (2, 4, [0, 0, 1, 2, 3])],
)
def test_the_actor_is_so_many_updates_old(delay, longest, expected):
    learner = with_delayed_actor(COUNTING, delay=delay, longest=longest)
    state, acting = learner.init(KEY), []
    assert float(learner.acting(state)) == 0.0
    for _ in expected:
        state, _ = jax.jit(learner.update)(state, KEY, None)
        acting.append(int(learner.acting(state)))
    assert acting == expected and int(state.params) == len(expected)


def test_delays_share_a_program():
    short, long = (with_delayed_actor(COUNTING, delay=delay, longest=3).init(KEY) for delay in (1, 3))
    assert jax.tree.map(jnp.shape, short) == jax.tree.map(jnp.shape, long)
    assert int(short.delay) == 1 and int(long.delay) == 3


def test_whom_the_inner_learner_acts_with_is_late():
    learner = with_delayed_actor(COUNTING._replace(acting=lambda state: -state.params), delay=1)
    state = learner.init(KEY)
    for _ in range(3):
        state, _ = learner.update(state, KEY, None)
    assert float(learner.acting(state)) == -2.0


class Bernoulli:
    """Action 1 with probability `exp(-params)`."""

    def __init__(self, rate):
        self.rate = rate

    def log_prob(self, action):
        return jnp.where(action == 1, -self.rate, jnp.log1p(-jnp.exp(-self.rate)))


def test_the_unaware_take_probabilities_for_their_own():
    policy = Policy(
        init=lambda key: jnp.zeros(()),
        initial_carry=lambda shape: (),
        apply=lambda params, carry, seen: (carry, Bernoulli(params)),
    )
    rollout = make_rollout(
        (2, 1), action=jnp.asarray([[1], [0]]), behavior_log_prob=jnp.log(jnp.asarray([[0.5], [0.25]]))
    )
    learner = unaware_of_delay(COUNTING, policy)
    state = learner.init(KEY)
    state = state.replace(inner=state.inner.replace(params=jnp.log(jnp.float32(4.0))))  # Action 1 with 1/4, 0 with 3/4.
    state, metrics = learner.update(state, KEY, rollout)
    np.testing.assert_allclose(jnp.exp(state.inner.prob), [[0.25], [0.75]], rtol=1e-6)
    # (ln 2 + ln 1/3) / 2
    np.testing.assert_allclose(metrics["staleness"], -0.2027, atol=1e-4)


@pytest.mark.parametrize(("delay", "longest"), [(-1, None), (3, 2)])
def test_no_more_is_kept_than_said(delay, longest):
    with pytest.raises(ValueError, match="`delay` must be from 0 to `longest`, got"):
        with_delayed_actor(COUNTING, delay=delay, longest=longest)

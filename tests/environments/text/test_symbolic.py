"""The symbolic interface: the same world with actions by number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import tmaze
from jaxagents.environments.text import bandit
from jaxagents.environments.text.symbolic import symbolic
from jaxagents.types import Discrete

KEY = jax.random.key(0)


@pytest.mark.exhaustive
def test_an_action_is_a_row_of_the_actions():
    spoken = bandit.make_environment((2,), (0.0,), num_pulls=2)
    silent = symbolic(spoken)
    assert silent.action_space == Discrete(16) and silent.text is None
    assert silent.observation_space == spoken.observation_space and silent.max_steps == 2
    task = spoken.sample_task(KEY)
    state, first = spoken.reset(KEY, task)
    number = int(np.flatnonzero(first.action_mask)[0])
    expected = spoken.step(KEY, state, jnp.asarray(spoken.text.actions[number]))
    for one, other in zip(jax.tree.leaves(silent.step(KEY, state, jnp.asarray(number))), jax.tree.leaves(expected)):
        np.testing.assert_array_equal(one, other)
    assert bool(expected[1].info["valid"])


def test_other_worlds_are_refused():
    with pytest.raises(ValueError, match="`environment` must be a text world, got t-maze"):
        symbolic(tmaze.make_environment())

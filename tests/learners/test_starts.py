"""What survives a change of stage: all that was learned, from a state of the same kind; else the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.ppo import make_ppo
from jaxagents.learners.sac import make_sac
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.policies.tanh_normal import make_tanh_normal_policy
from jaxagents.types import Box, Discrete
from jaxagents.values.q_function import make_q_function, make_twin_q

SEEN, MOVES = Box((2,)), Box((1,), low=-1.0, high=1.0)
ENCODER = MLP(hidden_sizes=(3,))


def ppo(**options):
    return make_ppo(make_actor_critic(SEEN, Discrete(2), encoder=ENCODER), make_adam(learning_rate=0.1), **options)


def dqn(**options):
    return make_dqn(make_q_function(SEEN, Discrete(2), encoder=ENCODER), make_adam(learning_rate=0.1), **options)


def sac(**options):
    policy, twin_q = (make(SEEN, MOVES, encoder=ENCODER) for make in (make_tanh_normal_policy, make_twin_q))
    return make_sac(policy, twin_q, *(make_adam(learning_rate=0.1) for _ in range(3)), MOVES, **options)


MAKERS = {"ppo": ppo, "dqn": dqn, "sac": sac}
LEARNED = {
    "ppo": ("params",),
    "dqn": ("network", "target_network"),
    "sac": ("params", "critic", "target_critic", "log_temperature"),
}


def moments(state):
    """Returns the moments of the optimisers."""
    opt_state = state.opt_states if hasattr(state, "opt_states") else state.opt_state
    leaves = jax.tree_util.tree_leaves_with_path(opt_state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if ".mu" in jax.tree_util.keystr(path)}


def assert_equal(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_of_the_same_kind_gives_all_that_it_learned(name):
    later = MAKERS[name](discount=0.5)
    before = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), MAKERS[name]().init(jax.random.key(1)))
    state = jax.jit(later.init)(jax.random.key(2), before)
    for field in LEARNED[name]:
        assert_equal(getattr(state, field), getattr(before, field))
    assert len(moments(state)) > 0
    assert_equal(moments(state), moments(before))
    assert float(state.settings.numbers["discount"]) == 0.5
    assert int(getattr(state, "num_updates", 0)) == 0


@pytest.mark.parametrize("name", MAKERS)
def test_parameters_give_themselves_alone(name):
    learner = MAKERS[name]()
    params = jax.tree.map(lambda leaf: leaf + 1.0, learner.init(jax.random.key(1)).params)
    state, fresh = learner.init(jax.random.key(2), params), learner.init(jax.random.key(2))
    first = LEARNED[name][0]
    assert_equal(getattr(state, first), params["network"] if name == "dqn" else params)
    assert_equal(moments(state), moments(fresh))
    if name == "sac":
        assert_equal(state.critic, fresh.critic)


def test_a_state_of_another_kind_gives_its_parameters():
    params = sac().init(jax.random.key(1)).params
    other = ppo().init(jax.random.key(1)).replace(params=params)
    assert_equal(sac().init(jax.random.key(2), other).params, params)
    assert_equal(sac().init(jax.random.key(2), other).critic, sac().init(jax.random.key(2)).critic)

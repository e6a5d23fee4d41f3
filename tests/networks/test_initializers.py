import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.extend.core import jaxprs_in_params

from jaxagents.networks.initializers import orthogonal
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import CNN, MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.policies.mixture import make_mixture_policy
from jaxagents.types import Box
from jaxagents.values.q_function import make_twin_q

VECTOR, ACTIONS = Box((3,)), Box((2,), low=-1.0, high=1.0)


def decomposed(jaxpr):
    """Yields the ranks of the matrices that a program decomposes."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("qr", "geqrf", "householder_product"):
            yield equation.invars[0].aval.ndim
        for inner in jaxprs_in_params(equation.params):
            yield from decomposed(inner)


def test_orthogonal_is_that_of_flax_for_every_member():
    keys = jax.random.split(jax.random.key(0), 3)
    ours = jax.jit(jax.vmap(lambda key: orthogonal(2.0)(key, (3, 4))))(keys)
    theirs = jnp.stack([nn.initializers.orthogonal(2.0)(key, (3, 4)) for key in keys])
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(ours @ ours.swapaxes(1, 2), np.broadcast_to(4.0 * np.eye(3), (3, 3, 3)), atol=1e-5)


@pytest.mark.parametrize(
    "init",
    [
        make_actor_critic(VECTOR, ACTIONS, encoder=MLP((4,))).init,
        make_mixture_policy(VECTOR, ACTIONS, encoder=MLP((4,)), num_components=2).init,
        make_twin_q(VECTOR, ACTIONS, encoder=MLP((4,))).init,
        lambda key: GRU(4).init(key, jnp.zeros((1, 4)), jnp.zeros((1, 1, 3)), jnp.zeros((1, 1), bool)),
        lambda key: CNN().init(key, jnp.zeros((1, 10, 10, 2))),
    ],
    ids=["actor_critic", "mixture", "critics", "recurrent", "convolution"],
)
def test_seeds_side_by_side_decompose_one_matrix_at_a_time(init):
    """Batched decompositions on all threads of XLA:CPU wait for each other for ever (jaxlib 0.10.2)."""
    traced = jax.make_jaxpr(jax.vmap(init))(jax.random.split(jax.random.key(0), 2))
    assert set(decomposed(traced.jaxpr)) == {2}
    batched = jax.make_jaxpr(jax.vmap(lambda key: nn.initializers.orthogonal()(key, (2, 2))))
    assert 3 in decomposed(batched(jax.random.split(jax.random.key(0), 2)).jaxpr)

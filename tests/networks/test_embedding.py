"""Embeddings of words: which row is looked up, what pads and unknown ids give, and where gradients go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.embedding import Embedding
from jaxagents.networks.torsos import MLP

PARAMS = {"params": {"embedding": jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}}
MODULE = Embedding(num_words=3, features=2)


def test_rows_are_joined_in_order_and_pads_are_zero():
    features = MODULE.apply(PARAMS, jnp.asarray([[2, 0, -1], [-1, 1, 1]]))
    assert features.tolist() == [[5, 6, 1, 2, 0, 0], [0, 0, 3, 4, 3, 4]]


def test_unknown_ids_are_loud():
    features = MODULE.apply(PARAMS, jnp.asarray([3, 0]))
    assert np.isnan(features).tolist() == [True, True, False, False]


def test_gradients_go_to_the_words_that_were_seen():
    gradient = jax.grad(lambda params: jnp.sum(MODULE.apply(params, jnp.asarray([0, 0, -1, 2]))))(PARAMS)
    assert gradient["params"]["embedding"].tolist() == [[2, 2], [0, 0], [1, 1]]


def test_leading_axes_are_free_and_the_torso_comes_last():
    module = Embedding(num_words=5, features=4, torso=MLP((8,)))
    ids = jax.random.randint(jax.random.key(0), (2, 3, 6), -1, 5)
    params = jax.jit(module.init)(jax.random.key(1), ids)
    assert params["params"]["torso"]["Dense_0"]["kernel"].shape == (24, 8)
    features = jax.jit(module.apply)(params, ids)
    assert features.shape == (2, 3, 8)
    np.testing.assert_allclose(
        jax.vmap(jax.vmap(module.apply, (None, 0)), (None, 0))(params, ids), features, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_sizes_below_one_are_refused(sizes):
    with pytest.raises(ValueError, match="`num_words` and `features` must be at least 1"):
        Embedding(*sizes)

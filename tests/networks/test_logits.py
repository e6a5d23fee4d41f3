import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.decoder import make_logits

HIDDEN = jax.random.normal(jax.random.key(0), (2, 3, 8))
KERNEL = jax.random.normal(jax.random.key(1), (8, 5))
COTANGENT = jax.random.normal(jax.random.key(2), (2, 3, 5))


def loss(hidden, kernel):
    return jnp.sum(COTANGENT * make_logits(hidden, kernel))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_logits_and_gradients_are_those_of_a_product_up_to_the_rounding_of_inputs(dtype):
    hidden, kernel = HIDDEN.astype(dtype), KERNEL.astype(dtype)
    logits = make_logits(hidden, kernel)
    assert logits.dtype == jnp.float32
    exact = np.asarray(hidden, np.float64), np.asarray(kernel, np.float64)
    np.testing.assert_allclose(logits, exact[0] @ exact[1], rtol=1e-5, atol=1e-5)  # Sums are not rounded to `dtype`.
    of_hidden, of_kernel = jax.grad(loss, argnums=(0, 1))(hidden, kernel)
    assert of_hidden.dtype == of_kernel.dtype == dtype
    cotangent = np.asarray(COTANGENT, np.float64)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == jnp.float32 else {"rtol": 0.02, "atol": 0.05}
    np.testing.assert_allclose(np.asarray(of_hidden, np.float64), cotangent @ exact[1].T, **tolerance)
    np.testing.assert_allclose(
        np.asarray(of_kernel, np.float64), np.einsum("bld,blv->dv", exact[0], cotangent), **tolerance
    )


def test_products_of_the_backward_pass_have_inputs_of_half_precision():
    half = HIDDEN.astype(jnp.bfloat16), KERNEL.astype(jnp.bfloat16)
    equations = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*half).eqns
    products = [equation for equation in equations if equation.primitive.name == "dot_general"]
    assert len(products) == 2  # The forward product is not needed for gradients.
    assert {str(var.aval.dtype) for equation in products for var in equation.invars} == {"bfloat16"}

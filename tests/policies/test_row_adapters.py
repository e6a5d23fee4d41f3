"""Rows with adapters of their own are what each adapter gives alone, and what one linear layer gives by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxagents.language.generate import Sampling, generate
from jaxagents.networks.adapters import ia3, lora
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.language_model import make_language_model
from jaxagents.policies.row_adapters import choose_adapters, stack_adapters

CHOICE = (1, 0, -1, 1)


def trained(adapter, seed, params):
    """Returns parameters of an adapter that change something."""
    own = adapter.init(jax.random.key(seed), params)
    leaves, tree = jax.tree.flatten(own)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return tree.unflatten(
        [leaf + 0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    )


@functools.cache
def tiny(scan_layers: bool):
    sizes = {"num_layers": 2, "features": 16, "num_heads": 4, "num_kv_heads": 2, "hidden_features": 24}
    network = functools.partial(Decoder, **sizes, scan_layers=scan_layers)
    model = make_language_model(13, network=network)
    params = model.init(jax.random.key(0))
    adapters = (
        lora(rank=3, alpha=6.0),
        lora(pattern=r"(query|up)/kernel$", rank=2, alpha=4.0, rank_stabilized=True),
    )
    return model, params, [(adapter, trained(adapter, seed, params)) for seed, adapter in enumerate(adapters)]


def test_a_linear_layer_by_hand():
    dense = nn.Dense(1)
    model = tiny(True)[0]._replace(apply=dense.apply)
    params = {"params": {"kernel": jnp.array([[1.0], [2.0]]), "bias": jnp.array([0.5])}}
    adapter = lora(pattern="kernel$", rank=1, alpha=2.0)
    owns = [{"params/kernel": {"a": jnp.array([[1.0], [k]]), "b": jnp.array([[k]])}} for k in (1.0, 3.0)]
    stacked = stack_adapters(params, [(adapter, own) for own in owns])
    x = jnp.array([[[1.0, 1.0], [1.0, 0.0]]] * 3)
    rows = choose_adapters(model, jnp.array([0, 1, -1])).apply(stacked, x)
    # x W + bias is 3.5 and 1.5; the changes are 2 (1 + k) k and 2 k.
    np.testing.assert_allclose(rows[..., 0], [[3.5 + 4.0, 1.5 + 2.0], [3.5 + 24.0, 1.5 + 6.0], [3.5, 1.5]])
    tokens = choose_adapters(model, jnp.array([[0, 1], [1, -1], [-1, 0]])).apply(stacked, x)
    np.testing.assert_allclose(tokens[..., 0], [[7.5, 7.5], [27.5, 1.5], [3.5, 3.5]])
    np.testing.assert_allclose(model.apply(stacked, x)[..., 0], [[3.5, 1.5]] * 3)
    first = choose_adapters(model, jnp.array([0]))
    gradient = jax.grad(lambda params: first.apply(params, x[:1]).sum(), allow_int=True)(stacked)["params"]
    np.testing.assert_allclose(gradient["lora_b"], [[3.0], [0.0]])  # x A is 2 and 1; of the other one, nothing.
    np.testing.assert_allclose(gradient["lora_a"], [[4.0, 0.0], [2.0, 0.0]])  # The sum of x, times 2 B.


@pytest.mark.parametrize("scan_layers", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_rows_are_those_of_each_adapter_alone(scan_layers):
    model, params, adapters = tiny(scan_layers)
    stacked = stack_adapters(params, adapters)
    tokens = jax.random.randint(jax.random.key(3), (4, 6), 0, 13)
    mask, keys = jnp.ones((4, 6), bool).at[1, :2].set(False), jax.random.split(jax.random.key(4), 4)
    options = {"keys": keys, "max_new_tokens": 3, "sampling": Sampling(greedy=True)}
    together = jax.jit(lambda params: generate(choose_adapters(model, CHOICE), params, tokens, mask, **options))(
        stacked
    )
    alone = jax.jit(lambda params: generate(model, params, tokens, mask, **options))
    each = [alone(adapter.merge(params, own)) for adapter, own in adapters] + [alone(params)]
    assert len({str(np.asarray(one.log_prob[0])) for one in each}) == 3
    for row, chosen in enumerate(CHOICE):
        np.testing.assert_array_equal(together.tokens[row], each[chosen].tokens[row])
        np.testing.assert_allclose(together.log_prob[row], each[chosen].log_prob[row], rtol=1e-4, atol=1e-5)


def test_other_adapters_are_refused():
    _, params, _ = tiny(False)
    for adapter, kind in ((ia3(), "ia3"), (lora(magnitude=True), "DoRA")):
        own = adapter.init(jax.random.key(0), params)
        with pytest.raises(ValueError, match=f"`adapters` must be LoRA without magnitudes, got .*{kind}"):
            stack_adapters(params, [(adapter, own)])
    with pytest.raises(ValueError, match="`adapters` must be at least one"):
        stack_adapters(params, [])

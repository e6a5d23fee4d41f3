"""What is computed again in the backward pass changes no gradient; decoding copies no stack of caches."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks import decoder_layers
from jaxagents.networks.attention import causal_mask
from jaxagents.networks.decoder import Decoder

SIZES = {"vocab_size": 11, "num_layers": 2, "features": 8, "num_heads": 2, "hidden_features": 12}


def gradient(remat):
    decoder = Decoder(**SIZES, scan_layers=True, remat=remat)
    tokens, mask = jnp.arange(6).reshape(2, 3), jnp.broadcast_to(jnp.tril(jnp.ones((3, 3), bool)), (2, 3, 3))
    params = decoder.init(jax.random.key(0), tokens, tokens % 3, mask, method="everything")
    total = jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(decoder.apply(params, tokens, tokens % 3, mask)))))
    return total(params)


@pytest.mark.slow
def test_policies_of_remat_change_no_gradient():
    wanted = gradient(False)
    assert any(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(wanted))
    for remat in (True, "dots_with_no_batch_dims_saveable", "nothing_saveable"):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), gradient(remat), wanted)


@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_decoding_through_scanned_layers_copies_no_stack_of_caches(num_kv_heads):
    """On CPUs, two copies of the whole stack for every layer made a token nine times as slow."""
    sizes = SIZES | {"num_layers": 6, "features": 64, "num_heads": 4, "num_kv_heads": num_kv_heads}
    decoder = Decoder(**sizes, scan_layers=True)
    tokens, mask = jnp.zeros((16, 1), jnp.int32), jnp.ones((16, 1, 64), bool)
    params = decoder.init(jax.random.key(0), tokens, tokens, mask[..., :1], method="everything")
    cache = decoder.apply(params, 16, 64, method="init_cache")

    def decode(params, cache):
        def step(index, cache):
            return decoder.apply(params, cache, tokens, tokens, index, mask, method="extend")[0]

        return jax.lax.fori_loop(0, 5, step, cache)

    program = jax.jit(decode, donate_argnums=1).lower(params, cache).compile().as_text()
    stack = re.escape(f"f32[{','.join(map(str, cache.key.shape))}]")
    assert re.search(rf"= {stack}\S* [\w-]+\(", program)
    assert not re.search(rf"= {stack}\S* copy\(", program)


def test_a_sight_is_causal_and_bits_are_not_taken_to_be(monkeypatch):
    masks = []

    def spy(query, key, value, bias, *, causal):
        masks.append(causal)
        return query

    monkeypatch.setattr(decoder_layers, "attend", spy)
    decoder, tokens = Decoder(**SIZES), jnp.zeros((1, 4), jnp.int32)
    params = decoder.init(jax.random.key(0), tokens, tokens, jnp.ones((1, 4, 4), bool))
    assert set(masks) == {False}
    masks.clear()
    decoder.apply(params, tokens, tokens, causal_mask(jnp.ones((1, 4), bool)))
    assert masks == [True, True]


def test_unknown_policies_of_remat_are_refused():
    with pytest.raises(ValueError, match="`remat` must be true, false or a policy .* got 'dots'; there are nothing_"):
        Decoder(**SIZES, remat="dots")

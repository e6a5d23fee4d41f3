"""Adapters change what their papers say, start as nothing, and are refused where they find nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.adapters import combine, full, ia3, lora

PARAMS = {
    "params": {
        "Dense_0": {"kernel": jnp.arange(6.0).reshape(2, 3) + 1.0, "bias": jnp.ones(3)},
        "Dense_1": {"kernel": jnp.ones((3, 1)), "bias": jnp.zeros(1)},
        "embedding": jnp.arange(8.0).reshape(4, 2),
    }
}
FIRST = "params/Dense_0/kernel"


def test_low_rank_change_by_hand():
    adapter = lora(pattern="Dense_0/kernel$", rank=1, alpha=3.0)
    own = {FIRST: {"a": jnp.array([[1.0], [2.0]]), "b": jnp.array([[1.0, 0.0, -1.0]])}}
    merged = adapter.merge(PARAMS, own)["params"]
    np.testing.assert_allclose(merged["Dense_0"]["kernel"], [[4.0, 2.0, 0.0], [10.0, 5.0, 0.0]])
    np.testing.assert_array_equal(merged["Dense_1"]["kernel"], PARAMS["params"]["Dense_1"]["kernel"])
    stabilized = lora(pattern="Dense_0/kernel$", rank=4, alpha=3.0, rank_stabilized=True)
    own = {FIRST: {"a": jnp.ones((2, 4)), "b": jnp.ones((4, 3))}}
    change = stabilized.merge(PARAMS, own)["params"]["Dense_0"]["kernel"] - PARAMS["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(change, 3.0 / 2.0 * 4.0)


def test_magnitudes_by_hand():
    adapter = lora(pattern="Dense_0/kernel$", rank=1, alpha=1.0, magnitude=True)
    own = adapter.init(jax.random.key(0), PARAMS)
    np.testing.assert_allclose(own[FIRST]["magnitude"], np.sqrt([1.0 + 16.0, 4.0 + 25.0, 9.0 + 36.0]), rtol=1e-6)
    own = {FIRST: {"a": jnp.array([[0.0], [-1.0]]), "b": jnp.array([[4.0, 0.0, 0.0]]), "magnitude": jnp.full(3, 2.0)}}
    merged = adapter.merge(PARAMS, own)["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(merged[:, 0], [2.0, 0.0], atol=1e-6)  # The column (1, 0) with the norm 2.
    np.testing.assert_allclose(np.linalg.norm(merged, axis=0), 2.0, rtol=1e-6)

    def first_column(own):
        return adapter.merge(PARAMS, own)["params"]["Dense_0"]["kernel"][0, 0]

    # With the norm held fixed, 2 (1 + a b) / |(1, 0)| grows by 2 b with a.
    assert jax.grad(first_column)(own)[FIRST]["a"][0, 0] == pytest.approx(8.0)


def test_factors_by_hand():
    adapter = ia3(outputs="Dense_0/(kernel|bias)$", inputs="Dense_1/kernel$")
    own = {
        FIRST: {"outputs": jnp.array([1.0, 2.0, 0.0])},
        "params/Dense_1/kernel": {"inputs": jnp.array([1.0, 5.0, 2.0])},
    }
    assert jax.tree.structure(own) == jax.tree.structure(adapter.init(jax.random.key(0), PARAMS))
    merged = adapter.merge(PARAMS, own)["params"]
    np.testing.assert_allclose(merged["Dense_0"]["kernel"], [[1.0, 4.0, 0.0], [4.0, 10.0, 0.0]])
    np.testing.assert_allclose(merged["Dense_0"]["bias"], [1.0, 2.0, 0.0])
    np.testing.assert_allclose(merged["Dense_1"]["kernel"], [[1.0], [5.0], [2.0]])


def test_whole_parameters():
    adapter = combine({"table": full(pattern="embedding$"), "bias": full(pattern="Dense_1/bias")})
    own = adapter.init(jax.random.key(0), PARAMS)
    own = jax.tree.map(lambda leaf: leaf + 1.0, own)
    merged = adapter.merge(PARAMS, own)["params"]
    np.testing.assert_array_equal(merged["embedding"], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    np.testing.assert_array_equal(merged["Dense_1"]["bias"], [1.0])


@pytest.mark.parametrize(
    "adapter",
    [
        lora(pattern="kernel$"),
        lora(pattern="kernel$", magnitude=True),
        ia3(outputs="Dense_0", inputs=None),
        full(pattern="bias"),
    ],
)
def test_every_adapter_starts_as_nothing_and_learns(adapter):
    own = adapter.init(jax.random.key(0), PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), adapter.merge(PARAMS, own), PARAMS)

    def norm(own):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(adapter.merge(PARAMS, own)))

    assert any(np.any(leaf != 0.0) for leaf in jax.tree.leaves(jax.grad(norm)(own)))


def test_stacked_layers_are_as_many_changes():
    adapter = lora(pattern="kernel$", rank=2)
    stacked = {"params": {"layers": {"up": {"kernel": jnp.ones((3, 4, 5))}}}}
    own = adapter.init(jax.random.key(0), stacked)["params/layers/up/kernel"]
    assert own["a"].shape == (3, 4, 2) and own["b"].shape == (3, 2, 5)
    assert np.any(own["a"][0] != own["a"][1])


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`pattern` must find a parameter, got 'qery'; there are .*Dense_0/kernel"):
        lora(pattern="qery").init(jax.random.key(0), PARAMS)
    with pytest.raises(ValueError, match=r"`pattern` must find kernels, got 'Dense_0', which finds .*bias \[3\]"):
        lora(pattern="Dense_0").init(jax.random.key(0), PARAMS)
    with pytest.raises(ValueError, match="`rank` must be at least 1, got 0"):
        lora(rank=0)

"""Tests of `suite=large_lm`: both sides have the same model and count the same tokens."""

import functools

import jax
import pytest

from jaxagents.benchmarks.language import training_flops
from jaxagents.benchmarks.large_language import measure_large
from jaxagents.benchmarks.peers.torch_language import _model
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.language_model import make_language_model

NETWORK = {
    "num_layers": 2,
    "features": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "hidden_features": 48,
    "qkv_bias": True,
    "rotary_base": 1e6,
}
SETTINGS = {
    "network": NETWORK,
    "settings": {"dtype": "bfloat16"},
    "vocab_size": 50,
    "train": {"batch_size": 4, "sequence_tokens": 8, "num_updates": 2},
    "microbatch_tokens": 16,
    "microbatch_rows": 2,
    "generate": {"batch_size": 2, "prompt_tokens": 3, "num_tokens": 4},
    "peer": True,
    "peak_size": 64,
}


@functools.cache
def shapes(**settings):
    model = make_language_model(50, network=functools.partial(Decoder, **NETWORK, **settings))
    return jax.eval_shape(model.init, jax.random.key(0))


@pytest.mark.parametrize("settings", [{}, {"scan_layers": True}, {"tied_embeddings": False}])
def test_operations_are_those_of_products_with_every_token(settings):
    # Queries and output 32 x 32, keys and values 32 x 16, gate, up and down 32 x 48; logits 32 x 50 once.
    matrices = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + 32 * 50
    flops = training_flops(shapes(**settings), num_layers=2, features=32, sequence_tokens=8)
    assert flops == 6 * matrices + 12 * 2 * 32 * 8


@pytest.mark.exhaustive
def test_both_sides_have_the_same_model_and_count_the_same_tokens():
    torch = pytest.importorskip("torch")
    peer = _model(torch, NETWORK | {"vocab_size": 50}, "cpu")
    own = sum(leaf.size for leaf in jax.tree.leaves(shapes()))
    assert sum(parameter.numel() for parameter in peer.parameters()) == own
    rows, values = measure_large(SETTINGS, repeats=1, peer_device="cpu")
    assert set(rows) == {"train", "train_pytorch", "generate", "generate_pytorch"}
    assert values["num_params"] == own
    for name in ("train", "generate"):
        ratio = values[f"{name}/tokens_per_second"] / values[f"{name}_pytorch/tokens_per_second"]
        assert values[f"{name}/ratio_to_pytorch"] == pytest.approx(ratio)
    flops = training_flops(shapes(), num_layers=2, features=32, sequence_tokens=8)
    speed = values["train/tokens_per_second"] * flops / 1e9
    assert values["train/share_of_peak"] == pytest.approx(speed / values["peak_gflops"])

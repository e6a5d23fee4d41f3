"""A plan of memory is what the compiler says at small scale, and what arithmetic says of a known model."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hydra.utils import instantiate

from jaxagents.networks.decoder import Decoder
from jaxagents.networks.transformer import Transformer
from jaxagents.policies.language_model import logits_at_once, make_language_model, token_statistics
from jaxagents.training.composition import compose
from jaxagents.training.planning import Accelerator, Work, activation_bytes, bytes_per_device, make_plan, plan_devices
from tests import CONFIGS

CHIP = Accelerator(flops=1e12, memory=1e9, bandwidth=1e10, link=1e9)
ALONE = {"data": 1, "fsdp": 1, "tensor": 1}


def make_network(options):
    return Transformer(vocab_size=512, num_layers=4, features=64, num_heads=4, **options)


def compiled_bytes(options, rows, tokens):
    """Returns what the compiler allots to a step of Adam: arguments, and temporaries."""
    network = make_network(options)
    model, optimizer = make_language_model(network.vocab_size, network=lambda vocab_size: network), optax.adam(1e-3)
    params = jax.eval_shape(model.init, jax.random.key(0))
    opt_state = jax.eval_shape(optimizer.init, params)

    def loss(params, ids):
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((tokens, tokens), bool)), (rows, tokens, tokens))
        positions = jnp.broadcast_to(jnp.arange(tokens), ids.shape)
        hidden = model.apply(params, ids, positions=positions, mask=mask)
        return -token_statistics(model, params, hidden, ids, fields=("log_prob",)).log_prob.mean()

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt_state, ids):
        updates, opt_state = optimizer.update(jax.grad(loss)(params, ids), opt_state)
        return optax.apply_updates(params, updates), opt_state

    ids = jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
    analysis = step.lower(params, opt_state, ids).compile().memory_analysis()
    return analysis.argument_size_in_bytes - 4 * rows * tokens, analysis.temp_size_in_bytes


@pytest.mark.parametrize(
    "options",
    [
        {"remat": True, "scan_layers": True},
        pytest.param({}, marks=pytest.mark.exhaustive),
        pytest.param({"gated": True, "activation": "silu", "num_kv_heads": 2}, marks=pytest.mark.exhaustive),
    ],
)
def test_bytes_are_those_of_the_compiler(options, call_as_run):
    rows, tokens = 8, 64
    plan = make_plan(make_network(options), optax.adam(1e-3), Work(rows=rows, tokens=tokens), CHIP, ALONE, {})
    arguments, temporary = call_as_run("compiled_bytes", options, rows, tokens)
    assert plan.parameters + plan.optimizer == arguments
    np.testing.assert_allclose(plan.gradients + plan.activations, temporary, rtol=0.35)


def test_shards_are_counted_leaf_by_leaf():
    tree = {"up": {"kernel": jnp.zeros((8, 16))}, "scale": jnp.zeros(16)}
    rules = {"kernel$": ["fsdp", "tensor"]}
    assert bytes_per_device(tree, rules, {"data": 3, "fsdp": 2, "tensor": 4}) == 4 * (8 * 16 // 8 + 16)


def test_speeds_are_bound_by_products_in_training_and_by_reading_in_sampling():
    network = Transformer(vocab_size=100, num_layers=1, features=10, num_heads=1, hidden_features=10)
    params = 100 * 10 + 4 * 10 * 10 + 2 * 10 * 10 + 3 * 10
    work = Work(rows=1, tokens=20, decoded_rows=4, efficiency=0.5)
    plan = make_plan(network, optax.sgd(1.0), work, CHIP, ALONE, {})
    assert plan.trained_tokens == pytest.approx(0.5e12 / (6 * params + 6 * 10 * 20))
    cache = 4 * 20 * 2 * 10 * 4
    assert plan.cache == cache and plan.optimizer == 0
    assert plan.decoded_tokens == pytest.approx(4 * 1e10 / (4 * params + cache))
    assert plan.total == 8 * params + activation_bytes(network, 1, 20)


def test_a_small_device_computes_fewer_logits_at_once():
    network = Transformer(vocab_size=150_000, num_layers=1, features=8, num_heads=1)
    large, small = (activation_bytes(network, 8, 1024, memory=memory) for memory in (141e9, 16e9))
    # Copies of 2^30 logits are 13 GB; of a chip of 16 GB, a fifth goes into them at most.
    assert large - small == pytest.approx(3 * 4 * (2**30 - 16e9 / 64), rel=1e-3)
    assert 3 * 4 * logits_at_once(16e9) < 0.2 * 16e9


def test_slices_are_planned_by_name():
    network = Transformer(vocab_size=16, num_layers=1, features=8, num_heads=2)
    chip = {"teraflops": 1, "gibibytes": 1e-3, "bandwidth": 1, "link": 1}
    options = {"tensor": 2, "rules": {"kernel$": "tensor fsdp", "embedding": "tensor fsdp"}, "tokens": 4}
    options |= {"rows_per_shard": 1, "decoded_rows_per_shard": 1, "efficiency": 0.5, "accelerators": {"v9": chip}}
    two, eight = plan_devices(network, optax.adam(1.0), ["v9x2", "v9x8"], **options).values()
    scales = 3 * 8 * 4 / 2**30  # Of norms, whole on every device.
    assert two["parameters_gib"] - scales == pytest.approx(4 * (eight["parameters_gib"] - scales))
    assert eight["fits"] and eight["device_gib"] == 1e-3
    with pytest.raises(ValueError, match=r"a number that `tensor` \(2\) divides, as v5ex16, got 'v9x3'; there are v9"):
        plan_devices(network, optax.adam(1.0), ["v9x3"], **options)


def test_rows_that_do_not_divide_are_refused():
    network = Transformer(vocab_size=10)
    with pytest.raises(ValueError, match="`work.rows` must be divisible by data times fsdp, got 3 and 2; try 4"):
        make_plan(network, optax.sgd(1.0), Work(rows=3, tokens=4), CHIP, {"data": 2, "fsdp": 1, "tensor": 1}, {})


@pytest.mark.parametrize("remat", [True, False])
def test_attention_in_blocks_keeps_scores_of_one_block(remat):
    sizes = {"vocab_size": 512, "num_layers": 2, "features": 64, "num_heads": 4, "hidden_features": 64, "remat": remat}
    at_once, blocks, all_of_them = (
        activation_bytes(Decoder(**sizes, attention_block=block), 1, 4096) for block in (None, 256, 4096)
    )
    scores = 3 * 4 * 4096 * 4  # Of a query: scores, weights and one gradient of 4 heads.
    assert at_once == all_of_them
    assert at_once - blocks == (4096 - 256) * scores if remat else 2 * 4096 * scores - 256 * scores


@pytest.mark.parametrize("model", ["llama", "qwen"])
def test_models_for_long_contexts_take_blocks_of_attention(model):
    config = compose(CONFIGS, "world=bandit", "algorithm=grpo", f"model={model}", "model.network.attention_block=8")
    assert instantiate(config.model.network)(vocab_size=3).attention_block == 8

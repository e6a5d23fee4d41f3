"""Adapters go to `peft` and come from there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.checkpoints.peft import load_adapter, write_adapter
from jaxagents.language.checkpoints.read import read_decoder, read_params
from jaxagents.networks.adapters import combine, ia3, lora

peft = pytest.importorskip("peft", reason="needs the extra hf: peft is compared with")
torch = pytest.importorskip("torch", reason="needs the extra hf: PyTorch is compared with")
LORA = {"rank": 3, "alpha": 5.0}
QUERY_AND_DOWN = r"(query|qkv|down)/kernel$"
CASES = {
    "lora": ("llama3", lora(**LORA)),
    "stabilized": ("llama3", lora(**LORA, pattern=QUERY_AND_DOWN, rank_stabilized=True)),
    "one_layer": ("llama3", lora(**LORA, pattern=r"layers_1/attention/query/kernel$")),
    "dora": ("llama3", lora(**LORA, pattern=QUERY_AND_DOWN, magnitude=True)),
    "ia3": ("qwen2", ia3()),
    "gpt2": ("gpt2", lora(**LORA, pattern=QUERY_AND_DOWN)),
}
QUICK = ("lora",)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES]


def logits_of(decoder, params, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool)), (*tokens.shape, tokens.shape[1]))

    @jax.jit
    def compute(params):
        hidden = decoder.apply(params, jnp.asarray(tokens), positions, mask)
        return decoder.apply(params, hidden, method="logits")

    return compute(params)


def random_parameters(adapter, params):
    own = adapter.init(jax.random.key(0), params)
    leaves, tree = jax.tree.flatten(own)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        tree, [leaf + 0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_peft(saved, tokens, tmp_path, name):
    import transformers

    family, adapter = CASES[name]
    folder, _ = saved(family)
    decoder = read_decoder(folder, scan_layers=name == "stabilized")
    params = read_params(folder, decoder)
    own = random_parameters(adapter, params)
    write_adapter(tmp_path, decoder, adapter.description, own, base=folder)
    theirs = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(folder), tmp_path)
    with torch.no_grad():
        wanted = theirs(torch.as_tensor(tokens)).logits.numpy()
        without = theirs.base_model.model
        with theirs.disable_adapter():
            plain = without(torch.as_tensor(tokens)).logits.numpy()
    assert np.abs(wanted - plain).max() > 0.01
    np.testing.assert_allclose(logits_of(decoder, adapter.merge(params, own), tokens), wanted, atol=1e-4)
    if adapter.description["kind"] == "lora":
        again = load_adapter(tmp_path)
        for one, other in zip(*map(jax.tree.leaves, (own, again.init(jax.random.key(0), params))), strict=False):
            np.testing.assert_array_equal(one, other)


def test_a_folder_of_peft_is_read(saved, tokens, tmp_path):
    import transformers

    folder, _ = saved("llama3")
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    theirs = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(folder), config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = theirs(torch.as_tensor(tokens)).logits.numpy()
    decoder = read_decoder(folder, scan_layers=True)
    params, adapter = read_params(folder, decoder), load_adapter(tmp_path)
    merged = adapter.merge(params, adapter.init(jax.random.key(0), params))
    np.testing.assert_allclose(logits_of(decoder, merged, tokens), wanted, atol=1e-4)


def test_what_is_refused(saved, tmp_path):
    folder, _ = saved("llama3")
    decoder = read_decoder(folder)
    params = read_params(folder, decoder)
    with pytest.raises(
        ValueError, match="`adapter` must be lora or ia3 for a folder of peft, got combined; try merged"
    ):
        write_adapter(tmp_path, decoder, combine({"a": lora()}).description, {}, base=folder)
    adapter = lora(pattern="^params/embedding$", rank=2)
    with pytest.raises(ValueError, match="must change projections of layers only, got params/embedding; try merged"):
        write_adapter(tmp_path, decoder, adapter.description, adapter.init(jax.random.key(0), params), base=folder)
    with pytest.raises(ValueError, match=r"must hold adapter_config.json, got none at .*; nothing is downloaded"):
        load_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LOHA"}')
    with pytest.raises(ValueError, match="`adapter_config.json` must be of LoRA without biases and patterns, got LOHA"):
        load_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": "two", "lora_alpha": 4}')
    with pytest.raises(ValueError, match="`r` of `adapter_config.json` must be a number, got 'two'"):
        load_adapter(tmp_path)
    adapter = lora(pattern="attention/query/kernel$", rank=2)
    write_adapter(tmp_path, decoder, adapter.description, adapter.init(jax.random.key(0), params), base=folder)
    wide = {"params": {"layers_0": {"attention": {"query": {"kernel": jnp.zeros((8, 24))}}}}}
    with pytest.raises(ValueError, match=r"layers.0.self_attn.q_proj.lora_A.weight \[2, 8\], got shape \[2, 24\]"):
        load_adapter(tmp_path).init(jax.random.key(0), wide)
    fewer = {"params": {name: leaf for name, leaf in params["params"].items() if name != "layers_2"}}
    with pytest.raises(ValueError, match=r"what has a place in the parameters, got .*layers.2.self_attn"):
        load_adapter(tmp_path).init(jax.random.key(0), fewer)

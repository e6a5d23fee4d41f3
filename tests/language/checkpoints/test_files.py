"""Folders of checkpoints are read and written, and what is wrong with one is said."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagents.language.checkpoints.families import decoder_settings, describe
from jaxagents.language.checkpoints.read import load_language_model, read_decoder, read_params
from jaxagents.language.checkpoints.tensors import INDEX, SINGLE, open_tensors
from jaxagents.language.checkpoints.write import write_checkpoint
from jaxagents.networks.decoder import Decoder

LLAMA = {"model_type": "llama", "vocab_size": 31, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 64}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama3", "bfloat16"),
        ("gemma3", "float32"),
        *(pytest.param(name, "float32", marks=pytest.mark.exhaustive) for name in ("gpt2", "qwen2", "qwen3", "gemma2")),
        *(pytest.param(name, "bfloat16", marks=pytest.mark.exhaustive) for name in ("gpt2", "gemma2")),
    ],
)
def test_a_round_trip_gives_the_same_bytes(saved, tmp_path, family, dtype):
    folder, _ = saved(family, dtype)
    decoder = read_decoder(folder, scan_layers=dtype == "bfloat16")
    params = read_params(folder, decoder)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    write_checkpoint(tmp_path / "copy", decoder, params, config_of(folder), source=folder)
    for file in ("config.json", "generation_config.json", SINGLE):
        assert (tmp_path / "copy" / file).read_bytes() == (folder / file).read_bytes()


def test_several_files_and_their_index(saved, tmp_path):
    folder, model = saved("llama3")
    model.save_pretrained(tmp_path / "theirs", max_shard_size="15KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    decoder = read_decoder(tmp_path / "theirs")
    params = read_params(tmp_path / "theirs", decoder)
    write_checkpoint(tmp_path / "ours", decoder, params, config_of(folder), max_file_bytes=15_000)
    files = list((tmp_path / "ours").glob("*.safetensors"))
    assert len(files) > 2 and max(file.stat().st_size for file in files) < 20_000
    index = json.loads((tmp_path / "ours" / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(parameter.numel() for parameter in model.parameters()) * 4
    one, several = open_tensors(folder), open_tensors(tmp_path / "ours")
    assert one.keys() == several.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, several[name])
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    ours = loaded.state_dict()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), ours[name].numpy())


@pytest.mark.parametrize("scan_layers", [False, True])
def test_parameters_go_straight_to_their_devices_and_types(saved, scan_layers):
    folder, _ = saved("llama3")
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("tensor",))
    names = []

    def sharding(name):
        names.append(name)
        axes = (None, "tensor") if name.endswith("attention/query/kernel") else ()
        axes = (None, *axes) if scan_layers and axes else axes
        return NamedSharding(mesh, PartitionSpec(*axes))

    decoder = read_decoder(folder, scan_layers=scan_layers, param_dtype=jnp.bfloat16)
    params = read_params(folder, decoder, sharding=sharding)["params"]
    query = (params["layers"] if scan_layers else params["layers_1"])["attention"]["query"]["kernel"]
    assert query.dtype == jnp.bfloat16
    assert query.addressable_shards[0].data.shape[-1] == query.shape[-1] // 2
    assert ("layers" if scan_layers else "layers_1") + "/attention/query/kernel" in names
    wanted = open_tensors(folder)["model.layers.1.self_attn.q_proj.weight"].T.astype(jnp.bfloat16)
    np.testing.assert_array_equal(query[1] if scan_layers else query, wanted)
    np.testing.assert_array_equal(
        params["embedding"], open_tensors(folder)["model.embed_tokens.weight"].astype("bfloat16")
    )


def test_shardings_like_the_parameters_place_a_value_head_too(saved):
    folder, _ = saved("llama3")
    model = load_language_model(path=folder, value_head=True)
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("fsdp",))
    shapes = jax.eval_shape(model.init, jax.random.key(0))

    def halve(leaf):
        axis = next((i for i, size in enumerate(leaf.shape) if size % 2 == 0), None)
        return NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, "fsdp"))

    shardings = jax.tree.map(halve, shapes)
    params = model.init(jax.random.key(0), shardings)
    jax.tree.map(lambda leaf, sharding: np.testing.assert_equal(leaf.sharding, sharding), params, shardings)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), jax.device_get(model.init(jax.random.key(0))))


def test_scanned_layers_with_windows_and_a_value_head(saved, tokens):
    folder, model = saved("gemma3")
    import torch

    with torch.no_grad():
        wanted = model(torch.as_tensor(tokens)).logits.numpy()
    of_world = {"features": 96, "value_head": True}  # Sizes are those of the checkpoint.
    own = load_language_model(path=folder, scan_layers=True, remat=True, network=of_world)
    params = own.init(jax.random.key(0))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((11, 11), bool)), (2, 11, 11))
    positions = jnp.broadcast_to(jnp.arange(11), (2, 11))
    hidden = jax.jit(own.apply)(params, jnp.asarray(tokens), positions=positions, mask=mask)
    np.testing.assert_allclose(jax.jit(own.logits)(params, hidden), wanted, atol=1e-4)
    assert own.value(params, jnp.ones((2, 24))).shape == (2,)


@pytest.mark.parametrize("family", ["llama3", "qwen2"])  # Untied and tied.
def test_vocabularies_of_other_sizes(saved, family):
    folder, _ = saved(family)
    rows = open_tensors(folder)["model.embed_tokens.weight"]
    larger = load_language_model(33, path=folder).init(jax.random.key(0))["params"]
    np.testing.assert_array_equal(larger["embedding"][:31], rows)
    np.testing.assert_allclose(larger["embedding"][31:], np.mean(rows, 0, keepdims=True).repeat(2, 0), rtol=1e-5)
    smaller = load_language_model(27, path=folder).init(jax.random.key(0))["params"]
    np.testing.assert_array_equal(smaller["embedding"], rows[:27])
    if family == "llama3":
        head = open_tensors(folder)["lm_head.weight"].T
        np.testing.assert_array_equal(smaller["head"], head[:, :27])
        np.testing.assert_allclose(larger["head"][:, 32], np.mean(head, 1), rtol=1e-5)


def test_a_tokenizer_of_another_model_is_refused(saved):
    with pytest.raises(ValueError, match=r"`tokenizer` must have the 31 tokens of the checkpoint .* got 5000; try"):
        load_language_model(5000, path=saved("llama3")[0])


def test_configs_of_transformers_4():
    config = LLAMA | {"rope_theta": 50.0}
    frequencies = decoder_settings(config)["rotary_frequencies"]
    np.testing.assert_allclose(frequencies, 50.0 ** (-np.arange(3) / 3))
    config["rope_scaling"] = {"type": "linear", "factor": 2.0}
    np.testing.assert_allclose(decoder_settings(config)["rotary_frequencies"], np.array(frequencies) / 2.0)
    gemma = LLAMA | {"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_activation": "gelu_pytorch_tanh"}
    gemma |= {"query_pre_attn_scalar": 16, "sliding_window": 8, "sliding_window_pattern": 3, "head_dim": 4}
    settings = decoder_settings(gemma)
    assert settings["windowed_layers"] == (True, True, False, True, True, False)
    np.testing.assert_allclose(settings["local_rotary_frequencies"], [1.0, 0.01])
    np.testing.assert_allclose(settings["rotary_frequencies"], [1.0, 0.001])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "`model_type` must be one of gpt2, llama, .*got 'mamba'"),
        ({"model_type": "gemma3"}, "got 'gemma3'; try the text model alone"),
        ({"hidden_act": "swish_glu"}, "activation must be one of .*got 'swish_glu'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}, "`rope_type` must be .*got 'longrope'"),
        ({"layer_types": ["chunked_attention"] * 2}, "`layer_types` must be full_attention without a window"),
        ({"use_bidirectional_attention": True}, "`use_bidirectional_attention` must be false"),
        ({"model_type": "gemma2"}, "`config.json` must hold 'hidden_activation' for a model of gemma2"),
    ],
)
def test_refused_configs(changes, message):
    with pytest.raises(ValueError, match=message):
        decoder_settings(LLAMA | changes)
    gpt2 = {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}
    with pytest.raises(ValueError, match="`scale_attn_by_inverse_layer_idx` must be False, got True"):
        decoder_settings(gpt2)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"must hold config.json, got none at .*; nothing is downloaded"):
        load_language_model(path=tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ValueError, match=r"must hold model.safetensors, got none at .*; nothing is downloaded"):
        load_language_model(path=tmp_path).init(jax.random.key(0))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(ValueError, match=r"must hold model-00001-of-00002.safetensors, got none"):
        load_language_model(path=tmp_path).init(jax.random.key(0))
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"<html>")
    with pytest.raises(ValueError, match=r"must hold files of safetensors, got .*00001-of-00002.safetensors"):
        load_language_model(path=tmp_path).init(jax.random.key(0))


def test_tensors_that_do_not_fit_are_listed(saved, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder, _ = saved("llama3")
    tensors = load_file(folder / SINGLE)
    tensors["adapter"] = tensors.pop("model.norm.weight")
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((3, 4), np.float32)
    save_file(tensors, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    message = (
        r"with 1 missing: model.norm.weight; 1 misshapen: model.layers.0.mlp.up_proj.weight \[3, 4\], not \[40, 24\]; "
        r"1 left over: adapter\."
    )
    with pytest.raises(ValueError, match=message):
        load_language_model(path=tmp_path)  # Before anything is compiled.
    whole = (folder / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=rf"must be whole and of .*, got {len(whole) - 10} of {len(whole)} bytes"):
        load_language_model(path=tmp_path)  # Before anything is compiled.


def test_a_body_without_head_and_buffers_is_read(saved, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder, _ = saved("gpt2")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(folder / SINGLE).items()}
    save_file(tensors | {"h.0.attn.bias": np.zeros((1, 1, 64, 64), np.float32)}, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    both = [load_language_model(path=path).init(jax.random.key(0)) for path in (folder, tmp_path)]
    jax.tree.map(np.testing.assert_array_equal, *both)


SHAPE = {"vocab_size": 31, "num_layers": 2, "features": 24, "num_heads": 4, "hidden_features": 40}
GPT2 = {"norm": "layer", "gated": False, "positions": "learned", "max_positions": 16, "activation": "gelu_new"}
GPT2 |= dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "fused_qkv"), True)


@pytest.mark.parametrize(
    ("settings", "family"),
    [
        ({"num_kv_heads": 2, "rotary_base": 500.0}, "llama"),
        ({"qkv_bias": True, "tied_embeddings": False}, "qwen2"),
        ({"qk_norm": True, "head_features": 16}, "qwen3"),
        (GPT2, "gpt2"),
    ],
)
def test_a_decoder_of_ours_is_described_for_others(settings, family):
    config = describe(Decoder(**SHAPE | settings))
    assert config["model_type"] == family
    again = Decoder(**decoder_settings(config))
    for name, value in (SHAPE | settings).items():
        assert getattr(again, name) == value


def test_a_decoder_of_no_family_is_refused():
    with pytest.raises(ValueError, match=r"`window` must be that of a family .*, got 8 where llama has None"):
        describe(Decoder(**SHAPE, window=8))

"""Damaged `config.json`s of checkpoints: each is refused with its field."""

import json

import pytest

from jaxagents.language.checkpoints.families import decoder_settings
from jaxagents.language.checkpoints.tensors import INDEX, SINGLE, open_tensors, read_json

LLAMA = {"model_type": "llama", "vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA |= {"intermediate_size": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "hidden_act": "silu"}


@pytest.mark.parametrize("value", ["eight", None, 0, 1.5, True, [8]])
def test_sizes_are_positive_whole_numbers(value):
    decoder_settings(LLAMA | {"head_dim": None})
    with pytest.raises(ValueError, match="`hidden_size` of `config.json` must be a positive whole number, got"):
        decoder_settings(LLAMA | {"hidden_size": value})


def test_epsilons_are_numbers():
    with pytest.raises(ValueError, match="`rms_norm_eps` of `config.json` must be a positive number, got 'small'"):
        decoder_settings(LLAMA | {"rms_norm_eps": "small"})


@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": ["silu"]}, {"rope_parameters": 3}, {"rope_theta": "big"}, {"rope_scaling": {"rope_type": []}}],
)
def test_fields_of_another_shape_are_refused(changes):
    with pytest.raises(
        ValueError, match="`config.json` must describe a model of llama, got|`rope_type` must be one of"
    ):
        decoder_settings(LLAMA | changes)


def test_caps_are_numbers_or_none():
    gemma = LLAMA | {"model_type": "gemma2", "hidden_activation": "gelu", "query_pre_attn_scalar": 4}
    assert decoder_settings(gemma | {"attn_logit_softcapping": None})["attention_cap"] is None
    with pytest.raises(
        ValueError, match="`attn_logit_softcapping` of `config.json` must be a positive number, got '50'"
    ):
        decoder_settings(gemma | {"attn_logit_softcapping": "50"})


@pytest.mark.parametrize("content", ["[1]", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}'])
def test_an_index_without_names_of_files_is_refused(tmp_path, content):
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(
        ValueError, match="must hold a `weight_map` of names of files, got|must hold a JSON object, got"
    ):
        open_tensors(tmp_path)


@pytest.mark.parametrize("header", [[1], {"a": 3}, {"a": {"dtype": "F32", "shape": [1]}}])
def test_headers_of_another_shape_are_refused(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match="must say where .* lies, of which type and shape, got "):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "must be JSON, got .*; copy it again"), ("[1]", "must hold a JSON object, got list")]
)
def test_files_that_are_no_object_are_refused(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "config.json")

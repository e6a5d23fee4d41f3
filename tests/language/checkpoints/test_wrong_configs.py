"""Damaged `config.json`s of checkpoints: each is refused with its field."""

import pytest

from jaxagents.language.checkpoints.families import decoder_settings
from jaxagents.language.checkpoints.tensors import read_json

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
    ("text", "message"), [("{", "must be JSON, got .*; copy it again"), ("[1]", "must hold a JSON object, got list")]
)
def test_files_that_are_no_object_are_refused(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "config.json")

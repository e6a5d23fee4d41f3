"""A tokenizer of single letters, for data that need no model."""

import pytest

from jaxagents.types import Tokenizer

MARKS = {"pad": 0, "end": 1, "observation": 2, "think": 3, "act": 4}


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer(
        name="letters",
        encode=lambda text: [ord(letter) for letter in text],
        decode=lambda ids: "".join(chr(token) for token in ids if token >= 10),
        vocab_size=256,
        marks=MARKS,
        data=b"",
    )

"""Tokenizers: what is read back, what is refused, and that bytes restore them."""

import functools
import json
from pathlib import Path

import pytest
import transformers
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from jaxagents.language.tokenizers import (
    MARKS,
    byte_level,
    from_huggingface,
    phrase_reader,
    require_phrases,
    restore,
    train_sentencepiece,
    word_level,
)
from tests.fakes import byte_pairs

WORDS = ("go to", "fridge 1", "fridge 12", "take", "apple", ".", "You see", "go")
CONFIGS = Path(__file__).parents[2] / "configs" / "tokenizer"


def tiny_backend():
    """Returns a byte-level BPE model of `tokenizers`, with a padding and an end token."""
    return byte_pairs(290, " ".join(WORDS), special_tokens=["<pad>", "</s>"])


def tiny_transformers():
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tiny_backend(), pad_token="<pad>", eos_token="</s>")


@functools.cache
def tokenizer_of(kind):
    return {
        "word_level": word_level,
        "byte_level": byte_level,
        "unigram": functools.partial(train_sentencepiece, vocab_size=100),
        "bpe": functools.partial(train_sentencepiece, vocab_size=40, model_type="bpe", whole_words=False),
        "huggingface": lambda words: from_huggingface(words, tiny_transformers(), add_special_tokens=True),
    }[kind](WORDS)


KINDS = ("word_level", "byte_level", "unigram", "bpe", "huggingface")
TEXT = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
# Any string of the characters that the words have.
CHARACTERS = st.text(sorted(set("".join(WORDS))), max_size=30)


def test_word_level_by_hand():
    tokenizer = tokenizer_of("word_level")
    assert tokenizer.marks == {"pad": 0, "end": 1, "observation": 2, "think": 3, "act": 4}
    assert tokenizer.vocab_size == 13
    # The longest phrase is taken, whatever lies between the parts.
    assert tokenizer.encode("go  to\nfridge 12 go fridge 1 .") == [5, 7, 12, 6, 10]
    assert tokenizer.decode([2, 5, 7, 1, 0, 0]) == "go to fridge 12"
    with pytest.raises(ValueError, match="`text` must be made of the words, got 'fridge' in 'go to fridge 2'"):
        tokenizer.encode("go to fridge 2")


def test_byte_level_by_hand():
    tokenizer = tokenizer_of("byte_level")
    assert tokenizer.encode("a é") == [ord("a") + 5, 32 + 5, 0xC3 + 5, 0xA9 + 5]
    assert tokenizer.decode([4, *tokenizer.encode("a é"), 1]) == "a é"
    assert tokenizer.decode([0xC3 + 5]) == "\ufffd"
    assert tokenizer.vocab_size == 261


@pytest.mark.exhaustive
@given(st.text())
def test_byte_level_reads_any_text_back(text):
    tokenizer = tokenizer_of("byte_level")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["unigram", "bpe", "huggingface"])
def test_pieces_read_any_text_of_known_characters_back(kind):
    tokenizer = tokenizer_of(kind)

    @given(CHARACTERS | TEXT)
    @settings(max_examples=200, deadline=None)
    def check(text):
        back = tokenizer.decode(tokenizer.encode(text))
        assert back == (text if kind == "huggingface" else " ".join(text.split()))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_words_is_read_back_in_legal_ids_without_marks_and_restored_tokenizers_agree(kind):
    tokenizer = tokenizer_of(kind)
    restored = restore(tokenizer.data)
    assert isinstance(tokenizer.data, bytes) and restored.data == tokenizer.data
    assert (restored.name, restored.vocab_size, restored.marks) == (
        tokenizer.name,
        tokenizer.vocab_size,
        tokenizer.marks,
    )
    assert set(tokenizer.marks) == set(MARKS) and len(set(tokenizer.marks.values())) == len(MARKS)
    assert max(tokenizer.marks.values()) < tokenizer.vocab_size

    @given(TEXT)
    @settings(max_examples=50, deadline=None)
    def check(text):
        ids = tokenizer.encode(text)
        assert all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in ids)
        assert not set(ids) & set(tokenizer.marks.values())
        assert restored.encode(text) == ids
        marked = [i for token in ids for i in (tokenizer.marks["act"], token)] + [tokenizer.marks["pad"]]
        assert tokenizer.decode(marked) == restored.decode(ids) == text

    check()


@pytest.mark.parametrize("kind", ["byte_level", "unigram", "bpe", "huggingface"])
def test_text_cannot_forge_marks(kind):
    tokenizer = tokenizer_of(kind)
    for mark in ("<end>", "</s>", "<|act|>", "<pad>", "<act>"):
        assert not set(tokenizer.encode(f"go {mark} to{mark}")) & set(tokenizer.marks.values())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must start with a header of jaxagents.tokenizer, got b''"),
        (b"[1]\n", "must start with a header"),
        (b"\x80\x04", "must start with a header"),
        (b'{"format": "jaxagents.tokenizer", "version": 2, "kind": "word_level"}\n[]', "got version 2 of word_level"),
        (b'{"format": "jaxagents.tokenizer", "version": 1, "kind": "morse"}\n', "got version 1 of morse"),
    ],
)
def test_other_bytes_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        restore(data)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_every_phrase_that_fits_is_one_piece(model_type, capfd):
    tokenizer = train_sentencepiece(WORDS, vocab_size=100, model_type=model_type)
    assert [len(tokenizer.encode(word)) for word in WORDS] == [1] * len(WORDS)
    assert [len(tokenizer.encode(f"apple {word}")) for word in WORDS] == [2] * len(WORDS)
    # Less than asked for: marks, unknown, space, the 18 characters, the phrases; little is left to learn.
    assert len(set("".join(WORDS)) - {" "}) == 18 and 5 + 1 + 1 + 18 + 8 <= tokenizer.vocab_size < 40
    assert tokenizer.marks == {"pad": 0, "end": 1, "observation": 2, "think": 3, "act": 4}
    # Training is silent and has no randomness.
    assert train_sentencepiece(WORDS, vocab_size=100, model_type=model_type).data == tokenizer.data
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_phrases_that_are_said_most_come_first(tmp_path):
    transcripts = ["take apple", "You see apple", "apple take"]
    tokenizer = train_sentencepiece(WORDS, vocab_size=25 + 2, transcripts=transcripts)
    assert [word for word in WORDS if len(tokenizer.encode(word)) == 1] == ["take", "apple"]
    file = tmp_path / "transcripts.txt"
    file.write_text("\n".join(transcripts) + "\n")
    assert train_sentencepiece(WORDS, vocab_size=25 + 2, transcripts=file).data == tokenizer.data


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_learned_pieces_cross_no_space_and_cover_transcripts(model_type):
    transcripts = ["the mud in the zoo", "mud in the zoo"] * 5
    train = functools.partial(train_sentencepiece, WORDS, vocab_size=60, model_type=model_type, transcripts=transcripts)
    learned = train(whole_words=False)
    assert all(len(learned.encode(text)) >= 2 for text in ("go to", "fridge 1", "in the", "the zoo"))
    # Phrases take their places first, and transcripts still shape the rest.
    whole = train(whole_words=True)
    assert len(whole.encode("go to")) == len(whole.encode("zoo")) == len(learned.encode("zoo")) == 1
    assert whole.decode(whole.encode("the mud in the zoo")) == "the mud in the zoo"


def test_sentencepiece_refuses_what_it_cannot_do():
    message = (
        "`vocab_size` must be at least 25, for 6 marks and 19 characters, got 24; try 33, which holds every phrase."
    )
    with pytest.raises(ValueError, match=message):
        train_sentencepiece(WORDS, vocab_size=24)
    assert train_sentencepiece(WORDS, vocab_size=25).vocab_size == 25
    tokenizer = train_sentencepiece(WORDS, vocab_size=33)
    assert [len(tokenizer.encode(word)) for word in WORDS] == [1] * len(WORDS)
    with pytest.raises(ValueError, match="`model_type` must be 'unigram' or 'bpe', got 'word'"):
        train_sentencepiece(WORDS, vocab_size=100, model_type="word")
    with pytest.raises(ValueError, match="`words` or `transcripts` must hold text"):
        train_sentencepiece((), vocab_size=100)


def test_huggingface_agrees_with_transformers_and_leaves_it_alone(tmp_path):
    source = tiny_transformers()
    before = source.backend_tokenizer.to_str()
    tokenizer = from_huggingface(WORDS, source, add_special_tokens=True)
    text = "go to fridge 12 . Ünknown"
    assert tokenizer.encode(text) == source.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert source.backend_tokenizer.to_str() == before
    assert (tokenizer.marks["pad"], tokenizer.marks["end"]) == (source.pad_token_id, source.eos_token_id)
    assert [tokenizer.marks[mark] for mark in MARKS[2:]] == [len(source) + i for i in range(3)]
    assert tokenizer.vocab_size == len(source) + 3
    source.save_pretrained(tmp_path)
    loaded = from_huggingface(WORDS, str(tmp_path), add_special_tokens=True)
    assert loaded.encode(text) == tokenizer.encode(text) and loaded.marks == tokenizer.marks


def test_marks_of_huggingface_are_tokens_by_name():
    marks = {"pad": "</s>", "observation": "a", "think": "b", "act": "c"}
    tokenizer = from_huggingface(WORDS, tiny_transformers(), marks=marks)
    assert tokenizer.marks["pad"] == tokenizer.marks["end"] == 1  # Padding may share: it is masked out anyhow.
    assert tokenizer.decode([tokenizer.marks["act"], *tokenizer.encode("go")]) == "go"
    bare = from_huggingface(WORDS, tiny_backend(), marks=marks | {"end": "<pad>"})
    assert (bare.marks["pad"], bare.marks["end"], bare.name) == (1, 0, "huggingface")


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({}, r"in the vocabulary, got '<\|observation\|>' for 'observation', which is not; try `add_special_tokens=T"),
        ({"observation": "a", "think": "b", "act": "a"}, "`marks` must be different tokens"),
        ({"begin": "a"}, "`marks` must be among pad, end, observation, think, act, got begin"),
    ],
)
def test_wrong_marks_are_refused(marks, message):
    with pytest.raises(ValueError, match=message):
        from_huggingface(WORDS, tiny_transformers(), marks=marks)


def test_sources_without_a_fast_backend_are_refused():
    with pytest.raises(ValueError, match="`source` must have a fast backend, got dict"):
        from_huggingface(WORDS, {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b", "a"), "`words` must be different, got 'a' twice"),
        (("a", ""), "without white space around it, got ''"),
        ((" a",), "without white space around it, got ' a'"),
        (("a b", "a\nb"), "`words` must be different, got 'a b' twice"),
    ],
)
def test_words_that_cannot_be_read_back_are_refused(words, message):
    for make in (require_phrases, word_level, functools.partial(train_sentencepiece, vocab_size=100)):
        with pytest.raises(ValueError, match=message):
            make(words)


def test_phrase_reader_by_hand():
    read = phrase_reader(("a", "a b c", "b"))
    assert read(" a b c a b ") == [1, 0, 2]
    assert read("") == []


@pytest.mark.parametrize("name", ["word", "bytes", "sentencepiece", "bpe", "huggingface"])
def test_option_files_make_tokenizers_of_words(name, tmp_path):
    config = OmegaConf.load(CONFIGS / f"{name}.yaml")
    if name == "huggingface":
        tiny_transformers().save_pretrained(tmp_path)
        config.source = str(tmp_path)
    tokenizer = instantiate(config, _convert_="all")(WORDS)
    assert tokenizer.decode(tokenizer.encode("go to fridge 1")) == "go to fridge 1"
    header = json.loads(tokenizer.data.partition(b"\n")[0])
    assert header["format"] == "jaxagents.tokenizer"


def test_a_source_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"`source` must hold tokenizer.json, got none in .*; copy it from"):
        from_huggingface(WORDS, tmp_path)
    with pytest.raises(ValueError, match="must be the folder of a checkpoint, got .*nowhere; there is no such folder"):
        from_huggingface(WORDS, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="got my_model; there is no such folder, and nothing is downloaded"):
        from_huggingface(WORDS, "my_model")
    with pytest.raises(ValueError, match=r"`source` must be a folder or a name, got none; try model.path=DIR"):
        from_huggingface(WORDS, None)
    (tmp_path / "tokenizer.json").write_text("not json")
    with pytest.raises(ValueError, match=r"got .*, which cannot be loaded: "):
        from_huggingface(WORDS, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b'{"version": "1.0"}'),
        ("tokenizer.json", b"[1]"),
        ("tokenizer_config.json", b"[1]"),
        ("special_tokens_map.json", b"[1]"),
        ("chat_template.jinja", b"\xff\xfe\x00"),
    ],
)
def test_files_of_another_shape_are_refused(tmp_path, name, content):
    tiny_transformers().save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        ValueError, match=r"must be a folder with a tokenizer, got .*, which cannot be loaded: ."
    ) as error:
        from_huggingface(WORDS, tmp_path, add_special_tokens=True)
    assert "\n" not in str(error.value)
